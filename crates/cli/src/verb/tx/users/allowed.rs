//! Who may have transactions without being root, and how much of the machine: `[transactions]` of pando.toml.

use super::super::settings::UsersSettings;
use pando_kernel::process::user_rights::UserIds;
use std::collections::BTreeSet;

/// Those that the settings name, by their numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Allowed {
    users: BTreeSet<u32>,
    groups: BTreeSet<u32>,
    /// Names that nobody has.
    pub(super) unknown: Vec<String>,
}

impl Allowed {
    /// Looks their names up in /etc/passwd and /etc/group. Those of other directories, such as LDAP, are numbers.
    pub(super) fn of(settings: &UsersSettings) -> Self {
        let text = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let (users, groups) = (text("/etc/passwd"), text("/etc/group"));
        Self::read(&settings.users, |name| number(&users, name), |name| number(&groups, name))
    }

    fn read(entries: &[String], user: impl Fn(&str) -> Option<u32>, group: impl Fn(&str) -> Option<u32>) -> Self {
        let mut allowed = Self::default();
        for entry in entries {
            let found = match entry.strip_prefix('@') {
                Some(name) => name.parse().ok().or_else(|| group(name)).map(|id| allowed.groups.insert(id)),
                None => entry.parse().ok().or_else(|| user(entry)).map(|id| allowed.users.insert(id)),
            };
            if found.is_none() {
                allowed.unknown.push(entry.clone());
            }
        }
        allowed
    }

    /// Whether a user is one of them. Root needs nobody to do it for him.
    pub(super) fn has(&self, ids: &UserIds) -> bool {
        ids.uid != 0 && (self.users.contains(&ids.uid) || self.groups.iter().any(|group| ids.is_in(*group)))
    }
}

/// The number of a name, the third field of its line.
fn number(lines: &str, name: &str) -> Option<u32> {
    let line = lines.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split(':').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_whole_one() {
        let lines = "root:x:0:0::/root:/bin/sh\nalice2:x:1001:1001::/:\nalice:x:1000:1000::/:\nbad:x\n";
        assert_eq!((number(lines, "alice"), number(lines, "bad"), number(lines, "bob")), (Some(1000), None, None));
    }

    #[test]
    fn users_and_groups_are_named_or_numbered_and_root_is_none_of_them() {
        let entries = ["alice", "@staff", "1007", "@50", "nobody-there"].map(str::to_owned);
        let known =
            |name: &str| (name == "alice" || name == "staff").then_some(if name == "alice" { 1000 } else { 40 });
        let allowed = Allowed::read(&entries, known, known);
        let user = |uid, gid, groups: &[u32]| UserIds { uid, gid, groups: groups.to_vec() };
        assert_eq!(allowed.unknown, ["nobody-there"]);
        for one in [user(1000, 9, &[]), user(1007, 9, &[]), user(8, 40, &[]), user(8, 9, &[7, 50])] {
            assert!(allowed.has(&one), "{one:?}");
        }
        for one in [user(0, 40, &[50]), user(8, 9, &[1000]), user(40, 41, &[])] {
            assert!(!allowed.has(&one), "{one:?}");
        }
    }
}

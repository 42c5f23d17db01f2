//! Users of a guest, as its own /etc/passwd and /etc/group name them. Both files are the guest's to write, so both are
//! read with bounds.

/// The user and groups that a process runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The user's id, as the guest numbers it.
    pub uid: u32,
    /// The id of the primary group, as the guest numbers it.
    pub gid: u32,
    /// Ids of the supplementary groups, as the guest numbers them.
    pub groups: Vec<u32>,
    /// Home directory; `/` where none is known.
    pub home: String,
    /// Name, where one is known.
    pub name: Option<String>,
}

/// A user that a guest does not have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AccountError {
    /// The guest has no user of that name.
    #[error("the guest has no user '{0}' in its /etc/passwd; give a name from there, or a number")]
    NoUser(String),
    /// The guest has no group of that name.
    #[error("the guest has no group '{0}' in its /etc/group; give a name from there, or a number")]
    NoGroup(String),
    /// A number that no user or group of the guest can have.
    #[error(
        "a process of the guest cannot run as {kind} {id}: its ids are 0 to {most}; name another with --user, or correct the guest's /etc/{file}"
    )]
    Beyond {
        /// What the number was to be: `user` or `group`.
        kind: &'static str,
        /// The number that was given.
        id: u32,
        /// The largest that it can be.
        most: u32,
        /// The guest's file that may say so.
        file: &'static str,
    },
}

/// The largest id in a user namespace of a guest's.
const MOST_MAPPED: u32 = 65_535;

/// The largest id without one: the number after it is taken for "none" by the kernel's calls, which then change
/// nothing.
const MOST: u32 = u32::MAX - 1;

/// The most bytes read of either file.
pub const LONGEST: u64 = 4 << 20;

/// The most further groups of a user: what the shim takes.
const MOST_GROUPS: usize = 256;

impl Account {
    /// Root, whose home is the same on every system.
    pub fn root() -> Self {
        Self { home: "/root".to_owned(), name: Some("root".to_owned()), ..Self::default() }
    }

    /// Refuses ids that nobody in the guest can have. `mapped` says whether the guest has a user namespace.
    pub(crate) fn check(&self, mapped: bool) -> Result<(), AccountError> {
        let most = if mapped { MOST_MAPPED } else { MOST };
        let refused = |kind, id, file| Err(AccountError::Beyond { kind, id, most, file });
        if self.uid > most {
            return refused("user", self.uid, "passwd");
        }
        match std::iter::once(&self.gid).chain(&self.groups).find(|gid| **gid > most) {
            Some(gid) => refused("group", *gid, "group"),
            None => Ok(()),
        }
    }

    /// Adds further groups, each a name or a number, by the text of the guest's /etc/group.
    ///
    /// # Errors
    ///
    /// Where the guest has no group of that name.
    pub fn join(&mut self, further: &[String], group: &str) -> Result<(), AccountError> {
        for name in further {
            let gid = find_group(name, group)?;
            if gid != self.gid && !self.groups.contains(&gid) && self.groups.len() < MOST_GROUPS {
                self.groups.push(gid);
            }
        }
        Ok(())
    }

    /// Whether `wanted` can be resolved without looking into the guest.
    pub fn is_plain_root(wanted: &str) -> bool {
        matches!(wanted, "" | "root" | "0" | "0:0" | "root:root")
    }

    /// Resolves `USER` or `USER:GROUP`, each a name or a number, by the text of the guest's two files.
    pub fn resolve(wanted: &str, passwd: &str, group: &str) -> Result<Self, AccountError> {
        let (user, own_group) = wanted.split_once(':').map_or((wanted, None), |(user, group)| (user, Some(group)));
        let entry =
            passwd.lines().filter_map(Entry::read).find(|entry| entry.name == user || Some(entry.uid) == id(user));
        let mut account = match (&entry, id(user)) {
            (Some(entry), _) => Self {
                uid: entry.uid,
                gid: entry.gid,
                groups: Vec::new(),
                home: entry.home.to_owned(),
                name: Some(entry.name.to_owned()),
            },
            (None, Some(uid)) => Self { uid, home: "/".to_owned(), ..Self::default() },
            (None, None) => return Err(AccountError::NoUser(user.to_owned())),
        };
        match own_group {
            Some(name) => account.gid = find_group(name, group)?,
            None => account.groups = account.name.as_deref().map(|name| groups_of(name, group)).unwrap_or_default(),
        }
        Ok(account)
    }
}

/// An id as the files have it: digits alone, so that no sign and no space makes two texts one user.
fn id(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> Entry<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let (uid, gid) = (id(fields.next()?)?, id(fields.next()?)?);
        let _full_name = fields.next()?;
        Some(Self { name, uid, gid, home: fields.next().filter(|home| home.starts_with('/')).unwrap_or("/") })
    }
}

fn find_group(wanted: &str, group: &str) -> Result<u32, AccountError> {
    let found = group.lines().filter_map(read_group).find(|(name, ..)| *name == wanted).map(|(_, gid, _)| gid);
    found.or(id(wanted)).ok_or_else(|| AccountError::NoGroup(wanted.to_owned()))
}

fn groups_of(user: &str, group: &str) -> Vec<u32> {
    let member = |members: &str| members.split(',').any(|member| member == user);
    group
        .lines()
        .filter_map(read_group)
        .filter(|(.., members)| member(members))
        .map(|(_, gid, _)| gid)
        .take(MOST_GROUPS)
        .collect()
}

fn read_group(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.split(':');
    let (name, _password) = (fields.next()?, fields.next()?);
    Some((name, id(fields.next()?)?, fields.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nwww:x:33:33:www:/var/www:/bin/sh\nbroken\n:::\n";
    const GROUP: &str = "root:x:0:\nadm:x:4:www,other\nwww:x:33:\n";

    #[test]
    fn a_name_or_a_number_finds_the_same_user() {
        let by_name = Account::resolve("www", PASSWD, GROUP).unwrap();
        assert_eq!(by_name, Account::resolve("33", PASSWD, GROUP).unwrap());
        assert_eq!((by_name.gid, by_name.groups.as_slice(), by_name.home.as_str()), (33, &[4][..], "/var/www"));
    }

    #[test]
    fn ids_that_mean_none_or_nobody_are_refused() {
        for (wanted, mapped) in [("4294967295", true), ("4294967295", false), ("65536", true), ("0:4294967295", false)]
        {
            let account = Account::resolve(wanted, PASSWD, GROUP).unwrap();
            assert!(matches!(account.check(mapped), Err(AccountError::Beyond { .. })), "{wanted}");
        }
        let hostile = "evil:x:4294967295:0::/:/bin/sh\nworse:x:1:4294967295::/:/bin/sh\n";
        for name in ["evil", "worse"] {
            assert!(Account::resolve(name, hostile, "").unwrap().check(true).is_err(), "{name}");
        }
        let member = Account::resolve("www", PASSWD, "bad:x:4294967295:www\n").unwrap();
        assert!(member.check(true).is_err());
        assert_eq!(Account::resolve("70000", PASSWD, GROUP).unwrap().check(false), Ok(()));
    }

    #[test]
    fn what_is_not_digits_is_a_name() {
        for wanted in ["+0", "-1", " 0", "0x0", "99999999999", ""] {
            assert!(Account::resolve(wanted, PASSWD, GROUP).is_err(), "'{wanted}'");
        }
    }

    #[test]
    fn a_group_can_be_given() {
        let account = Account::resolve("www:adm", PASSWD, GROUP).unwrap();
        assert_eq!((account.gid, account.groups.len()), (4, 0));
        assert_eq!(Account::resolve("1234:99", PASSWD, GROUP).unwrap().gid, 99);
    }

    #[test]
    fn further_groups_are_joined_once() {
        let mut account = Account::resolve("www", PASSWD, GROUP).unwrap();
        account.join(&["adm".into(), "44".into(), "44".into(), "33".into()], GROUP).unwrap();
        assert_eq!(account.groups, [4, 44]);
        assert_eq!(account.join(&["nobody".into()], GROUP), Err(AccountError::NoGroup("nobody".into())));
    }

    #[test]
    fn unknown_ones_are_named() {
        assert_eq!(Account::resolve("nobody", PASSWD, GROUP), Err(AccountError::NoUser("nobody".into())));
        assert_eq!(Account::resolve("www:nobody", PASSWD, GROUP), Err(AccountError::NoGroup("nobody".into())));
    }
}

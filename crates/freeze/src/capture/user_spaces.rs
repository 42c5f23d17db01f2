//! Captures user namespaces of processes' own, and says what stands in their way.

use crate::image::namespace::{MOST_RANGES, MOST_USER_SPACES};
use crate::image::namespace_kind::USERS;
use crate::image::{Credentials, UserSpace};
use crate::inspect::credentials::{self, IdMaps};
use crate::inspect::namespaces::{Beside, Space};
use crate::inspect::proc_file::{self, Lines};
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use pando_kernel::{CallError, Context, namespace};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A line of a map, told in the ids of the first process's namespace.
pub(crate) fn range(line: &str, id: &dyn Fn(u32) -> Result<u32, CallError>) -> Result<[u32; 3], CallError> {
    let malformed = || proc_file::malformed("reading a map of ids");
    let words: Vec<u32> = line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [first, outer, count] = words[..] else { return Err(malformed()) };
    let last = outer.checked_add(count.saturating_sub(1)).ok_or_else(malformed)?;
    let there = id(outer)?;
    // What lies together here lies together there, or it cannot be told in one line.
    if id(last)?.checked_sub(there) == Some(last - outer) { Ok([first, there, count]) } else { Err(malformed()) }
}

/// An id as those in a namespace know it.
pub(crate) fn inside(map: &[[u32; 3]], id: u32) -> Option<u32> {
    let of = |[_, outer, count]: &&[u32; 3]| id >= *outer && id - outer < *count;
    map.iter().find(of).map(|[first, outer, _]| first + (id - outer))
}

/// Captures all user namespaces that were found.
pub(crate) fn capture(spaces: &Beside, maps: &IdMaps) -> Result<Vec<UserSpace>, CallError> {
    let of = |space: &Space| {
        let process = space.process().ok_or_else(|| proc_file::malformed("looking for who is in a user namespace"))?;
        UserSpace::of(process, maps)
    };
    spaces.all().iter().map(of).collect()
}

pub(crate) const STOP: &str = "stop what made it";

/// What of them a clone's would not have. `others` lead to the namespaces of other kinds beside the first process's,
/// with what is to be said where one belongs to one of these.
pub(crate) fn objections(
    spaces: &Beside,
    members: &[Member],
    init: i32,
    others: impl Iterator<Item = (String, Refusal)>,
) -> Result<Vec<Refusal>, CallError> {
    if spaces.all().is_empty() {
        return Ok(Vec::new());
    }
    let maps = IdMaps::of(init)?;
    let home = USERS.of(init)?;
    let mut refusals = Vec::new();
    for (number, space) in spaces.all().iter().enumerate() {
        if number >= MOST_USER_SPACES {
            refusals.push(space.refusal(format!("more than {MOST_USER_SPACES} user namespaces"), STOP));
            break;
        }
        refusals.extend(objection(space, members, &maps, &home).filter(|_| !space.is_gone()));
    }
    let belongs_elsewhere = |at: &str| is_other(at, &home, |space| namespace::owner(space.as_fd())).unwrap_or_default();
    refusals.extend(others.filter(|(at, _)| belongs_elsewhere(at)).map(|(_, refusal)| refusal));
    Ok(refusals)
}

/// Whether what a namespace leads to is another user namespace than one that is told so.
fn is_other(at: &str, home: &str, lead: impl FnOnce(&File) -> io::Result<OwnedFd>) -> io::Result<bool> {
    let found = lead(&File::open(at)?)?;
    Ok(USERS.told(rustix::fs::fstat(found)?.st_ino) != *home)
}

fn objection(space: &Space, members: &[Member], maps: &IdMaps, home: &str) -> Option<Refusal> {
    let refused = |kind: &str| Some(space.refusal(kind.into(), STOP));
    let Some(process) = space.process() else {
        return Some(space.refusal("a descriptor of a user namespace of which no process is".into(), "close it"));
    };
    if is_other(&space.at, home, |space| namespace::parent(space.as_fd())).unwrap_or(true) {
        return refused("a user namespace in another than the guest's own");
    }
    let Ok(about) = UserSpace::of(process, maps) else {
        return refused("a user namespace with ids of the outside");
    };
    if about.users.len().max(about.groups.len()) > MOST_RANGES {
        return refused("a user namespace with too many ranges of ids");
    }
    let is_in = |member: &&Member| USERS.of(member.outer).is_ok_and(|link| space.is(&link));
    let is_nobody = |member: &&Member| !is_known(&about, member, maps);
    let nobody = members.iter().filter(|member| member.state != 'Z').filter(is_in).find(is_nobody)?;
    let kind = "its user or group is nobody in the user namespace that it is in".into();
    Some(Refusal { pid: nobody.pid, name: nobody.name.clone(), descriptor: None, kind, advice: "give it ids there" })
}

/// Whether a process's users and groups have names in a namespace. One that has gone meanwhile has nothing against it.
fn is_known(about: &UserSpace, member: &Member, maps: &IdMaps) -> bool {
    let Ok(status) = Lines::read(member.outer, "status") else { return true };
    credentials::read(&status, maps, 0).is_ok_and(|who| about.knows(&who))
}

impl UserSpace {
    pub(crate) fn of(outer: i32, maps: &IdMaps) -> Result<Self, CallError> {
        let ranges = |file: &str, id: &dyn Fn(u32) -> Result<u32, CallError>| {
            let text = proc_file::text(outer, file)?;
            text.lines().map(|line| range(line, id)).collect::<Result<Vec<_>, _>>()
        };
        let at = USERS.at(outer);
        let made = || namespace::maker(File::open(&at)?.as_fd());
        Ok(Self {
            users: ranges("uid_map", &|id| maps.user(id))?,
            groups: ranges("gid_map", &|id| maps.group(id))?,
            denies_groups: proc_file::text(outer, "setgroups")?.trim() == "deny",
            maker: maps.user(made().context(|| format!("asking who made {at}"))?)?,
        })
    }

    /// What users and groups are called in it. None of them may be nobody there. Further groups are the guest's.
    fn names(&self, who: &Credentials) -> Option<([u32; 4], [u32; 4])> {
        let all = |map: &[[u32; 3]], ids: [u32; 4]| {
            let ids: Option<Vec<u32>> = ids.into_iter().map(|id| inside(map, id)).collect();
            <[u32; 4]>::try_from(ids?).ok()
        };
        Some((all(&self.users, who.users)?, all(&self.groups, who.groups)?))
    }

    /// Whether a thread can be who it is in it.
    pub(crate) fn knows(&self, who: &Credentials) -> bool {
        self.names(who).is_some()
    }

    /// Who somebody is to those who are in it, and has all further groups already.
    pub(crate) fn seen(&self, who: &Credentials) -> Credentials {
        let (users, groups) = self.names(who).unwrap_or((who.users, who.groups));
        Credentials { users, groups, further: Vec::new(), ..who.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_as_the_namespace_has_them() {
        let space =
            UserSpace { users: vec![[0, 0, 1], [7, 107, 2]], groups: vec![[0, 0, 200]], ..UserSpace::default() };
        let who =
            |user: u32| Credentials { users: [user; 4], groups: [5; 4], further: vec![9], ..Credentials::default() };
        assert_eq!(space.seen(&who(108)), Credentials { users: [8; 4], groups: [5; 4], ..Credentials::default() });
        assert!(space.knows(&who(0)) && !space.knows(&who(1)) && !space.knows(&who(109)));
        let shifted = |id: u32| if id < 5 { Ok(id + 10) } else { Err(proc_file::malformed("outside")) };
        assert_eq!(range("      0   2   3", &shifted).unwrap(), [0, 12, 3]);
        assert!(range("0 2 4", &shifted).is_err() && range("0 2", &shifted).is_err());
    }
}

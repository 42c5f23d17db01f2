//! User namespaces of processes' own (user_namespaces(7)), as services have to whom all users are nobody but root and their own (`PrivateUsers`): a clone has
//! them again where they lie in the first process's and no other namespace belongs to them.
//!
//! Who makes one has all powers in it and none outside, so none is made by who makes a clone, but each by a helper that is there for nothing else. A process enters its own
//! when it needs no powers over the guest any more, alone: a process with threads may not. And who has no such powers may not say which number a thread gets:
//! the maker sets the counter of pids before each of them, in turns with the process.

use crate::credentials::{self, IdMaps};
use crate::image::namespace::{MOST_RANGES, MOST_USER_SPACES};
use crate::image::namespace_kind::USERS;
use crate::image::user_turns::turns;
use crate::image::{Credentials, Image, Process, UserSpace};
use crate::namespaces::{Beside, Space};
use crate::objects::Slots;
use crate::pid_counter;
use crate::proc_file::{self, Lines};
use crate::refusal::Refusal;
use crate::script::{Chapter, Writer};
use crate::staging::AT_FDCWD;
use crate::tree::Member;
use pando_kernel::{CallError, Context, namespace};
use pando_restorer::Special;
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

/// Those of an image.
pub(crate) fn capture(spaces: &Beside, maps: &IdMaps) -> Result<Vec<UserSpace>, CallError> {
    let of = |space: &Space| {
        let process = space.process().ok_or_else(|| proc_file::malformed("looking for who is in a user namespace"))?;
        UserSpace::of(process, maps)
    };
    spaces.all().iter().map(of).collect()
}

pub(crate) const STOP: &str = "stop what made it";

/// What of them a clone's would not have. `others` lead to the namespaces of other kinds beside the first process's, with what is to be said where one belongs to
/// one of these.
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

/// Writes the maker's steps: a namespace for each, which a helper makes. `pid` is the helper's, and free.
pub(crate) fn make(writer: &mut Writer, image: &Image, slots: Slots, pid: i32) {
    for (number, space) in image.user_spaces.iter().enumerate() {
        make_one(writer, slots, space, (pid, slots.user_space(number)));
    }
    for number in 0..turns(image).count() {
        let [own, others] = [slots.turn(number, false), slots.turn(number, true)];
        writer.special(MAKING, "making two sockets", Special::Pair, &[own, others, libc::SOCK_STREAM as u64]);
    }
}

const MAKING: Chapter = Writer::MAKING;

fn make_one(writer: &mut Writer, slots: Slots, space: &UserSpace, (pid, slot): (i32, u64)) {
    let [heard, said] = [slots.own_users(), slots.own_turn()];
    let byte = writer.words(&[0]);
    writer.special(MAKING, "making a pipe to a helper", Special::Pipe, &[heard, said]);
    let helper = writer.chapter();
    writer.fork(MAKING, pid, helper);
    help(writer, helper, space, said);
    writer.call(MAKING, "listening to a helper", libc::SYS_close, &[said]);
    writer.exact(MAKING, "waiting for a user namespace", libc::SYS_read, &[heard, byte, 1], 1);
    writer.call(MAKING, "listening no more", libc::SYS_close, &[heard]);
    if space.denies_groups {
        tell(writer, pid, "setgroups", "deny", heard);
    }
    for (file, ranges) in [("uid_map", &space.users), ("gid_map", &space.groups)] {
        let lines: Vec<String> =
            ranges.iter().map(|[first, outer, count]| format!("{first} {outer} {count}\n")).collect();
        if !lines.is_empty() {
            tell(writer, pid, file, &lines.concat(), heard);
        }
    }
    USERS.keep_of(writer, pid, slot);
    writer.call(MAKING, "ending a helper", libc::SYS_kill, &[pid as u64, libc::SIGKILL as u64]);
    writer.call(MAKING, "waiting for a helper's end", libc::SYS_wait4, &[pid as u64, 0, 0, 0]);
}

/// Writes the helper's steps. It has a memory of its own, into which others may look then, or nobody could write its maps. Nothing of the clone runs before it has ended.
fn help(writer: &mut Writer, helper: Chapter, space: &UserSpace, said: u64) {
    if space.maker != 0 {
        let user = u64::from(space.maker);
        writer.call(helper, "becoming who made a user namespace", libc::SYS_setresuid, &[user, user, user]);
    }
    writer.call(helper, "making a user namespace", libc::SYS_unshare, &[libc::CLONE_NEWUSER as u64]);
    let death = [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64];
    writer.call(helper, "ending with the maker", libc::SYS_prctl, &death);
    writer.call(helper, "becoming dumpable", libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, 1]);
    let byte = writer.words(&[0]);
    writer.exact(helper, "telling of a user namespace", libc::SYS_write, &[said, byte, 1], 1);
    writer.call(helper, "waiting for its end", libc::SYS_pause, &[]);
}

fn tell(writer: &mut Writer, pid: i32, file: &str, text: &str, slot: u64) {
    let path = writer.string(&format!("/proc/{pid}/{file}"));
    let (at, length) = (writer.data(text.as_bytes(), 1), text.len() as u64);
    let arguments = [AT_FDCWD, path, (libc::O_WRONLY | libc::O_CLOEXEC) as u64];
    writer.open(MAKING, format!("opening the {file} of a user namespace"), libc::SYS_openat, &arguments, slot);
    writer.exact(
        MAKING,
        format!("setting the {file} of a user namespace"),
        libc::SYS_write,
        &[slot, at, length],
        length,
    );
    writer.call(MAKING, "closing it", libc::SYS_close, &[slot]);
}

/// Writes a process's keeping of what it enters its own by, while it gives up everything else.
pub(crate) fn keep(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    let Some(space) = process.user_space else { return };
    let keep = |writer: &mut Writer, from: u64, to: u64| {
        writer.call(chapter, "keeping a user namespace", libc::SYS_dup3, &[from, to, 0]);
    };
    keep(writer, slots.user_space(space), slots.own_users());
    if let Some(number) = turns(image).position(|other| other.pid == process.pid) {
        keep(writer, slots.turn(number, true), slots.own_turn());
    }
}

/// Writes its entering. What groups it is in besides has to be said before: there it may be forbidden, and they may be nobody's.
pub(crate) fn enter(writer: &mut Writer, chapter: Chapter, process: &Process, slots: Slots) {
    let (Some(_), Some(thread)) = (process.user_space, process.threads.first()) else { return };
    let further: Vec<u8> = thread.credentials.further.iter().flat_map(|group| group.to_le_bytes()).collect();
    let (at, count) = (writer.data(&further, 8), thread.credentials.further.len() as u64);
    writer.call(chapter, "setting further groups", libc::SYS_setgroups, &[count, at]);
    USERS.enter(writer, chapter, slots.own_users());
    writer.call(chapter, "closing a user namespace", libc::SYS_close, &[slots.own_users()]);
}

/// Writes a process's part of a turn: `make` makes a thread, with the next number.
pub(crate) fn take_turn(writer: &mut Writer, chapter: Chapter, slots: Slots, make: impl FnOnce(&mut Writer)) {
    let byte = writer.words(&[0]);
    let arguments = [slots.own_turn(), byte, 1];
    writer.exact(chapter, "waiting for a thread's number", libc::SYS_read, &arguments, 1);
    make(writer);
    writer.exact(chapter, "telling that it was taken", libc::SYS_write, &arguments, 1);
}

/// Writes the maker's part of all turns, when everybody is forked; the counter is as it was then.
pub(crate) fn give_turns(writer: &mut Writer, image: &Image, slots: Slots, maker: i32) {
    let byte = writer.words(&[0]);
    // Who waits for an end that failed hears of that.
    for number in 0..turns(image).count() {
        writer.call(MAKING, "keeping one socket of two", libc::SYS_close, &[slots.turn(number, true)]);
    }
    for (number, process) in turns(image).enumerate() {
        let turn = slots.turn(number, false);
        for thread in &process.threads[1..] {
            pid_counter::choose(writer, slots, thread.tid);
            let send = [turn, byte, 1, libc::MSG_NOSIGNAL as u64, 0, 0];
            // A process that has failed says so itself.
            writer.attempt(MAKING, "telling that a number is the next", libc::SYS_sendto, &send);
            writer.attempt(MAKING, "waiting until it is taken", libc::SYS_read, &[turn, byte, 1]);
        }
    }
    if turns(image).next().is_some() {
        pid_counter::set(writer, slots, maker);
    }
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

    #[test]
    fn a_helper_makes_each_and_threads_are_numbered_in_turns() {
        use crate::image::Thread;
        let thread = |tid| Thread { tid, ..Thread::default() };
        let process = |pid: i32, tids: &[i32]| Process {
            pid,
            user_space: Some(0),
            threads: tids.iter().map(|tid| thread(*tid)).collect(),
            ..Process::default()
        };
        let image = Image {
            processes: vec![process(2, &[2]), process(3, &[3, 9, 8])],
            user_spaces: vec![UserSpace { users: vec![[0, 0, 1]], ..UserSpace::default() }],
            init: 1,
            ..Image::default()
        };
        let (mut writer, slots) = (Writer::new(), Slots::of(&image));
        make(&mut writer, &image, slots, 100);
        give_turns(&mut writer, &image, slots, 99);
        let text = format!("{:?}", writer.finish(99, 3, 1, 0));
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!(count("making a user namespace"), 1);
        // One process has further threads, two of them.
        assert_eq!(
            (count("making two sockets"), count("choosing the next pid"), count("waiting until it is taken")),
            (1, 2, 2)
        );
        // Groups may be set, and nobody is mapped.
        assert_eq!(
            (count("setting the uid_map"), count("setting the gid_map"), count("setting the setgroups")),
            (1, 0, 0)
        );
    }
}

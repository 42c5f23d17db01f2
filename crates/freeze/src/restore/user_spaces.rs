//! User namespaces of processes' own (user_namespaces(7)), as services have to whom all users are nobody but root and
//! their own (`PrivateUsers`): a clone has them again where they lie in the first process's and no other namespace
//! belongs to them.
//!
//! Who makes one has all powers in it and none outside, so none is made by who makes a clone, but each by a helper that
//! is there for nothing else. A process enters its own when it needs no powers over the guest any more, alone: a
//! process with threads may not. And who has no such powers may not say which number a thread gets: the maker sets the
//! counter of pids before each of them, in turns with the process.

use crate::image::namespace_kind::USERS;
use crate::image::user_turns::turns;
use crate::image::{Image, Process, UserSpace};
use crate::restore::pid_counter;
use crate::restore::script::{AT_FDCWD, Chapter, Writer};
use crate::restore::slots::Slots;
use pando_restorer::Special;

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

/// Writes the helper's steps. It has a memory of its own, into which others may look then, or nobody could write its
/// maps. Nothing of the clone runs before it has ended.
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

/// Writes its entering. What groups it is in besides has to be said before: there it may be forbidden, and they may be
/// nobody's.
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

#[cfg(test)]
mod tests {
    use super::*;

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

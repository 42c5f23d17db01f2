//! Process groups. One whose leader has ended can be joined by nobody who comes later: the kernel makes a group for a
//! process of that number alone. So one of its members, its *founder*, forks a helper with that number first, makes it
//! the leader, joins it and ends it; the others join the founder.

use crate::image::{Image, Process};
use crate::restore::script::{Chapter, Writer};
use pando_restorer::Special;

/// Whether a process founds its group.
pub(crate) fn founds(image: &Image, process: &Process) -> bool {
    let group = process.group;
    let is_led = group == 0 || group == image.init || group == process.session;
    let has_leader = || image.processes.iter().any(|other| other.pid == group);
    let is_first = || image.processes.iter().find(|other| other.group == group).is_some_and(|it| it.pid == process.pid);
    !is_led && is_first() && !has_leader()
}

/// Writes the steps of a process that leads no group, once all that it forks is there. `free` reports, and `free + 1`
/// is the gate.
pub(crate) fn join(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, free: u64) {
    let group = process.group as u64;
    if founds(image, process) {
        found(writer, chapter, process, free);
    } else if image
        .processes
        .iter()
        .any(|other| other.pid == process.group || founds(image, other) && other.group == process.group)
    {
        writer.await_call(chapter, "joining a process group", libc::SYS_setpgid, &[0, group]);
    }
}

fn found(writer: &mut Writer, chapter: Chapter, process: &Process, free: u64) {
    let group = process.group as u64;
    let helper = writer.chapter();
    writer.fork(chapter, process.group, helper);
    let byte = writer.words(&[0]);
    // It is killed before the gate opens, and sees the gate's end where the founder has failed.
    writer.attempt(helper, "waiting to be ended", libc::SYS_read, &[free + 1, byte, 1]);
    writer.special(helper, "ending a helper", Special::Exit, &[0, 0]);
    writer.call(chapter, "making a process group", libc::SYS_setpgid, &[group, group]);
    writer.call(chapter, "joining a process group", libc::SYS_setpgid, &[0, group]);
    writer.call(chapter, "ending a helper", libc::SYS_kill, &[group, libc::SIGKILL as u64]);
    await_end(writer, chapter, process.group);
}

/// Writes the wait for the end of a helper. The program of who has forked it hears nothing of that: once a signal is
/// ignored it does not wait any more, and those that waited for the program come later.
pub(crate) fn await_end(writer: &mut Writer, chapter: Chapter, helper: i32) {
    writer.call(chapter, "waiting for a helper's end", libc::SYS_wait4, &[helper as u64, 0, 0, 0]);
    let usual = writer.words(&[0; 4]);
    let arguments = [libc::SIGCHLD as u64, usual, 0, 8];
    writer.call(chapter, "forgetting a helper's end", libc::SYS_rt_sigaction, &arguments);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_member_of_a_group_without_a_leader_founds_it() {
        let process = |pid, group, session| Process { pid, group, session, ..Process::default() };
        let all = vec![process(2, 2, 2), process(3, 7, 2), process(4, 7, 2), process(5, 2, 2), process(6, 1, 1)];
        let image = Image { processes: all, init: 1, ..Image::default() };
        let founders: Vec<_> = image.processes.iter().filter(|one| founds(&image, one)).map(|one| one.pid).collect();
        assert_eq!(founders, [3]);
        let written = |number: usize| {
            let mut writer = Writer::new();
            join(&mut writer, Writer::MAKING, &image, &image.processes[number], 100);
            format!("{:?}", writer.finish(1, 1, 0, 0))
        };
        assert!(written(1).contains("forking process 7") && written(1).contains("making a process group"));
        assert!(!written(2).contains("forking") && written(2).contains("joining a process group"));
        assert_eq!(written(4), "", "that is the first process's");
    }
}

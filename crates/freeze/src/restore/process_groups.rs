//! Process groups. One whose leader has ended can be joined by nobody who comes later: the kernel makes a group for a
//! process of that number alone. So one of its members, its *founder*, forks a helper with that number first, makes it
//! the leader, joins it and ends it; the others join the founder.

use crate::image::{Image, Process};
use crate::restore::script::{Chapter, Writer};
use pando_restorer::Special;
use std::collections::{HashMap, HashSet};

/// The groups of an image's processes.
pub(crate) struct Groups {
    pids: HashSet<i32>,
    /// Who founds each of those that have to be founded.
    founders: HashMap<i32, i32>,
}

impl Groups {
    pub(crate) fn of(image: &Image) -> Self {
        let pids: HashSet<i32> = image.processes.iter().map(|process| process.pid).collect();
        let mut firsts: HashMap<i32, &Process> = HashMap::new();
        for process in &image.processes {
            firsts.entry(process.group).or_insert(process);
        }
        let is_led =
            |first: &Process| [0, image.init, first.session].contains(&first.group) || pids.contains(&first.group);
        let founders = firsts.into_iter().filter(|(_, first)| !is_led(first));
        Self { founders: founders.map(|(group, first)| (group, first.pid)).collect(), pids }
    }

    /// Whether a process founds its group.
    pub(crate) fn founds(&self, process: &Process) -> bool {
        self.founders.get(&process.group) == Some(&process.pid)
    }

    /// Writes the steps of a process that leads no group, once all that it forks is there. `free` reports, and
    /// `free + 1` is the gate.
    pub(crate) fn join(&self, writer: &mut Writer, chapter: Chapter, process: &Process, free: u64) {
        if self.founds(process) {
            found(writer, chapter, process, free);
        } else if self.pids.contains(&process.group) || self.founders.contains_key(&process.group) {
            let group = process.group as u64;
            writer.await_call(chapter, "joining a process group", libc::SYS_setpgid, &[0, group]);
        }
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
        let groups = Groups::of(&image);
        let founders: Vec<_> = image.processes.iter().filter(|one| groups.founds(one)).map(|one| one.pid).collect();
        assert_eq!(founders, [3]);
        let written = |number: usize| {
            let mut writer = Writer::new();
            groups.join(&mut writer, Writer::MAKING, &image.processes[number], 100);
            format!("{:?}", writer.finish(1, 1, 0, 0))
        };
        assert!(written(1).contains("forking process 7") && written(1).contains("making a process group"));
        assert!(!written(2).contains("forking") && written(2).contains("joining a process group"));
        assert_eq!(written(4), "", "that is the first process's");
    }
}

//! Snapshot children: a fork of each stopped process, which never runs and has its memory as it was. The processes run on while that is copied.
//!
//! A process cannot be forked from outside, so it is made to fork itself. Its own child would stay with it as a zombie that it never asked for; so what
//! it makes is a *messenger*, which shares its memory, forks the snapshot, ends, and is waited for by the process, all while that stands still. The
//! snapshot falls to the first process of the pid namespace, which reaps whatever dies. Memory is marked copy-on-write once a process, not twice.

use crate::image::{Image, Process};
use crate::injection::{self, Injection};
use crate::stop::Stopped;
use pando_kernel::outliving::Undivided;
use pando_kernel::trace::Thread;
use pando_kernel::{CallError, Context};

/// The snapshots of a tree. Dropped, they are gone.
pub(crate) struct Snapshots(Vec<(i32, Thread)>);

/// Forks a snapshot of every process that has memory. `None` where one cannot be had: memory that a fork leaves out, or no room for another process.
pub(crate) fn take(image: &Image, stopped: &[Stopped]) -> Option<Snapshots> {
    let mut snapshots = Snapshots(Vec::new());
    for process in image.processes.iter().filter(|process| !process.threads.is_empty()) {
        if process.areas.iter().any(|area| area.advice.contains(&(libc::MADV_DONTFORK as u32))) {
            return None;
        }
        let thread = stopped.iter().find(|stopped| stopped.member.pid == process.pid)?.threads.first()?;
        snapshots.0.push((process.pid, fork(thread, process).ok()?));
    }
    Some(snapshots)
}

impl Snapshots {
    /// The snapshot of a process, by its pid in its namespace.
    pub(crate) fn of(&self, pid: i32) -> Option<i32> {
        self.0.iter().find(|(whose, _)| *whose == pid).map(|(_, thread)| thread.tid())
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(_, thread)| thread.kill());
    }
}

fn fork(thread: &Thread, process: &Process) -> Result<Thread, CallError> {
    let what = || format!("taking a snapshot of process {}", process.pid);
    let instruction = injection::syscall_instruction(thread.tid(), &process.areas)?;
    let registers = thread.registers().context(what)?;
    let mask = thread.signal_mask().context(what)?;
    let injection = Injection::new(thread, registers, mask, instruction)?;
    // The messenger does not outlive this, or the process would have a child that it never asked for.
    let undivided = Undivided::begin();
    let (messenger, pid) = injection.fork(thread, libc::CLONE_VM as u64)?;
    let snapshot = injection.fork(&messenger, libc::SIGCHLD as u64).map(|(snapshot, _)| snapshot);
    messenger.kill();
    injection.call(libc::SYS_wait4, &[pid, 0, libc::__WALL as u64, 0])?;
    drop(undivided);
    snapshot
}

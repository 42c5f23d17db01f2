//! Snapshot children: a fork of each stopped process, which never runs and has its memory as it was. The processes run
//! on while that is copied.
//!
//! A process cannot be forked from outside, so it is made to fork itself. Its own child would stay with it as a zombie
//! that it never asked for; so what it makes is a *messenger*, which shares its memory, forks the snapshot, ends, and
//! is waited for by the process, all while that stands still. The snapshot falls to the first process of the pid
//! namespace, which reaps whatever dies: child subreapers among the processes are none meanwhile, or it would fall to
//! one of those, which may never ask for it. Memory is marked copy-on-write once a process, not twice.

use crate::image::{Image, Process};
use crate::stop::injection::{self, Injection};
use crate::stop::seize::Stopped;
use pando_kernel::process::subreaper::Suspended;
use pando_kernel::trace::Thread;
use pando_kernel::trace::survivor::Undivided;
use pando_kernel::{CallError, Context};
use std::collections::HashMap;

/// The snapshots of a tree. Dropped, they are gone.
pub(crate) struct Snapshots(HashMap<i32, Thread>);

/// Forks a snapshot of every process that has memory. `None` where one cannot be had: memory that a fork leaves out, or
/// no room for another process.
pub(crate) fn take(image: &Image, stopped: &[Stopped]) -> Option<Snapshots> {
    let mut snapshots = Snapshots(HashMap::new());
    let threads: HashMap<i32, &Thread> =
        stopped.iter().filter_map(|stopped| Some((stopped.member.pid, stopped.threads.first()?))).collect();
    let reapers = image.processes.iter().filter(|process| process.flags.subreaper && !process.threads.is_empty());
    let suspended: Option<Vec<_>> = reapers.map(|process| suspend(threads.get(&process.pid)?, process).ok()).collect();
    let _suspended = suspended?;
    for process in image.processes.iter().filter(|process| !process.threads.is_empty()) {
        if process.areas.iter().any(|area| area.advice.contains(&(libc::MADV_DONTFORK as u32))) {
            return None;
        }
        snapshots.0.insert(process.pid, fork(threads.get(&process.pid)?, process).ok()?);
    }
    Some(snapshots)
}

impl Snapshots {
    /// The snapshot of a process, by its pid in its namespace.
    pub(crate) fn of(&self, pid: i32) -> Option<i32> {
        self.0.get(&pid).map(Thread::tid)
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        self.0.drain().for_each(|(_, thread)| thread.kill());
    }
}

/// Has a child subreaper be none.
fn suspend<'a>(thread: &'a Thread, process: &Process) -> Result<Suspended<'a>, CallError> {
    let what = || format!("keeping orphans from process {}", process.pid);
    let instruction = injection::syscall_instruction(thread.tid(), &process.areas)?;
    let (registers, mask) = (thread.registers().context(what)?, thread.signal_mask().context(what)?);
    // Between its call and what is to be undone for that nobody hears of the end of who is to put it back.
    let undivided = Undivided::begin();
    let suspended = Suspended::new(thread, registers, mask, instruction);
    drop(undivided);
    suspended.context(what)
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

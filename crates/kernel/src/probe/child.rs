//! A child that does nothing, to hold namespaces and to be signalled.

use crate::process::pidfd;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// How long a child lives if nobody ends it: its parent may have been killed.
static LIFE: libc::timespec = libc::timespec { tv_sec: 10, tv_nsec: 0 };

/// The libc crate's own overflows its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The child. Dropping it kills and reaps it.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: i32,
    pub(super) process: OwnedFd,
    reaped: bool,
}

impl Child {
    /// Makes it (clone3(2), since Linux 5.3), in new namespaces by `flags` and, if given, in a control group
    /// (CLONE_INTO_CGROUP, since 5.7).
    pub(super) fn new(flags: i32, group: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let mut process: i32 = -1;
        // SAFETY: the structure is plain numbers, for which zero means "nothing".
        let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
        arguments.flags = u64::from(flags as u32) | libc::CLONE_PIDFD as u64;
        arguments.pidfd = (&raw mut process) as u64;
        arguments.exit_signal = libc::SIGCHLD as u64;
        if let Some(group) = group {
            arguments.flags |= CLONE_INTO_CGROUP;
            arguments.cgroup = group.as_raw_fd() as u64;
        }
        // SAFETY: no memory is shared, so the child returns here on a copy of this stack; being the copy of one thread
        // of perhaps many, it makes only system calls, which take no lock, and never returns from this block.
        let pid = unsafe {
            let pid = libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments));
            if pid == 0 {
                libc::syscall(libc::SYS_nanosleep, &raw const LIFE, std::ptr::null_mut::<libc::timespec>());
                libc::_exit(0);
            }
            pid
        };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        let process = unsafe { OwnedFd::from_raw_fd(process) };
        Ok(Self { pid: pid as i32, process, reaped: false })
    }

    /// Waits at most a second for its end, and reaps it; whether it ended.
    pub(super) fn ends(&mut self) -> bool {
        if !self.reaped && pidfd::wait_for_end(&self.process, Duration::from_secs(1)) {
            self.reap();
        }
        self.reaped
    }

    fn reap(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.pid);
        // Whatever it answers, there is no child of that number any more.
        let _ = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty());
        self.reaped = true;
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid) {
            // Its number is its own until it is reaped.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        self.reap();
    }
}

/// Does something in a thread of its own, which whatever it does to itself ends with.
pub(super) fn in_a_thread<T: Send>(action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, action)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the trial failed")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_is_killed_is_reaped() {
        let mut child = Child::new(0, None).unwrap();
        pidfd::send_signal(&child.process, libc::SIGKILL).unwrap();
        assert!(child.ends());
        let pid = child.pid;
        drop(child);
        let dropped = Child::new(0, None).unwrap().pid;
        for pid in [pid, dropped] {
            assert!(!std::path::Path::new(&format!("/proc/self/task/{pid}")).exists());
        }
    }
}

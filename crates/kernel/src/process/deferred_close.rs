//! Descriptors whose last closing takes the kernel long, closed by a process that nobody waits for.
//!
//! To end a group of fanotify marks the kernel waits for all readers of its lists, some 8 to 16 ms; to detach a BPF
//! program from a function of its own, until no task can be inside of that. Whoever closes last waits with it, also at
//! his end.

use crate::process::inheritance::close_all_but;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A process that holds descriptors, and ends when this value is dropped, or when whoever holds it ends.
#[derive(Debug)]
pub struct DeferredClose {
    _life: OwnedFd,
}

impl DeferredClose {
    /// Has a process hold `descriptor` too. It holds nothing else of this process's, is in a session of its own, and is
    /// nobody's child to wait for until this process ends: it has no signal that tells of its end.
    ///
    /// # Errors
    ///
    /// Those of pipe(2) and clone3(2).
    pub fn of(descriptor: impl AsFd) -> io::Result<Self> {
        Self::of_all(&[descriptor.as_fd()])
    }

    /// The same for several.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub fn of_all(descriptors: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let (wait, life) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let wait_number = wait.as_raw_fd();
        let mut kept: Vec<i32> = descriptors.iter().map(AsRawFd::as_raw_fd).chain([wait_number]).collect();
        kept.sort_unstable();
        // SAFETY: the structure is plain numbers, for which zero means "nothing".
        let clone: libc::clone_args = unsafe { std::mem::zeroed() };
        // SAFETY: no memory is shared, so the child returns here on a copy of this stack; being the copy of one thread
        // of perhaps many, it makes only system calls, which take no lock, and never returns from this block.
        let pid = unsafe {
            let pid = libc::syscall(libc::SYS_clone3, &raw const clone, size_of_val(&clone));
            if pid == 0 {
                hold(wait_number, &kept);
            }
            pid
        };
        if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { _life: life }) }
    }
}

/// The life of the process.
///
/// # Safety
///
/// Only in a child that shares no memory with its parent.
unsafe fn hold(wait: i32, kept: &[i32]) -> ! {
    // SAFETY: all of it is system calls on numbers and on this stack. Locks that the parent holds must end with it, and
    // so must its end of the pipe.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        close_all_but(kept);
        let mut byte = 0_u8;
        while libc::syscall(libc::SYS_read, wait, &raw mut byte, 1) < 0 && *libc::__errno_location() == libc::EINTR {}
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_held_until_it_is_let_go() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let close = DeferredClose::of(&write).unwrap();
        drop(write);
        rustix::io::ioctl_fionbio(&read, true).unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Err(rustix::io::Errno::AGAIN), "somebody holds it");
        drop(close);
        rustix::io::ioctl_fionbio(&read, false).unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0), "nobody does");
    }
}

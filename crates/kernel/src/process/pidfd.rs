//! Processes by descriptor: no signal ever reaches another process that got the same pid later.

use rustix::process::{Pid, PidfdFlags, Signal};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A descriptor of a process (pidfd_open(2), since Linux 5.3).
///
/// # Errors
///
/// ESRCH where the process has gone.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Sends a signal by number, real-time ones included (pidfd_send_signal(2), since Linux 5.1).
///
/// # Errors
///
/// ESRCH where the process has been reaped; EPERM where it may not be signalled.
pub fn send_signal(process: impl AsFd, number: i32) -> io::Result<()> {
    // SAFETY: any number may be passed; the kernel checks it.
    let signal = unsafe { Signal::from_raw_unchecked(number) };
    Ok(rustix::process::pidfd_send_signal(process, signal)?)
}

/// The process's number in this pid namespace, as the kernel tells it of the descriptor (/proc/self/fdinfo). It may be
/// another's by the time it is used, unless the process [has not ended](has_ended) then.
///
/// # Errors
///
/// ESRCH where the process has been reaped.
pub fn pid(process: impl AsFd) -> io::Result<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_fd().as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.filter(|pid| *pid > 0).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// Whether the process has ended.
pub fn has_ended(process: impl AsFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1))
}

/// Waits until the process has ended, at most `limit`; whether it has.
pub fn wait_for_end(process: impl AsFd, limit: std::time::Duration) -> bool {
    let mut fds = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    matches!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1))
}

/// How the process ended, as waitpid(2) gives it, if the kernel kept that (PIDFD_GET_INFO with PIDFD_INFO_EXIT, since
/// Linux 6.15; the descriptor must have been open when the process was reaped).
pub fn exit_status(process: impl AsFd) -> Option<i32> {
    /// `struct pidfd_info` in its first form, 64 bytes (linux/pidfd.h).
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        pid: u32,
        tgid: u32,
        ppid: u32,
        ids: [u32; 8],
        exit_code: i32,
    }
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    /// `_IOWR(0xFF, 11, struct pidfd_info)`
    const PIDFD_GET_INFO: libc::c_ulong = 0xC000_FF0B | (size_of::<Info>() as libc::c_ulong) << 16;
    let mut info = Info { mask: PIDFD_INFO_EXIT, ..Info::default() };
    // SAFETY: the request's number says how large the structure is that the kernel fills in.
    let result = unsafe { libc::ioctl(process.as_fd().as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

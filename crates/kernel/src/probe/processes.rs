//! Processes by descriptor, and what this process may do.

use super::child::Child;
use super::{Area, Finding, Verdict};
use crate::process::pidfd;
use rustix::thread::CapabilitySet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const AREA: Area = Area("processes");

/// `_IOWR(0xFF, 11, …)` of the first form of `struct pidfd_info`, which has 64 bytes (linux/pidfd.h).
const PIDFD_GET_INFO: libc::c_ulong = 0xC040_FF0B;

pub(super) fn find() -> Vec<Finding> {
    vec![
        AREA.needed("clone3", "5.3", Child::new(0, None), "guests' first processes cannot be made"),
        AREA.needed("pidfd", "5.3", signal(), "guests cannot be waited for and signalled without racing for pids"),
        AREA.wanted("PIDFD_GET_INFO", "6.13", info(), "processes are described by /proc alone, which pids may race"),
        AREA.wanted("exit status by pidfd", "6.15", exit_status(), "exit codes only come from who reaps the process"),
        AREA.wanted("CAP_SYS_RESOURCE", "2.2", resource(), "limits of guests cannot be raised above this process's"),
    ]
}

/// Opens a child, ends it by signal, and sees it ended.
fn signal() -> io::Result<()> {
    let mut child = Child::new(0, None)?;
    let process = pidfd::open(child.pid)?;
    pidfd::send_signal(&process, libc::SIGKILL)?;
    if child.ends() { Ok(()) } else { Err(io::Error::other("a killed process did not end")) }
}

fn info() -> io::Result<()> {
    let child = Child::new(0, None)?;
    ask(&child.process).map(drop)
}

fn ask(process: &OwnedFd) -> io::Result<[u64; 8]> {
    let mut info = [0_u64; 8];
    // SAFETY: the request's number says that the kernel may fill in 64 bytes, which the array has.
    match unsafe { libc::ioctl(process.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) } {
        0 => Ok(info),
        _ => Err(io::Error::last_os_error()),
    }
}

fn exit_status() -> Verdict {
    let ended = Child::new(0, None).and_then(|mut child| {
        pidfd::send_signal(&child.process, libc::SIGKILL)?;
        child.ends();
        Ok(child)
    });
    match ended {
        Err(error) => Verdict::of(&error),
        Ok(child) if pidfd::exit_status(&child.process) == Some(libc::SIGKILL) => Verdict::Granted,
        Ok(_) => Verdict::Missing,
    }
}

fn resource() -> Verdict {
    match rustix::thread::capabilities(None) {
        Err(errno) => Verdict::of(&errno.into()),
        Ok(sets) if sets.effective.contains(CapabilitySet::SYS_RESOURCE) => Verdict::Granted,
        Ok(_) => Verdict::Refused("not among this process's capabilities".into()),
    }
}

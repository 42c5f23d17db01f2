//! Who is at the other end of a connection: all of it is what the kernel says, and nothing what he says.

use anyhow::{Context, bail};
use pando_kernel::process::restraint;
use pando_kernel::process::user_rights::{UserIds, limits_of, peer, peer_process};
use pando_kernel::process::{self, pidfd};
use rustix::process::{Pid, getpriority_process};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A user's process that asks.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) ids: UserIds,
    pub(super) umask: u32,
    pub(super) nice: i32,
    /// How soon the kernel ends it for want of memory (/proc/PID/oom_score_adj).
    pub(super) oom_score: i32,
    pub(super) limits: Vec<(u32, u64, u64)>,
}

impl Caller {
    /// The one that has made a connection. One that is kept from what others of its user may do is refused: the command
    /// would be kept from nothing.
    pub(super) fn of(connection: impl AsFd) -> anyhow::Result<Self> {
        let connection = connection.as_fd().as_raw_fd();
        let (ids, pid) = peer(connection).context("cannot tell who asks")?;
        let process = process_of(connection, pid).context("cannot tell which process asks")?;
        let looked = look(pid);
        // All of that was read by its pid, and is of another if it has ended since.
        if pidfd::has_ended(&process) {
            bail!("the process that asks has ended");
        }
        let Looked { restraint, umask, nice, oom_score, limits } =
            looked.context("cannot look at the process that asks")?;
        if let Some(what) = restraint {
            bail!("the process that asks {what}, and what it may not do no transaction does for it");
        }
        Ok(Self { ids, umask, nice, oom_score, limits })
    }
}

/// What /proc and the kernel say of it.
struct Looked {
    restraint: Option<String>,
    umask: u32,
    nice: i32,
    oom_score: i32,
    limits: Vec<(u32, u64, u64)>,
}

fn look(pid: i32) -> std::io::Result<Looked> {
    let status = process::read(pid, "status")?;
    let umask = status.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
    let nice = getpriority_process(Pid::from_raw(pid))?;
    let oom_score = process::read(pid, "oom_score_adj")?.trim().parse().unwrap_or(0);
    let (restraint, limits) = (restraint::of(pid)?, limits_of(pid)?);
    Ok(Looked { restraint, umask: umask.unwrap_or(0o077), nice, oom_score, limits })
}

/// A kernel that is older than Linux 6.5 says no more than the pid that it was.
fn process_of(connection: i32, pid: i32) -> std::io::Result<OwnedFd> {
    match peer_process(connection) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOPROTOOPT.raw_os_error()) => pidfd::open(pid),
        process => process,
    }
}

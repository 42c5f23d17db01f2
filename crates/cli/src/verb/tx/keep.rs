//! Who answers the calls that daemons of a committed transaction make: the kernel goes on asking, as long as they live.

use crate::state_root::StateRoot;
use anyhow::Context;
use pando_tx::{Listener, Settled};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Its standard input is where the calls arrive. It ends with the last of them.
#[derive(Debug, clap::Args)]
pub(super) struct Keep {}

impl Keep {
    /// Starts it, where there are any.
    pub(super) fn start_for(settled: &Settled, listener: Option<Listener>) -> anyhow::Result<()> {
        listener.filter(|_| !settled.moved.is_empty()).map_or(Ok(()), Self::start)
    }

    fn start(listener: Listener) -> anyhow::Result<()> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("pando").args(["tx", "keep"]).current_dir("/");
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(drop).context("cannot start a process that answers for the daemons")
    }

    pub(super) fn run(self, _root: &StateRoot) -> anyhow::Result<u8> {
        rustix::process::setsid().context("cannot leave the session")?;
        let listener = std::io::stdin().as_fd().try_clone_to_owned().context("cannot hear of the calls")?;
        Listener::from(listener).let_all_through().context("cannot answer for the daemons")?;
        Ok(0)
    }
}

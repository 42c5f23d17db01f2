//! `pando hold-terminal`: keeps the master of a guest's terminal open after its user has detached.
//!
//! A terminal whose master is closed hangs up, and its processes with it; one whose master is not read fills up, and
//! they stop. The daemon cannot keep it: it may be restarted at any time, and a terminal's master cannot be found
//! again.

use super::Verb;
use crate::state_root::StateRoot;
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::stdin;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

#[derive(Debug, clap::Args)]
pub(crate) struct HoldTerminal {}

impl Verb for HoldTerminal {
    const NAME: &'static str = "hold-terminal";
    const ABOUT: &'static str = "Keep a terminal open that its user has left; the command starts it";
    const EXAMPLES: &'static str = "";
    const HIDDEN: bool = true;

    fn run(self, _: &StateRoot) -> anyhow::Result<u8> {
        rustix::process::setsid().context("cannot leave the session of the caller")?;
        let mut dropped = [0; 4096];
        loop {
            match rustix::io::read(stdin(), &mut dropped) {
                Ok(0) => return Ok(0),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    poll(&mut [PollFd::from_borrowed_fd(stdin(), PollFlags::IN)], None)
                        .context("cannot wait for the terminal")?;
                }
                // The last process has closed it.
                Err(_) => return Ok(0),
            }
        }
    }
}

/// Leaves `master` to a process of its own.
pub(crate) fn hold(master: OwnedFd) -> anyhow::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pando").arg("hold-terminal").env_clear().current_dir("/");
    command.stdin(master).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(drop).context("cannot keep the terminal open for the command, which ends with it")
}

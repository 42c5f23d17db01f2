//! `pando carry-output`: carries what a command's descendants print into a file of the caller's, after `pando` has
//! ended with the command.
//!
//! A guest prints into a file through a pipe (`session::stdio`). Processes that the command leaves behind would be
//! killed by the next word they print, were nobody there to take it.

use super::Verb;
use crate::session::End;
use crate::state_root::StateRoot;
use anyhow::Context;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::fcntl_dupfd_cloexec;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

#[derive(Debug, clap::Args)]
pub(crate) struct CarryOutput {}

impl Verb for CarryOutput {
    const NAME: &'static str = "carry-output";
    const ABOUT: &'static str = "Carry what a command's descendants print into a file; the command starts it";
    const EXAMPLES: &'static str = "";
    const HIDDEN: bool = true;

    fn run(self, _: &StateRoot) -> anyhow::Result<u8> {
        rustix::process::setsid().context("cannot leave the session of the caller")?;
        // Nobody hears of a failure; the descendants do, as of every pipe whose reader has gone.
        Ok(u8::from(io::copy(&mut io::stdin().lock(), &mut io::stdout().lock()).is_err()))
    }
}

/// Leaves what comes out of `source` and goes into `sink` to a process of its own.
pub(crate) fn carry_on(source: End, sink: End) -> anyhow::Result<()> {
    let copy = |end: &End| fcntl_dupfd_cloexec(end.as_fd(), 3).context("cannot pass a descriptor on");
    let (source, sink) = (copy(&source)?, copy(&sink)?);
    let flags = fcntl_getfl(&source).context("cannot look at a pipe")?;
    fcntl_setfl(&source, flags - OFlags::NONBLOCK).context("cannot change a pipe")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pando").arg("carry-output").env_clear().current_dir("/");
    command.stdin(source).stdout(sink).stderr(Stdio::null());
    command.spawn().map(drop).context("cannot leave the output to a process of its own")
}

//! What lies below a file system in memory, copied into it (`tmpcopyup`) within the container's control groups.
//!
//! The kernel charges memory to the group of the process that fills it. An image says how much there is to copy, so
//! this command does not do it in its caller's group: it executes itself once more, and that process walks into the
//! container's groups before it copies. Its standard input is the directory that is copied, and its standard output
//! the one that is filled.

use anyhow::{Context, Result, bail};
use pando_kernel::file::tree_copy::Copying;
use rustix::process::Signal;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The word by which this program is told to be that process.
pub(crate) const VERB: &str = "copy-up";

/// Copies a directory into an empty one, in a process that walks into groups by these files.
pub(crate) fn within(groups: &[PathBuf], from: OwnedFd, onto: OwnedFd) -> Result<()> {
    const KILL: i32 = 9;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pando-oci").arg(VERB).args(groups).env_clear().current_dir("/");
    command.stdin(Stdio::from(from)).stdout(Stdio::from(onto)).stderr(Stdio::piped());
    let ended = command.output().context("starting this program once more")?;
    if ended.status.success() {
        return Ok(());
    }
    if ended.status.signal() == Some(KILL) {
        bail!(
            "the kernel ended it, as a rule because there is more than the container's limit of memory allows; \
             raise the limit, or mount it without tmpcopyup"
        );
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    bail!("{}", said.trim().trim_start_matches("pando-oci: "))
}

/// What that process does.
pub(crate) fn copy(groups: &[PathBuf]) -> Result<()> {
    // Should the command be killed, nothing of it goes on.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("asking to end with the command")?;
    for group in groups {
        fs::write(group, "0").with_context(|| format!("error adding pid to {}", group.display()))?;
    }
    let (from, onto) = (std::io::stdin(), std::io::stdout());
    Copying::new(from.as_fd(), onto.as_fd(), u64::MAX, &mut |_, _| {}).all()?;
    Ok(())
}

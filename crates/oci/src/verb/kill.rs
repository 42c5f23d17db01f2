//! `kill`: a signal to a container's process, or to all of them.

use crate::container::{self, Status};
use anyhow::{Context, Result, bail};
use pando_kernel::{process::pidfd, process::signal};
use std::path::Path;

pub(crate) fn run(root: &Path, id: &str, word: &str, all: bool) -> Result<()> {
    let number = signal::number(word).with_context(|| format!("'{word}' is no signal"))?;
    let (home, record) = container::look(root, id)?;
    let status = home.status(&record);
    if all {
        // Some may be left of a container whose first process has ended, on the host's processes.
        record.groups.signal(number);
        return Ok(());
    }
    if !matches!(status, Status::Created | Status::Running | Status::Paused) {
        bail!("container not running");
    }
    let process = pidfd::open(record.pid).context("container not running")?;
    // Looked at after it was opened: a number may have become another's.
    if !record.lives() {
        bail!("container not running");
    }
    pidfd::send_signal(&process, number).context("sending the signal")
}

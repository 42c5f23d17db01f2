//! `kill`: a signal to a container's process, or to all of them.

use crate::container::{self, Status};
use anyhow::{Context, Result, anyhow, bail};
use oci_spec::runtime::{Linux, LinuxNamespaceType};
use pando_kernel::{process::pidfd, process::signal};
use std::path::Path;

pub(crate) fn run(root: &Path, id: &str, word: &str, all: bool) -> Result<()> {
    const KILL: i32 = 9;
    // 0 asks whether there is somebody to send one to.
    let number =
        if word == "0" { 0 } else { signal::number(word).with_context(|| format!("'{word}' is no signal"))? };
    let (home, record) = container::look(root, id)?;
    let status = home.status(&record);
    if number == 0 {
        return if all || record.lives() { Ok(()) } else { Err(anyhow!("container not running")) };
    }
    // Others go with a first process that is theirs alone; without that they are to end as well.
    let shared = !record.spec()?.linux().as_ref().is_some_and(owns_processes);
    if shared && number == KILL && status != Status::Creating {
        if record.groups.processes().is_empty() {
            bail!("container not running");
        }
        record.groups.signal(number);
        return Ok(());
    }
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

/// Whether the container's first process is that of a namespace of processes.
fn owns_processes(linux: &Linux) -> bool {
    let kind = LinuxNamespaceType::Pid;
    linux.namespaces().iter().flatten().any(|namespace| namespace.typ() == kind && namespace.path().is_none())
}

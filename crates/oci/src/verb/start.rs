//! `start`: what was created becomes its program.

use super::create::call;
use crate::container::{self, Home, Record, Status};
use crate::launch::{self, Supplies, words};
use crate::log::Log;
use crate::plan::process::{execute, last_filter};
use crate::plan::{Plan, START};
use crate::{bundle, hook};
use anyhow::{Context, Result, bail};
use pando_kernel::socket::packet;
use pando_shim::{MAX_MESSAGE, Report};
use std::path::Path;

pub(crate) fn run(root: &Path, id: &str, log: &Log) -> Result<()> {
    let (home, record) = container::open(root, id)?;
    match home.status(&record) {
        Status::Created => start(&home, &record, log),
        Status::Stopped => bail!("cannot start a container that has stopped"),
        status => bail!("cannot start an already {} container", status.word()),
    }
}

/// Starts it, and waits until its program is executed.
pub(crate) fn start(home: &Home, record: &Record, log: &Log) -> Result<()> {
    let spec = record.spec()?;
    let process = spec.process().clone().context("process property must not be empty")?;
    let socket = packet::connect(&home.socket()).context("connecting to the container's process")?;
    packet::send(&socket, &[START], &[]).context("speaking to the container's process")?;
    let inside = spec.hooks().as_ref().and_then(|hooks| hooks.start_container().clone()).unwrap_or_default();
    if !inside.is_empty() {
        let mut plan = Plan::new();
        call(&mut plan, "startContainer", &inside)?;
        let filter = spec.linux().as_ref().and_then(|linux| linux.seccomp().clone());
        last_filter(&mut plan, &process, filter.as_ref())?;
        execute(&mut plan, &bundle::with_home(process.clone(), &record.rootfs))?;
        let state = Some(record.state(Status::Created));
        let mut supplies = Supplies { state, ..Supplies::default() };
        for batch in &plan.batches {
            launch::send(&socket, batch, &mut supplies)?;
        }
    }
    let mut bytes = [0; MAX_MESSAGE];
    let (length, _) = packet::receive(&socket, &mut bytes).context("listening to the container's process")?;
    if length > 0 {
        let report: Report = postcard::from_bytes(&bytes[..length]).context("reading a report")?;
        let name = process.args().as_ref().and_then(|words| words.first()).map_or("", String::as_str);
        if inside.is_empty() {
            bail!("{}", words(&format!("exec: \"{name}\""), report.errno));
        }
        bail!("{}", words("starting after the startContainer hooks", report.errno));
    }
    let _ = std::fs::remove_file(home.socket());
    started(record, log);
    Ok(())
}

/// Tells hooks that the container runs.
pub(crate) fn started(record: &Record, log: &Log) {
    let hooks = record.spec().ok().and_then(|spec| spec.hooks().clone()).and_then(|hooks| hooks.poststart().clone());
    if let Err(error) = hook::run("poststart", &hooks.unwrap_or_default(), &record.state(Status::Running)) {
        // The container runs; the specification has it go on.
        log.warning(&format!("{error:#}"));
    }
}

//! `start`: what was created becomes its program.

use super::create::call;
use crate::agent::Agent;
use crate::container::{self, Home, Record, Status};
use crate::launch::{self, Supplies, words};
use crate::plan::process::{execute, last_filter};
use crate::plan::{Plan, START, seccomp};
use crate::{bundle, hook};
use anyhow::{Context, Result, bail};
use pando_kernel::{process::pidfd, socket::packet};
use std::path::Path;

pub(crate) fn run(root: &Path, id: &str) -> Result<()> {
    let (home, record) = container::open(root, id)?;
    match home.status(&record) {
        Status::Created => start(&home, &record),
        Status::Stopped => bail!("cannot start a container that has stopped"),
        status => bail!("cannot start an already {} container", status.word()),
    }
}

/// Starts it, and waits until its program is executed.
pub(crate) fn start(home: &Home, record: &Record) -> Result<()> {
    let spec = record.spec()?;
    let process = spec.process().clone().context("process property must not be empty")?;
    let socket = packet::connect(&home.socket()).context("connecting to the container's process")?;
    // Its program may have ended, and be waited for, before its beginning is heard of.
    let running = pidfd::open(record.pid).context("watching the container's process")?;
    packet::send(&socket, &[START], &[]).context("speaking to the container's process")?;
    let filter = spec.linux().as_ref().and_then(|linux| linux.seccomp().clone());
    let mut rest = None;
    let inside = spec.hooks().as_ref().and_then(|hooks| hooks.start_container().clone()).unwrap_or_default();
    if !inside.is_empty() {
        let mut plan = Plan::new();
        let of_program = bundle::with_home(process.clone(), &record.rootfs).env().clone().unwrap_or_default();
        let filter = filter.as_ref().map(seccomp::filter).transpose()?;
        // They are looked for inside, so they are programs of the container's as well.
        call(&mut plan, "startContainer", &inside, &of_program, filter.as_ref())?;
        last_filter(&mut plan, &process, filter.as_ref());
        execute(&mut plan, &bundle::with_home(process.clone(), &record.rootfs))?;
        let state = Some(record.state(Status::Created));
        let mut supplies = Supplies { state, ..Supplies::default() };
        for batch in &plan.batches {
            launch::send(&socket, batch, &mut supplies)?;
        }
        rest = Some(plan);
    }
    let agent = Agent::of(filter.as_ref(), record.state(Status::Creating))?;
    if let Some(report) = launch::await_program(&socket, (record.pid, &running), agent.as_ref())? {
        let name = process.args().as_ref().and_then(|words| words.first()).map_or("", String::as_str);
        let came = rest.as_ref().and_then(|plan| Some(plan.label(report.step.checked_sub(record.steps)?)));
        bail!("{}", words(came.unwrap_or(&format!("exec {name}")), report.errno));
    }
    let _ = std::fs::remove_file(home.socket());
    started(record)
}

/// Tells hooks that the container runs. One that fails ends the container.
pub(crate) fn started(record: &Record) -> Result<()> {
    const KILL: i32 = 9;
    let spec = record.spec()?;
    let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.poststart().as_deref()).unwrap_or_default();
    hook::run("poststart", hooks, &record.state(Status::Running)).inspect_err(|_| {
        if let Ok(process) = pidfd::open(record.pid)
            && record.lives()
        {
            let _ = pidfd::send_signal(&process, KILL);
        }
    })
}

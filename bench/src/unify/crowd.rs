//! Guests that use all of their system once, and stay.

use super::roots::Roots;
use crate::interrupt;
use crate::own_pando::OwnPando;
use anyhow::Context;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Every program and library is read, as by a system that is in use, and the interpreters run.
pub(super) const WORK: &str = "find /usr /etc /var/lib -xdev -type f -exec cat {} + >/dev/null 2>&1; perl -e 1; \
    echo ready; exec sleep 1000000";

/// How long one guest may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Guests that are gone with this value.
pub(super) struct Separate {
    children: Vec<Child>,
    /// Seconds from the command to the end of the work, of each.
    pub(super) times: Vec<f64>,
}

impl Drop for Separate {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a guest on each tree as it lies there, one after another.
pub(super) fn separate(roots: &Roots, pando: &OwnPando) -> anyhow::Result<Separate> {
    let mut crowd = Separate { children: Vec::new(), times: Vec::new() };
    for (number, tree) in roots.trees().iter().enumerate() {
        interrupt::check()?;
        let since = Instant::now();
        let mut command = pando.command();
        command.args(["run", "--name", &format!("s{number}"), "--from"]).arg(tree).args(["--", "sh", "-c", WORK]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut said = [0; 6];
        let output = child.stdout.as_mut().context("its output is a pipe")?.read_exact(&mut said);
        crowd.children.push(child);
        output.with_context(|| format!("guest s{number} ended before it was ready"))?;
        crowd.times.push(since.elapsed().as_secs_f64());
    }
    Ok(crowd)
}

/// Starts guests that were created, one after another; seconds from the command to the end of the work, of each.
pub(super) fn unified(number: usize, pando: &OwnPando) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for number in 0..number {
        interrupt::check()?;
        let name = format!("g{number}");
        let since = Instant::now();
        let done = pando.command().args(["start", &name]).output()?;
        anyhow::ensure!(done.status.success(), "start: {}", String::from_utf8_lossy(&done.stderr));
        await_ready(&pando.state().join("guests").join(&name).join("log"), since)?;
        times.push(since.elapsed().as_secs_f64());
    }
    Ok(times)
}

fn await_ready(log: &Path, since: Instant) -> anyhow::Result<()> {
    while !std::fs::read_to_string(log).is_ok_and(|text| text.contains("ready")) {
        anyhow::ensure!(since.elapsed() < PATIENCE, "the guest of {} is never ready", log.display());
        interrupt::pause(Duration::from_millis(2))?;
    }
    Ok(())
}

/// Removes a guest.
pub(super) fn remove(pando: &OwnPando, name: &str) -> anyhow::Result<()> {
    let done = pando.command().args(["rm", "--force", name]).output()?;
    anyhow::ensure!(done.status.success(), "rm: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

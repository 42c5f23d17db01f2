//! Guests that use their system and stay.

use crate::interrupt;
use crate::own_pando::OwnPando;
use anyhow::Context;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Every program and library is read, as by a system that is in use, and the interpreters run.
pub(super) const WORK: &str = "find /usr /etc /var/lib -xdev -type f -exec cat {} + >/dev/null 2>&1; perl -e 1; \
    echo ready; exec sleep 1000000";

/// How long one guest may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Guests on trees of their own, as these lie there. They are gone with this value.
#[derive(Default)]
pub(super) struct Separate {
    children: Vec<Child>,
}

impl Drop for Separate {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Separate {
    /// Starts a guest on a tree; seconds from the command to the end of the work.
    pub(super) fn start(&mut self, pando: &OwnPando, tree: &Path, work: &str) -> anyhow::Result<f64> {
        interrupt::check()?;
        let since = Instant::now();
        self.launch(pando, tree, work)?;
        self.await_ready(self.children.len() - 1)?;
        Ok(since.elapsed().as_secs_f64())
    }

    /// Starts guests on all trees at once; seconds until the last has done its work.
    pub(super) fn start_together(&mut self, pando: &OwnPando, trees: &[PathBuf], work: &str) -> anyhow::Result<f64> {
        let since = Instant::now();
        trees.iter().try_for_each(|tree| self.launch(pando, tree, work))?;
        (0..self.children.len()).try_for_each(|number| self.await_ready(number))?;
        Ok(since.elapsed().as_secs_f64())
    }

    fn launch(&mut self, pando: &OwnPando, tree: &Path, work: &str) -> anyhow::Result<()> {
        let name = format!("s{}", self.children.len());
        let mut command = pando.command();
        command.args(["run", "--name", &name, "--from"]).arg(tree).args(["--", "sh", "-c", work]);
        self.children.push(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
        Ok(())
    }

    fn await_ready(&mut self, number: usize) -> anyhow::Result<()> {
        interrupt::check()?;
        let mut said = [0; 6];
        let child = &mut self.children[number];
        if child.stdout.as_mut().context("its output is a pipe")?.read_exact(&mut said).is_err() {
            anyhow::bail!("guest s{number} ended before it was ready: {}", child.wait()?);
        }
        Ok(())
    }

    /// Ends all of them, and waits until nothing of them is left.
    pub(super) fn end(self, pando: &OwnPando) -> anyhow::Result<()> {
        drop(self);
        let until = Instant::now() + PATIENCE;
        loop {
            let listed = pando.command().args(["ls", "-q"]).output()?;
            let text = String::from_utf8_lossy(&listed.stdout).into_owned();
            let names: Vec<&str> = text.lines().filter(|name| name.starts_with('s')).collect();
            if names.is_empty() {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < until, "guests do not end: {names:?}");
            // A client that was killed takes no guest with it.
            pando.command().args(["rm", "--force"]).args(&names).output()?;
            interrupt::pause(Duration::from_millis(100))?;
        }
    }
}

/// The name of the guest of that number that was created.
pub(super) fn name(number: usize) -> String {
    format!("g{number}")
}

/// Starts a guest that was created; seconds from the command to the end of the work.
pub(super) fn start_unified(pando: &OwnPando, number: usize) -> anyhow::Result<f64> {
    start_unified_together(pando, number..number + 1)
}

/// Starts several at once; seconds until the last has done its work.
pub(super) fn start_unified_together(pando: &OwnPando, numbers: std::ops::Range<usize>) -> anyhow::Result<f64> {
    interrupt::check()?;
    let log = |number| pando.state().join("guests").join(name(number)).join("log");
    let said: Vec<u64> = numbers.clone().map(|number| log(number).metadata().map_or(0, |log| log.len())).collect();
    let since = Instant::now();
    let done = pando.command().arg("start").args(numbers.clone().map(name)).output()?;
    anyhow::ensure!(done.status.success(), "start: {}", String::from_utf8_lossy(&done.stderr));
    for (number, said) in numbers.zip(said) {
        await_ready(&log(number), said, since)?;
    }
    Ok(since.elapsed().as_secs_f64())
}

fn await_ready(log: &Path, said: u64, since: Instant) -> anyhow::Result<()> {
    let is_ready = |text: String| text.get(said as usize..).is_some_and(|new| new.contains("ready"));
    while !std::fs::read_to_string(log).is_ok_and(is_ready) {
        anyhow::ensure!(since.elapsed() < PATIENCE, "the guest of {} is never ready", log.display());
        interrupt::pause(Duration::from_millis(2))?;
    }
    Ok(())
}

/// Stops guests that were created.
pub(super) fn stop(pando: &OwnPando, numbers: std::ops::Range<usize>) -> anyhow::Result<()> {
    let done = pando.command().args(["kill"]).args(numbers.map(name)).output()?;
    anyhow::ensure!(done.status.success(), "kill: {}", String::from_utf8_lossy(&done.stderr));
    let until = Instant::now() + PATIENCE;
    loop {
        let listed = pando.command().args(["ls", "--json"]).output()?;
        let guests: serde_json::Value = serde_json::from_slice(&listed.stdout)?;
        let mut states = guests.as_array().into_iter().flatten().map(|guest| guest["state"].as_str().unwrap_or(""));
        if states.all(|state| state == "stopped") {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < until, "guests do not stop");
        interrupt::pause(Duration::from_millis(50))?;
    }
}

/// Creates a guest from a tree, that does the work when it is started; seconds that it takes.
pub(super) fn create(pando: &OwnPando, name: &str, tree: &Path, work: &str) -> anyhow::Result<f64> {
    let since = Instant::now();
    let mut command = pando.command();
    let done = command.args(["create", name, "--from"]).arg(tree).args(["--", "sh", "-c", work]).output()?;
    anyhow::ensure!(done.status.success(), "create: {}", String::from_utf8_lossy(&done.stderr));
    Ok(since.elapsed().as_secs_f64())
}

/// Removes a guest.
pub(super) fn remove(pando: &OwnPando, name: &str) -> anyhow::Result<()> {
    let done = pando.command().args(["rm", "--force", name]).output()?;
    anyhow::ensure!(done.status.success(), "rm: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

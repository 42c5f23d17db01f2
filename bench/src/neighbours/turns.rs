//! Turns: while the database works on, its neighbour stands still for some seconds and does its worst for some, again
//! and again. What a database does by itself differs by a tenth from one start of its clients to the next, and drifts
//! with the machine; neighbouring seconds of one run differ by less.

use super::database::Database;
use super::{NEIGHBOUR, Neighbour};
use crate::interrupt;
use crate::report::Report;
use crate::varlink::Client;
use anyhow::Context;
use pando_api::Method;
use std::path::{Path, PathBuf};

/// Seconds that the neighbour stands still, and those that it does not.
const STILL: usize = 5;
const BUSY: usize = 6;

/// What is done in a second of a run, counted from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    /// The neighbour has just begun or ended, or the database has.
    NotCounted,
    /// The database is alone, before the turn of that number.
    Alone(usize),
    /// It is not: the turn of that number.
    Beside(usize),
}

fn is_busy(second: usize) -> bool {
    second % (STILL + BUSY) >= STILL
}

fn second(number: usize) -> Second {
    let turn = number / (STILL + BUSY);
    match number.checked_sub(1).map(is_busy) {
        None => Second::NotCounted,
        Some(before) if before != is_busy(number) => Second::NotCounted,
        Some(true) => Second::Beside(turn),
        Some(false) => Second::Alone(turn),
    }
}

/// A guest that can be made to stand still, with all that it started.
struct Held(PathBuf);

impl Held {
    fn of(client: &mut Client) -> anyhow::Result<Self> {
        let inspected = client.call(&Method::Inspect { name: NEIGHBOUR.into() })?;
        let pid = inspected["guest"]["status"]["pid"].as_i64().context("a neighbour has a first process")?;
        let path = format!("/proc/{pid}/cgroup");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let group =
            text.lines().find_map(|line| line.strip_prefix("0::/")).context("it is in no group of version 2")?;
        let mounts = pando_kernel::mount::mounts()?;
        let unified = mounts.iter().find(|mount| mount.kind == "cgroup2").context("version 2 is not mounted")?;
        Ok(Self(unified.at.join(group).join("cgroup.freeze")))
    }

    fn hold(&self, still: bool) -> anyhow::Result<()> {
        let word = if still { "1" } else { "0" };
        std::fs::write(&self.0, word).with_context(|| format!("cannot write {}", self.0.display()))
    }
}

/// Measures as many turns beside a neighbour, which comes for them and goes.
pub(super) fn take(
    database: &Database<'_>,
    client: &mut Client,
    root: &Path,
    neighbour: &Neighbour,
    turns: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    neighbour.come(client, root)?;
    let held = Held::of(client)?;
    held.hold(true)?;
    let seconds = turns * (STILL + BUSY) + STILL;
    let mut alone = vec![Vec::new(); turns + 1];
    let mut beside = vec![Vec::new(); turns];
    let before = super::used(client)?;
    let mut number = 0;
    database.each_second(seconds, &mut |throughput| {
        interrupt::check()?;
        match second(number) {
            Second::Alone(turn) => alone[turn].push(throughput),
            Second::Beside(turn) if turn < turns => beside[turn].push(throughput),
            _ => {}
        }
        number += 1;
        if is_busy(number) != is_busy(number - 1) {
            held.hold(!is_busy(number))?;
        }
        Ok(())
    })?;
    let used = super::used(client)? - before;
    client.call(&Method::Remove { name: NEIGHBOUR.into(), force: true })?;
    let processors = std::thread::available_parallelism()?.get() as f64;
    let could = (turns * BUSY * 1000) as f64 * processors;
    // What it is entitled to is a loss by right: a twentieth, of shares that are equal and of nine tenths that are
    // reserved.
    let name = neighbour.name;
    report.add(&format!("{name}: what the neighbour had of the processors"), "%", used as f64 / could * 100.0);
    for (beside, around) in beside.iter().zip(alone.windows(2)) {
        let alone = mean(&around.concat()).context("the database told of no second without a neighbour")?;
        let beside = mean(beside).context("the database told of no second with a neighbour")?;
        report.add(&format!("{name}: alone"), "tps", alone);
        report.add(&format!("{name}: beside"), "tps", beside);
        report.add(&format!("{name}: lost"), "%", (1.0 - beside / alone) * 100.0);
    }
    Ok(())
}

fn mean(seconds: &[f64]) -> Option<f64> {
    (!seconds.is_empty()).then(|| seconds.iter().sum::<f64>() / seconds.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_between_two_times_alone_and_changes_do_not_count() {
        let all: Vec<_> = (0..STILL + BUSY + STILL).map(second).collect();
        let count = |what| all.iter().filter(|second| **second == what).count();
        assert_eq!(count(Second::NotCounted), 3);
        assert_eq!((count(Second::Alone(0)), count(Second::Beside(0)), count(Second::Alone(1))), (4, 5, 4));
    }
}

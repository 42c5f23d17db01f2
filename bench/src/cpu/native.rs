//! As many programs as the largest experiment has guests, natively: each in groups as deep as a guest's, all equal.
//! What they do not have of what was delivered is the machine's: switches, interrupts, and what its host takes without
//! telling. And one in a group with a bound: gaps longer than the bound makes them are the machine's too.

use super::hourglass::{self, Hourglass};
use super::{SECOND, TICK, Taken, wait_until};
use crate::service_group::ServiceGroup;
use anyhow::Context;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PROGRAMS: usize = 8;

/// Ended when this goes, if it has not by itself.
struct Program {
    child: Child,
    group: ServiceGroup,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(number: usize, program: &Path, words: [u64; 3]) -> anyhow::Result<Self> {
        let group = ServiceGroup::new(&format!("glass-{number}"))?;
        let mut command = Command::new(program);
        command.arg(hourglass::NAME).args(words.map(|word| word.to_string()));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start an hourglass")?;
        let program = Self { child, group };
        program.group.take(program.child.id())?;
        Ok(program)
    }

    /// Nanoseconds of processor time so far.
    fn used(&self) -> anyhow::Result<u64> {
        let process = pando_kernel::process::describe(self.child.id() as i32).context("an hourglass has gone")?;
        Ok(process.ticks * TICK)
    }

    fn notes(&mut self) -> anyhow::Result<Hourglass> {
        let mut text = String::new();
        self.child.stdout.take().context("it has an output")?.read_to_string(&mut text)?;
        Hourglass::read(&text)
    }
}

/// Lets them run for so many seconds; the part of what was delivered that they had together.
pub(super) fn run(program: &Path, processors: u64, seconds: u64) -> anyhow::Result<f64> {
    let begin = hourglass::now() + SECOND;
    let until = begin + seconds * SECOND;
    let start = |number| Program::start(number, program, [processors, begin, until]);
    let mut programs = (0..PROGRAMS).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let look = |programs: &[Program]| {
        let used = programs.iter().map(Program::used).sum::<anyhow::Result<u64>>()?;
        Taken::look(used)
    };
    let (from, to) = (SECOND, (seconds - 1) * SECOND);
    wait_until(begin + from)?;
    let before = look(&programs)?;
    wait_until(begin + to)?;
    let after = look(&programs)?;
    wait_until(until)?;
    let notes = programs.iter_mut().map(Program::notes).collect::<anyhow::Result<Vec<_>>>()?;
    let had: u64 = notes.iter().map(|glass| glass.between(from, to)).sum();
    let delivered = ((to - from) * processors).saturating_sub(after.by_others_since(&before));
    Ok(had as f64 / delivered.max(1) as f64)
}

/// Lets one run in a group that is bounded to so many microseconds of every [`PERIOD`]; its notes.
pub(super) fn bounded(program: &Path, processors: u64, seconds: u64, quota: u64) -> anyhow::Result<Hourglass> {
    let begin = hourglass::now() + SECOND;
    let until = begin + seconds * SECOND;
    let mut program = Program::start(0, program, [processors, begin, until])?;
    program.group.bound(quota, PERIOD)?;
    wait_until(until)?;
    program.notes()
}

/// That of Pando's bounds, in microseconds.
pub(super) const PERIOD: u64 = 20_000;

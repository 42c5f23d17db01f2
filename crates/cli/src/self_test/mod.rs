//! What Pando is for, done once in small on this machine: `pando doctor --try`.
//!
//! The probes say what the kernel grants; this says that it is enough. Each step is this program's own command line, as
//! a user would type it, on a state root of its own with a daemon of its own. Nothing of the machine's real state is
//! touched, and nothing stays.
//!
//! ```text
//!   place   a state root in a scratch directory, a tree with this program in it ─┐
//!   steps   run · create · start · exec · freeze · clone · tx · rm ──────────────┴─▶ Outcome: name, time, or fault
//! ```

mod place;
mod steps;

use crate::printable::printable;
use crate::state_root::StateRoot;
use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use place::Place;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant};
use steps::{STEPS, Step};

/// How a step went.
#[derive(Debug)]
pub(crate) struct Outcome {
    name: &'static str,
    what: &'static str,
    result: Result<Duration, Failure>,
}

/// Why a step did not work.
#[derive(Debug)]
enum Failure {
    /// What went wrong, in the words of whoever failed.
    Failed(String),
    /// It was not tried, since the step of this name had failed that it builds on.
    Untried(&'static str),
}

impl Outcome {
    /// Whether it worked.
    pub(crate) fn worked(&self) -> bool {
        self.result.is_ok()
    }
}

/// Does every step. The error is about the place: without one nothing was tried.
///
/// # Errors
///
/// No scratch directory can be made beside the state of `root`, or what was made there cannot be taken away.
pub(crate) fn run(root: &StateRoot) -> anyhow::Result<Vec<Outcome>> {
    // Whoever interrupts it gets what it made taken away first. No step takes longer than its limit.
    let mut asked = SigSet::empty();
    asked.extend([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    asked.thread_block().context("cannot hold signals back")?;
    let outcomes = tried(root);
    asked.thread_unblock().context("cannot let signals through again")?;
    outcomes
}

fn tried(root: &StateRoot) -> anyhow::Result<Vec<Outcome>> {
    let place = Place::make(root)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for step in STEPS {
        let outcome = attempt(step, &place, &outcomes);
        outcomes.push(outcome);
    }
    place.clear()?;
    Ok(outcomes)
}

fn attempt(step: &Step, place: &Place, earlier: &[Outcome]) -> Outcome {
    let lacking = step.after.iter().find(|name| earlier.iter().any(|one| one.name == **name && !one.worked()));
    let result = match lacking {
        Some(name) => Err(Failure::Untried(name)),
        None => {
            let begun = Instant::now();
            (step.act)(place).map(|()| begun.elapsed()).map_err(|error| Failure::Failed(format!("{error:#}")))
        }
    };
    Outcome { name: step.name, what: step.what, result }
}

/// The outcomes for people.
pub(crate) fn as_text(outcomes: &[Outcome]) -> String {
    let mut text = "\ntried\n".to_owned();
    let width = outcomes.iter().map(|one| one.what.len()).max().unwrap_or(0);
    for Outcome { what, result, .. } in outcomes {
        // A string takes whatever is written to it.
        let _ = match result {
            Ok(took) => writeln!(text, "  ✓ {what:width$}  {:.1} ms", took.as_secs_f64() * 1000.0),
            Err(Failure::Failed(why)) => writeln!(text, "  ✗ {what:width$}  {}", printable(why)),
            Err(Failure::Untried(after)) => writeln!(text, "  - {what:width$}  not tried, since '{after}' failed"),
        };
    }
    let worked = outcomes.iter().filter(|one| one.worked()).count();
    let _ = writeln!(text, "\n{worked} of {} worked.", outcomes.len());
    text
}

/// The outcomes for programs.
pub(crate) fn as_json(outcomes: &[Outcome]) -> Value {
    let entry = |one: &Outcome| {
        let (outcome, detail, milliseconds) = match &one.result {
            Ok(took) => ("worked", None, Some(took.as_secs_f64() * 1000.0)),
            Err(Failure::Failed(why)) => ("failed", Some(why.clone()), None),
            Err(Failure::Untried(after)) => ("untried", Some(format!("'{after}' failed")), None),
        };
        json!({ "name": one.name, "what": one.what, "outcome": outcome, "detail": detail, "milliseconds": milliseconds })
    };
    outcomes.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> [Outcome; 3] {
        [
            Outcome { name: "run", what: "a guest runs", result: Ok(Duration::from_micros(4250)) },
            Outcome { name: "create", what: "one lasts", result: Err(Failure::Failed("no\u{1b}[2J room".into())) },
            Outcome { name: "start", what: "it starts", result: Err(Failure::Untried("create")) },
        ]
    }

    #[test]
    fn people_read_what_worked_in_how_long_and_why_the_rest_did_not() {
        let text = as_text(&three());
        assert!(text.contains("✓ a guest runs  4.2 ms\n"), "{text}");
        assert!(text.contains("✗ one lasts     no") && !text.contains('\u{1b}'), "{text}");
        assert!(text.ends_with("- it starts     not tried, since 'create' failed\n\n1 of 3 worked.\n"), "{text}");
    }

    #[test]
    fn programs_get_the_same() {
        let json = as_json(&three());
        let outcomes: Vec<&str> = (0..3).filter_map(|number| json[number]["outcome"].as_str()).collect();
        assert_eq!(outcomes, ["worked", "failed", "untried"]);
        assert_eq!((json[0]["milliseconds"].as_f64(), &json[1]["milliseconds"]), (Some(4.25), &Value::Null));
    }

    #[test]
    fn a_step_builds_on_earlier_ones_alone() {
        for (number, step) in STEPS.iter().enumerate() {
            for name in step.after {
                assert!(STEPS[..number].iter().any(|earlier| earlier.name == *name), "{} after {name}", step.name);
            }
        }
    }
}

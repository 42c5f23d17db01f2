//! How long the tests took. No test is judged by it: it is for whoever wants a run to be shorter.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// As many are named at the end of a run.
const NAMED: usize = 12;
/// A run of fewer needs no such list.
const OF_AT_LEAST: usize = 50;

static TAKEN: Mutex<Vec<(Duration, &'static str)>> = Mutex::new(Vec::new());

/// Runs a test and keeps how long it took.
pub(crate) fn measure<T>(name: &'static str, test: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let came_of_it = test();
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push((begun.elapsed(), name));
    came_of_it
}

/// Names those that took longest.
pub(crate) fn show_longest() {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if taken.len() < OF_AT_LEAST {
        return;
    }
    taken.sort_unstable_by(|one, other| other.cmp(one));
    let all: Duration = taken.iter().map(|(time, _)| *time).sum();
    eprintln!("{} tests took {} s one by one; the longest:", taken.len(), all.as_secs());
    for (time, name) in taken.iter().take(NAMED) {
        eprintln!("{:>5} s  {name}", time.as_secs());
    }
}

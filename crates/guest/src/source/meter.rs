//! How far the work is: counts, tells the user's [`Progress`] now and then, and hears from it when to stop.

use super::Progress;

/// Between two reports: often enough for a smooth bar, seldom enough not to cost anything.
const BYTES_BETWEEN_REPORTS: u64 = 4 << 20;
const STEPS_BETWEEN_REPORTS: u64 = 256;

/// The user stopped the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped on request; nothing was kept")]
pub struct Cancelled;

pub(crate) struct Meter<'a> {
    progress: &'a dyn Progress,
    done: u64,
    total: Option<u64>,
    reported: u64,
    steps: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(progress: &'a dyn Progress, total: Option<u64>) -> Self {
        Self { progress, done: 0, total, reported: 0, steps: 0 }
    }

    /// `bytes` more are done.
    pub(crate) fn add(&mut self, bytes: u64) -> Result<(), Cancelled> {
        self.done = self.done.saturating_add(bytes);
        self.step()
    }

    /// `done` bytes are done in all.
    pub(crate) fn reach(&mut self, done: u64) -> Result<(), Cancelled> {
        self.done = done;
        self.step()
    }

    fn step(&mut self) -> Result<(), Cancelled> {
        self.steps += 1;
        let far = self.done.saturating_sub(self.reported) >= BYTES_BETWEEN_REPORTS;
        if far || self.steps >= STEPS_BETWEEN_REPORTS { self.report() } else { Ok(()) }
    }

    /// Tells where the work stands.
    pub(crate) fn report(&mut self) -> Result<(), Cancelled> {
        (self.reported, self.steps) = (self.done, 0);
        self.progress.advance(self.done, self.total);
        if self.progress.cancelled() { Err(Cancelled) } else { Ok(()) }
    }
}

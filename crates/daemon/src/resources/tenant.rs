//! A guest that runs, as far as resources go.

use pando_limit::meter::CpuMeter;
use pando_limit::setting::Setting;
use pando_limit::waiting::WaitMeter;
use pando_limit::{Groups, Limits};
use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// Its groups, what was set there, and what reads them.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) groups: Groups,
    pub(crate) limits: Limits,
    pub(super) settings: Vec<Setting>,
    /// Opened by who first asks: most guests end before.
    meter: OnceCell<Option<CpuMeter>>,
    waiting: OnceCell<Option<WaitMeter>>,
    looked: Instant,
    /// Microseconds that its processes had waited then, if they were asked for.
    waited: Option<u64>,
}

impl Tenant {
    pub(super) fn new(groups: Groups, limits: Limits, settings: Vec<Setting>) -> Self {
        let (meter, waiting) = (OnceCell::new(), OnceCell::new());
        Self { groups, limits, settings, meter, waiting, looked: Instant::now(), waited: None }
    }

    /// Nanoseconds of processor time so far, if anything counts them.
    pub(super) fn used(&self) -> Option<u64> {
        self.meter.get_or_init(|| CpuMeter::open(&self.groups).ok().flatten()).as_ref()?.read().ok()
    }

    /// The same, and the time since the last look.
    pub(super) fn look(&mut self) -> Option<(u64, Duration)> {
        let used = self.used()?;
        let now = Instant::now();
        Some((used, now - std::mem::replace(&mut self.looked, now)))
    }

    /// The part of the time since the last look in which one of its processes waited for a processor. Only of those is
    /// it asked who may go without something that is reserved for them.
    pub(super) fn waited(&mut self, elapsed: Duration) -> Option<f64> {
        self.limits.cpu.reserve?;
        let now = self.waiting.get_or_init(|| WaitMeter::open(&self.groups)).as_ref()?.read()?;
        let before = self.waited.replace(now)?;
        Some(now.saturating_sub(before) as f64 / 1e6 / elapsed.as_secs_f64().max(1e-3))
    }
}

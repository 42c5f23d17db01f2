//! Bounds of processor time: so much in every period.

use crate::apply::{self, ApplyError};
use crate::groups::{Controller, Groups};
use crate::setting::Setting;

/// The period, in microseconds. With the kernel's usual 100 ms a group that has used up its time waits for up to 172
/// ms; with 20 ms for 20.
const PERIOD: f64 = 20_000.0;

/// The least time a period that the kernel takes, in microseconds.
const LEAST: f64 = 1000.0;

/// The settings of a bound, in processors, that comes from the limit `key`.
pub(crate) fn settings(key: &'static str, bound: f64, legacy: bool) -> Vec<Setting> {
    // A quota below a millisecond is refused: small bounds get a longer period instead.
    let period = (LEAST / bound).max(PERIOD).round();
    let quota = (bound * period).round().max(LEAST);
    if legacy {
        return vec![
            Setting::new(key, Controller::Cpu, &["cpu.cfs_period_us"], period, 100_000),
            Setting::new(key, Controller::Cpu, &["cpu.cfs_quota_us"], quota, -1),
        ];
    }
    vec![Setting::new(key, Controller::Cpu, &["cpu.max"], format!("{quota} {period}"), "max 100000")]
}

/// Holds groups to a bound, in processors, that no limit says; `None` takes it back.
pub fn hold(groups: &Groups, bound: Option<f64>) -> Result<(), ApplyError> {
    if groups.seat(Controller::Cpu).is_none() {
        return Ok(());
    }
    let made = settings("cpu.limit", bound.unwrap_or(1.0), groups.is_legacy(Controller::Cpu));
    match bound {
        Some(_) => apply::apply(&made, groups),
        // The quota first: a longer period with the old one would be a smaller bound for a moment.
        None => apply::apply(&made.iter().rev().map(Setting::undone).collect::<Vec<_>>(), groups),
    }
}

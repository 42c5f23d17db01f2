//! What a health check makes of a guest.

use pando_api::{Health, HealthCheck, OnFailure, Wellbeing};
use std::time::Duration;

/// A check with everything filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) command: Vec<String>,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    pub(crate) retries: u32,
    /// Seconds since the start in which failures do not count.
    pub(crate) start_period: u32,
    pub(crate) on_failure: OnFailure,
}

impl Check {
    /// What a spec asks for, if it asks for any.
    pub(crate) fn of(said: &HealthCheck) -> Option<Self> {
        let seconds = |said: Option<u32>, usual: u32| Duration::from_secs(said.unwrap_or(usual).max(1).into());
        Some(Self {
            command: said.wanted()?.to_vec(),
            interval: seconds(said.interval, 30),
            timeout: seconds(said.timeout, 30),
            retries: said.retries.unwrap_or(3).max(1),
            start_period: said.start_period.unwrap_or(0),
            on_failure: said.on_failure,
        })
    }
}

/// How one check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Result {
    /// Absent: it took too long, or could not be run.
    pub(crate) exit_code: Option<i32>,
    pub(crate) output: String,
    /// Seconds since the epoch, and since the guest's start.
    pub(crate) at: i64,
    pub(crate) age: i64,
}

/// How the guest is after a check.
pub(crate) fn after(before: &Health, check: &Check, result: Result) -> Health {
    let well = result.exit_code == Some(0);
    let counts = before.status != Wellbeing::Starting || result.age >= i64::from(check.start_period);
    let failing_streak = match (well, counts) {
        (true, _) => 0,
        (false, true) => before.failing_streak.saturating_add(1),
        (false, false) => before.failing_streak,
    };
    let status = match well {
        true => Wellbeing::Healthy,
        false if failing_streak >= check.retries => Wellbeing::Unhealthy,
        false => before.status,
    };
    let Result { exit_code, output, at, .. } = result;
    Health { status, failing_streak, checked: Some(at), exit_code, output }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> Check {
        let said = HealthCheck { command: vec!["true".into()], retries: Some(2), ..HealthCheck::default() };
        Check { start_period: 10, ..Check::of(&said).unwrap() }
    }

    fn ended(code: i32, age: i64) -> Result {
        Result { exit_code: Some(code), output: String::new(), at: 0, age }
    }

    #[test]
    fn as_many_failures_as_its_retries_say_make_a_guest_unhealthy() {
        let well = after(&Health::default(), &check(), ended(0, 0));
        assert_eq!((well.status, well.failing_streak), (Wellbeing::Healthy, 0));
        let once = after(&well, &check(), ended(1, 1));
        assert_eq!((once.status, once.failing_streak), (Wellbeing::Healthy, 1));
        let twice = after(&once, &check(), ended(1, 2));
        assert_eq!((twice.status, twice.failing_streak), (Wellbeing::Unhealthy, 2));
        assert_eq!(after(&twice, &check(), ended(0, 3)).status, Wellbeing::Healthy);
    }

    #[test]
    fn failures_while_it_starts_do_not_count() {
        let early = after(&Health::default(), &check(), ended(1, 9));
        assert_eq!((early.status, early.failing_streak), (Wellbeing::Starting, 0));
        assert_eq!(after(&early, &check(), ended(1, 10)).failing_streak, 1);
    }

    #[test]
    fn what_is_not_said_is_as_usual() {
        let said = |words: &[&str]| HealthCheck {
            command: words.iter().map(|word| (*word).to_owned()).collect(),
            ..HealthCheck::default()
        };
        assert_eq!((Check::of(&said(&[])), Check::of(&said(&["NONE"]))), (None, None));
        let usual = Check::of(&said(&["true"])).unwrap();
        assert_eq!((usual.interval.as_secs(), usual.timeout.as_secs(), usual.retries), (30, 30, 3));
    }
}

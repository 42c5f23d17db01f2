//! How long to wait before a command that was lost to others is run again: whoever they are, they are at it for about
//! as long as such a command takes, and two that lose to each other must not begin together again. So it is a part of
//! the time that the run took, more each time, and never the same.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(30);

/// The first wait is this part of the time of the run, and each further one longer by [`GROWTH`].
const FIRST: u32 = 3;
const GROWTH: u32 = 6;

/// What is known of earlier waits.
#[derive(Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// How long to wait after a run that took so long.
    pub(crate) fn after(&mut self, run: Duration) -> Duration {
        let growth = GROWTH.saturating_pow(self.0);
        self.0 += 1;
        let most = (run / FIRST).saturating_mul(growth).min(LONGEST);
        // From a half to all of it.
        most / 2 + most / 2 * chance() / 1000
    }
}

/// 0 to 1000, by what nobody else has at the same moment.
fn chance() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    let mixed = u64::from(now ^ std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u32::try_from((mixed >> 33) % 1001).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_with_the_run_and_have_an_end() {
        let run = Duration::from_millis(600);
        let mut backoff = Backoff::default();
        for most in [200, 1200, 7200, 30_000, 30_000] {
            let (wait, most) = (backoff.after(run), Duration::from_millis(most));
            assert!(wait >= most / 2 && wait <= most, "{wait:?} {most:?}");
        }
        for _ in 0..100 {
            assert!(backoff.after(Duration::MAX / 2) <= LONGEST);
        }
    }
}

//! Whether the clock was set back.
//!
//! What was changed since a transaction began is told from what was changed before by the times that file systems keep,
//! which are this machine's clock's. Where that is set back meanwhile (a time server's step, somebody's date(1)), what
//! others change after that bears a time of before, and would be overwritten, or have been read, without anybody
//! noticing. So it is noted how far the clock is ahead of one that nobody can set.

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;

/// How long two looks at the clock may be apart, in nanoseconds, for what lies between them to be told: mostly they are
/// a fiftieth of that.
const APART: i64 = 5_000;

/// How often they are repeated for that. On a machine that is busier the best one counts.
const TRIES: usize = 8;

/// By how many nanoseconds less the clock may seem ahead where nobody has set it: what the looks at it can be wrong by.
const DOUBT: i64 = 100_000;

/// How far the clock is ahead of the time since this machine was switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Clock {
    /// In nanoseconds.
    ahead: i64,
    /// The time namespace (since Linux 5.6) in which that was so: each has its own time since this machine was switched
    /// on.
    space: u64,
}

impl Clock {
    /// As it is now.
    pub(crate) fn now() -> Self {
        let looks = (0..TRIES).map(|_| look());
        let mut best = (i64::MAX, 0);
        for (apart, ahead) in looks {
            if apart < best.0 {
                best = (apart, ahead);
            }
            if apart <= APART {
                break;
            }
        }
        let space = std::fs::metadata("/proc/self/ns/time").map_or(0, |space| space.ino());
        Self { ahead: best.1, space }
    }

    /// Whether it was set back since.
    pub(crate) fn was_set_back(self) -> bool {
        self.is_behind(Self::now())
    }

    fn is_behind(self, now: Self) -> bool {
        self.space == now.space && now.ahead < self.ahead - DOUBT
    }
}

/// How far the clock is ahead, and how long it took to find that out, both in nanoseconds.
fn look() -> (i64, i64) {
    let before = nanoseconds(clock_gettime(ClockId::Realtime));
    let running = nanoseconds(clock_gettime(ClockId::Boottime));
    let after = nanoseconds(clock_gettime(ClockId::Realtime));
    // Where it was set between the two, they are apart, and others are looked at.
    ((after - before).abs(), after - running)
}

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_by_itself() {
        let before = Clock::now();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!before.was_set_back());
    }

    #[test]
    fn set_back_is_told_from_set_forward_and_from_what_cannot_be_told() {
        let before = Clock { ahead: 1_000_000_000, space: 7 };
        assert!(before.is_behind(Clock { ahead: 999_000_000, ..before }));
        assert!(!before.is_behind(Clock { ahead: 2_000_000_000, ..before }));
        assert!(!before.is_behind(Clock { ahead: 999_999_000, ..before }));
        assert!(!before.is_behind(Clock { ahead: 0, space: 8 }));
    }
}

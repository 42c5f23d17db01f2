//! Who has been idle for how long, by the processor time that was used.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Who uses less of a processor than a thousandth is idle: timers tick in most programs.
const BUSY: u32 = 1000;

/// What is known of somebody.
#[derive(Clone, Copy, Debug)]
struct Known {
    used: Duration,
    looked: Instant,
    /// Since when it has been idle.
    since: Instant,
    /// Whether something was done about that already.
    is_done: bool,
}

/// Those that are watched, by their keys.
#[derive(Debug)]
pub struct Idleness<K>(BTreeMap<K, Known>);

impl<K> Default for Idleness<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Idleness<K> {
    /// Looks at everybody there is, by the processor time that each has used so far: who has now been idle for so long,
    /// and was not named since it last was busy. Who is not there is forgotten.
    pub fn look(&mut self, all: &[(K, Duration)], now: Instant, long: Duration) -> Vec<K> {
        let mut due = Vec::new();
        let mut known = BTreeMap::new();
        for (key, used) in all {
            let mut one =
                self.0.get(key).copied().unwrap_or(Known { used: *used, looked: now, since: now, is_done: false });
            let elapsed = now.saturating_duration_since(one.looked);
            // One that was started anew has used less than before.
            if used.checked_sub(one.used).is_none_or(|more| more > elapsed / BUSY) {
                (one.since, one.is_done) = (now, false);
            }
            (one.used, one.looked) = (*used, now);
            if !one.is_done && now.saturating_duration_since(one.since) >= long {
                one.is_done = true;
                due.push(key.clone());
            }
            known.insert(key.clone(), one);
        }
        self.0 = known;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_is_idle_for_long_is_named_once() {
        let (mut idle, begun) = (Idleness::default(), Instant::now());
        let mut look = |second: u64, used: u64| {
            let all = [("web", Duration::from_millis(used))];
            idle.look(&all, begun + Duration::from_secs(second), LONG).len()
        };
        assert_eq!([look(0, 500), look(30, 520), look(60, 530)], [0, 0, 1], "a timer ticks in it");
        assert_eq!([look(90, 540), look(600, 700)], [0, 0], "nothing is to be done again");
        assert_eq!([look(610, 1700), look(660, 1710), look(670, 1711)], [0, 0, 1], "it was busy meanwhile");
        assert_eq!([look(680, 3), look(745, 4)], [0, 1], "it was started anew");
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let (mut idle, begun) = (Idleness::default(), Instant::now());
        let later = begun + LONG * 2;
        assert!(idle.look(&[("web", Duration::ZERO)], begun, LONG).is_empty());
        assert!(idle.look(&[], begun, LONG).is_empty());
        assert!(idle.look(&[("web", Duration::ZERO)], later, LONG).is_empty());
        assert_eq!(idle.look(&[("web", Duration::ZERO)], later + LONG, LONG), ["web"]);
    }
}

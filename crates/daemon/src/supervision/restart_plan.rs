//! Whether a guest is started again after a life, and when.

use crate::state::ending::Ending;
use pando_api::Restart;
use std::time::Duration;

/// How long is waited after a first short life; twice as long after each that follows.
const SHORTEST: Duration = Duration::from_millis(100);
/// How long is waited at most.
const LONGEST: Duration = Duration::from_secs(60);
/// A life that lasted so long was not short: what follows it is not one more failure of the same kind.
const LASTING: Duration = Duration::from_secs(10);

/// A life that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastLife {
    pub(crate) ending: Ending,
    pub(crate) lasted: Duration,
    /// How many short ones came before it, one after another.
    pub(crate) short_before: u32,
    /// How often the policy has started the guest since somebody did.
    pub(crate) restarts: u32,
}

impl PastLife {
    /// How many short lives there were now.
    pub(crate) fn short_lives(self) -> u32 {
        if self.lasted < LASTING { self.short_before.saturating_add(1) } else { 0 }
    }
}

/// How long is waited until the guest is started again; none: it stays at rest.
pub(crate) fn pause(policy: Restart, life: PastLife) -> Option<Duration> {
    let again = match (policy, life.ending) {
        // Who turns a machine off from inside wants it off.
        (Restart::No, _) | (_, Ending::Halt) | (Restart::OnFailure { .. }, Ending::Code(0) | Ending::Reboot) => false,
        (Restart::OnFailure { most }, _) => most == 0 || life.restarts < most,
        (Restart::Always | Restart::UnlessStopped, _) => true,
    };
    let doublings = life.short_lives().saturating_sub(1).min(16);
    again.then(|| (SHORTEST * (1 << doublings)).min(LONGEST))
}

/// How long is waited until a guest is started again that has asked for that from inside: not at all after a life that
/// was no short one. Who asks again and again would use the host, and not what is bounded of his own.
pub(crate) fn reboot_pause(life: PastLife) -> Duration {
    let short = life.short_lives();
    if short == 0 { Duration::ZERO } else { (SHORTEST * (1 << (short - 1).min(16))).min(LONGEST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(code: i32, restarts: u32, lasted: u64) -> PastLife {
        PastLife { ending: Ending::Code(code), lasted: Duration::from_secs(lasted), short_before: restarts, restarts }
    }

    #[test]
    fn policies_differ_in_which_ends_they_mind() {
        let again = |policy, code| pause(policy, after(code, 0, 0)).is_some();
        let failure = Restart::OnFailure { most: 0 };
        assert_eq!((again(Restart::No, 1), again(failure, 0), again(failure, 137)), (false, false, true));
        assert!(again(Restart::Always, 0) && again(Restart::UnlessStopped, 0));
        let ended = |ending| pause(Restart::Always, PastLife { ending, ..after(0, 0, 0) }).is_some();
        assert_eq!((ended(Ending::Halt), ended(Ending::Unknown)), (false, true));
        assert!(pause(failure, PastLife { ending: Ending::Unknown, ..after(0, 0, 0) }).is_some());
    }

    #[test]
    fn whoever_asks_for_a_new_life_again_and_again_waits_for_it() {
        let pauses = [(0, 10), (0, 9), (1, 9), (30, 0), (30, 10)];
        let pauses = pauses.map(|(short, lasted)| reboot_pause(after(0, short, lasted)).as_millis());
        assert_eq!(pauses, [0, 100, 200, 60_000, 0]);
    }

    #[test]
    fn failures_are_counted() {
        let policy = Restart::OnFailure { most: 2 };
        assert!(pause(policy, after(1, 1, 0)).is_some());
        assert!(pause(policy, after(1, 2, 0)).is_none());
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_a_lasting_life_ends_that() {
        let pauses = (0..12).map(|short| pause(Restart::Always, after(1, short, 0)).unwrap().as_millis());
        let expected = [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000];
        assert_eq!(pauses.collect::<Vec<_>>(), expected);
        assert_eq!(pause(Restart::Always, after(1, u32::MAX, 0)), Some(LONGEST));
        assert_eq!(pause(Restart::Always, after(1, 9, 10)), Some(SHORTEST));
        assert_eq!((after(1, 9, 9).short_lives(), after(1, 9, 10).short_lives()), (10, 0));
    }
}

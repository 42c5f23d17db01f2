//! Looks at whether a transaction can still be committed, before something of it passes outside. One that takes long is
//! not taken again at once.

use super::commit::abort_reason_now;
use super::holder::watch_of_holder;
use crate::state::directory::StateDirectory;
use crate::state::record::Record;
use crate::validate::abort_reason::AbortReason;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Looks take at most this part of the time: so many times as long as one took nobody looks again.
const PAUSE: u32 = 10;

/// The looks at one transaction, and what they cost.
#[derive(Debug, Default)]
pub struct Looks {
    /// When the last ended, and how long it took.
    last: Option<(Instant, Duration)>,
}

impl Looks {
    /// Looks, unless that was done just now: why it cannot be committed any more.
    pub(super) fn look(&mut self, loss: impl FnOnce() -> Option<AbortReason>) -> Option<AbortReason> {
        if self.last.is_some_and(|(end, took)| end.elapsed() < took * PAUSE) {
            return None;
        }
        let begun = Instant::now();
        let found = loss();
        self.last = Some((Instant::now(), begun.elapsed()));
        found
    }

    /// The same for a transaction that another process holds, in whose view Pando itself has looked up `places`. What
    /// the kernel tells of its reads is kept for whoever commits it.
    pub fn look_at_open(
        &mut self,
        home: &StateDirectory,
        record: &Record,
        places: &BTreeSet<PathBuf>,
    ) -> Option<AbortReason> {
        self.look(|| {
            // Where that cannot be looked into there is nothing to be told.
            let watch = watch_of_holder(home, record).ok()?;
            abort_reason_now(&record.clone().with_places(places), watch.as_ref())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::conflict::{Conflict, Interference};

    #[test]
    fn one_that_took_long_is_not_taken_again_at_once() {
        let mut looks = Looks::default();
        let long = || {
            std::thread::sleep(Duration::from_millis(200));
            None
        };
        assert_eq!(looks.look(long), None);
        let changed = || Some(AbortReason::from(Conflict::at("/f", Interference::Changed)));
        assert_eq!(looks.look(changed), None);
        looks.last = looks.last.map(|(end, _)| (end, Duration::ZERO));
        assert_eq!(looks.look(changed), changed());
    }
}

//! Deficit: processor time that a group wanted, was kept from, and gets back.
//!
//! A scheduler keeps to weights on the whole, and not exactly: two threads of one group on the same processor compete
//! with each other, a bound's period cuts a turn short, the host's own work is on one processor and not on the other.
//! Over seconds that is a point or two, always to the same group's loss. So what each group that wants everything got
//! is counted against what it was due, as in the papers' token buckets, and its weight leans against the difference.

/// Seconds in which what is owed is given back.
const GIVEN_BACK: f64 = 1.0;

/// Seconds in which it is forgotten, but for a part in e: what was owed long ago was to another crowd.
const FORGOTTEN: f64 = 20.0;

/// How far a weight leans at the most.
const LEAST: f64 = 0.6;
const MOST: f64 = 1.6;

/// A smaller change is not worth telling the kernel.
const WORTH_TELLING: f64 = 0.01;

/// The account of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deficit {
    /// Seconds of the machine's time that are owed to it; less than nothing if it had more than its due.
    owed: f64,
    lean: f64,
}

impl Default for Deficit {
    fn default() -> Self {
        Self { owed: 0.0, lean: 1.0 }
    }
}

impl Deficit {
    /// Counts some seconds, in which the group was due one part of the machine and had another.
    pub(crate) fn count(&mut self, due: f64, had: f64, seconds: f64) {
        self.owed = self.owed * (-seconds / FORGOTTEN).exp() + (due - had) * seconds;
        // More than can be given back in time would be too much when it is over.
        let most = due * GIVEN_BACK;
        self.owed = self.owed.clamp(-most, most);
        let lean = if most > 0.0 { (1.0 + self.owed / most).clamp(LEAST, MOST) } else { 1.0 };
        if (lean - self.lean).abs() >= WORTH_TELLING {
            self.lean = lean;
        }
    }

    /// The factor by which the group's weight is multiplied.
    pub(crate) fn lean(&self) -> f64 {
        self.lean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_given_back_and_no_more() {
        let mut account = Deficit::default();
        assert_eq!(account.lean(), 1.0);
        let (due, mut had_in_all) = (0.125, 0.0);
        for tick in 0..200 {
            // The scheduler gives the group a tenth less than its weight says.
            let had = due * 0.9 * account.lean();
            account.count(due, had, 0.1);
            if tick >= 100 {
                had_in_all += had * 0.1;
            }
        }
        assert!((had_in_all / 10.0 - due).abs() < 0.001, "{had_in_all}");
    }

    #[test]
    fn small_differences_are_left_alone_and_large_ones_have_an_end() {
        let mut account = Deficit::default();
        account.count(0.5, 0.499, 0.1);
        assert_eq!(account.lean(), 1.0);
        for _ in 0..1000 {
            account.count(0.5, 0.0, 0.1);
        }
        assert!((account.lean() - MOST).abs() < WORTH_TELLING, "{account:?}");
        account.count(0.0, 0.0, 0.1);
        assert_eq!(account.lean(), 1.0, "who is due nothing is owed nothing");
    }
}

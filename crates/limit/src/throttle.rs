//! Throttle: groups that have more than their due are held to it while another goes without what is reserved for it.
//!
//! Weights divide each processor by itself. Threads that sleep and wake thousands of times a second (a database and its
//! clients) are often queued on one processor as a whole, and a single busy thread, however light, has the other for
//! itself: beside one such thread a database with nine tenths reserved was seen with half of the machine. A bound helps
//! where weights do not:
//!
//! ```text
//!   calm ──one is short, another has too much──▶ on trial ─┬─it helped──▶ kept ──nobody waits, or long──▶ calm
//!                                                          └─it did not──▶ calm, and left alone for ever longer
//! ```
//!
//! Once it has helped it is begun again at the first look that finds a group short: one that paused and went on would
//! lose a third of a second each time.
//!
//! From outside it cannot be seen what a group would use. Where the kernel tells how much its processes wait for a
//! processor, only a group that waits is short; where it does not, one that has less than its reservation is tried.

/// Of what is reserved, the part below which a group goes without: where it is known to wait, and where that is not
/// known.
const SHORT_AND_WAITS: f64 = 0.97;
const SHORT: f64 = 0.9;

/// Waiting for less than this part of the time is what every program does now and then.
pub(crate) const WAITING: f64 = 0.1;

/// How much more than its due is too much: by a factor, and as a part of the machine.
const TOO_MUCH: (f64, f64) = (1.25, 0.01);

/// Looks that a group has to be short for, looks that a trial takes, and those at its beginning that show what was
/// before.
const PATIENCE: u32 = 2;
const TRIAL: u32 = 5;
const SETTLES: u32 = 2;

/// The part of what was taken from others that has to have come to those that were short.
const WORTH_IT: f64 = 0.25;

/// The longest that nothing is tried after a trial that did not help, in looks; and after how many a throttle is
/// questioned again.
const LONGEST_REST: u32 = 256;
const QUESTIONED: u32 = 128;

/// For how many looks after a throttle that helped there is no need for patience.
const PROVEN: u32 = 600;

/// What a look says of the present while a throttle is kept, beside those before it: one look of a tenth of a second
/// proves nothing.
const NEWEST: f64 = 0.2;

/// One group, as far as throttle needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party {
    /// What is reserved for it, as a fraction of the machine.
    pub(crate) reserve: f64,
    /// What it is due if all that are short want it all.
    pub(crate) due: f64,
    /// What it had, as a fraction of the machine.
    pub(crate) rate: f64,
    /// The part of the time in which one of its processes waited for a processor, where the kernel tells.
    pub(crate) waits: Option<f64>,
}

impl Party {
    /// Whether it goes without something that is reserved for it.
    pub(crate) fn is_short(&self) -> bool {
        let (least, wants) = self.waits.map_or((SHORT, true), |part| (SHORT_AND_WAITS, part >= WAITING));
        self.reserve > 0.0 && wants && self.rate < least * self.reserve
    }

    fn has_too_much(&self) -> bool {
        self.rate > self.due * TOO_MUCH.0 + TOO_MUCH.1
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Phase {
    #[default]
    Calm,
    OnTrial {
        looks: u32,
        /// What those that were short had before, what was to come to them, and what they had since.
        before: f64,
        freed: f64,
        since: f64,
    },
    Kept {
        looks: u32,
        /// What they have to have at the least for it to be of use, and what they have had of late.
        least: f64,
        lately: f64,
    },
}

/// What those with a reservation had, and what others had beyond their due.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    had: f64,
    beyond: f64,
}

/// Whether anybody is restrained, and for how long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throttle {
    phase: Phase,
    /// Looks in which a group was short, and what was seen in them together: one alone says little.
    short_for: u32,
    short: Seen,
    /// Looks until another trial, and how many that were.
    rest: u32,
    spell: u32,
    /// Looks left in which it is known to help.
    proven: u32,
}

impl Throttle {
    /// Whether what others have too much of is to be taken from them now.
    pub(crate) fn is_on(&self) -> bool {
        self.phase != Phase::Calm
    }

    /// Takes in what all that are awake had since the last look.
    pub(crate) fn look(&mut self, parties: &[Party]) {
        let with_reserve = || parties.iter().filter(|party| party.reserve > 0.0);
        let had: f64 = with_reserve().map(|party| party.rate).sum();
        // A group that is known to wait wants more; of the others it is not known.
        let wanted = with_reserve().any(|party| party.waits.is_none_or(|part| part >= WAITING));
        self.rest = self.rest.saturating_sub(1);
        self.proven = self.proven.saturating_sub(1);
        self.phase = match self.phase {
            Phase::Calm => self.begin(parties, had),
            _ if !wanted => Phase::Calm,
            Phase::OnTrial { looks, before, freed, since } if looks < TRIAL => {
                let since = since + if looks < SETTLES { 0.0 } else { had };
                Phase::OnTrial { looks: looks + 1, before, freed, since }
            }
            Phase::OnTrial { before, freed, since, .. } => {
                let (least, lately) = (before + WORTH_IT * freed, since / f64::from(TRIAL - SETTLES));
                if lately >= least {
                    (self.spell, self.proven) = (0, PROVEN);
                    Phase::Kept { looks: 0, least, lately }
                } else {
                    self.proven = 0;
                    self.spell = (self.spell * 2).clamp(TRIAL, LONGEST_REST);
                    self.rest = self.spell;
                    Phase::Calm
                }
            }
            Phase::Kept { looks, least, lately } => {
                let lately = lately + NEWEST * (had - lately);
                if looks < QUESTIONED && lately >= least {
                    Phase::Kept { looks: looks + 1, least, lately }
                } else {
                    Phase::Calm
                }
            }
        };
    }

    fn begin(&mut self, parties: &[Party], had: f64) -> Phase {
        let too_much = || parties.iter().filter(|party| party.has_too_much());
        if !parties.iter().any(Party::is_short) || too_much().next().is_none() {
            (self.short_for, self.short) = (0, Seen::default());
            return Phase::Calm;
        }
        self.short_for += 1;
        self.short.had += had;
        self.short.beyond += too_much().map(|party| party.rate - party.due).sum::<f64>();
        let patience = if self.proven > 0 { 1 } else { PATIENCE };
        if self.short_for < patience || self.rest > 0 {
            return Phase::Calm;
        }
        let (looks, seen) = (f64::from(std::mem::take(&mut self.short_for)), std::mem::take(&mut self.short));
        Phase::OnTrial { looks: 0, before: seen.had / looks, freed: seen.beyond / looks, since: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(rate: f64, waits: Option<f64>) -> Party {
        Party { reserve: 0.9, due: 0.95, rate, waits }
    }

    fn spinner(rate: f64) -> Party {
        Party { reserve: 0.0, due: 0.05, rate, waits: None }
    }

    fn look(throttle: &mut Throttle, parties: &[Party], times: u32) -> bool {
        (0..times).for_each(|_| throttle.look(parties));
        throttle.is_on()
    }

    #[test]
    fn who_is_squeezed_out_is_helped_for_as_long_as_that_helps() {
        for waits in [None, Some(0.8)] {
            let mut throttle = Throttle::default();
            let (squeezed, helped) = ([database(0.6, waits), spinner(0.4)], [database(0.93, waits), spinner(0.05)]);
            assert!(!look(&mut throttle, &squeezed, PATIENCE - 1), "a moment is no want");
            assert!(look(&mut throttle, &squeezed, 1));
            assert!(look(&mut throttle, &helped, QUESTIONED), "it helps");
            assert!(!look(&mut throttle, &helped, TRIAL + 2), "it is questioned");
            assert!(!look(&mut throttle, &helped, 100), "and nobody is short now");
            assert!(look(&mut throttle, &squeezed, 1), "what has helped needs no patience");
            assert!(look(&mut throttle, &helped, TRIAL + 1), "it helps again");
            assert!(look(&mut throttle, &squeezed, 1), "one look proves nothing");
            assert!((0..20).any(|_| !look(&mut throttle, &squeezed, 1)), "many do");
        }
    }

    #[test]
    fn a_trial_that_does_not_help_is_seldom_repeated() {
        let mut throttle = Throttle::default();
        let content = [database(0.3, None), spinner(0.7)];
        let mut on = 0;
        for _ in 0..10_000 {
            on += u32::from(look(&mut throttle, &content, 1));
        }
        assert!((TRIAL..350).contains(&on), "{on} of 10,000 looks");
    }

    #[test]
    fn who_does_not_wait_is_not_short() {
        let mut throttle = Throttle::default();
        assert!(!look(&mut throttle, &[database(0.3, Some(0.01)), spinner(0.7)], 1000));
        assert!(!look(&mut throttle, &[spinner(1.0)], 1000), "nor who sleeps");
        assert!(!look(&mut throttle, &[database(0.3, Some(0.9)), spinner(0.05)], 1000), "nor by whom has his due");
        assert!(!look(&mut throttle, &[database(0.83, None), spinner(0.15)], 1000), "nor who may want no more");
        assert!(look(&mut throttle, &[database(0.83, Some(0.9)), spinner(0.15)], PATIENCE), "but who waits does");
        assert!(!look(&mut throttle, &[database(0.83, Some(0.01)), spinner(0.15)], 1), "he waits no more");
        assert!(look(&mut throttle, &[database(0.3, Some(0.9)), spinner(0.7)], PATIENCE));
        assert!(!look(&mut throttle, &[database(0.3, Some(0.01)), spinner(0.05)], 1), "he waits no more");
    }
}

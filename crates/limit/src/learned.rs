//! What guests of a kind come to, by what several of them have come to: a quartile, which one greedy guest cannot move.
//!
//! ```text
//!   the lives of a kind, one of each guest, the last eight ─▶ upper quartile after a second ──┐
//!                                                          └▶ upper quartile once settled ────┴▶ the larger one
//! ```
//!
//! A quartile of fewer than four is the largest of them: whoever comes first is believed. So that he is not believed
//! for ever, where everybody is refused for him, lives count for ten minutes until there are four.

use serde::{Deserialize, Serialize};

/// How many lives of a kind are remembered.
const REMEMBERED: usize = 8;

/// From so many on a single one decides nothing.
const FIRM: usize = 4;

/// Seconds for which a life counts where there are fewer.
const LAPSE: i64 = 600;

/// What guests of a kind have come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figure {
    /// One of each guest, the latest last.
    lives: Vec<Life>,
}

/// What one guest has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Life {
    /// What tells the guest from others of its kind.
    guest: String,
    /// When that was seen, in seconds since the epoch.
    seen: i64,
    /// Bytes after the first second.
    first: u64,
    /// Bytes when it had settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    steady: Option<u64>,
}

impl Figure {
    /// What one more is expected to come to, in bytes. Nothing is known where nobody has been seen, or too few and too
    /// long ago.
    pub fn expected(&self, now: i64) -> Option<u64> {
        let is_firm = self.lives.len() >= FIRM;
        let counted = || self.lives.iter().filter(|life| is_firm || (now - life.seen).abs() < LAPSE);
        let first = upper_quartile(counted().map(|life| life.first));
        let steady = upper_quartile(counted().filter_map(|life| life.steady));
        first.max(steady)
    }

    /// Takes account of what a guest had after its first second. An earlier life of the same guest is forgotten: one
    /// that is started again and again counts once.
    pub fn note_first(&mut self, guest: &str, now: i64, bytes: u64) {
        self.lives.retain(|life| life.guest != guest);
        if self.lives.len() >= REMEMBERED {
            self.lives.remove(0);
        }
        self.lives.push(Life { guest: guest.to_owned(), seen: now, first: bytes, steady: None });
    }

    /// Takes account of what a guest had when it had settled.
    pub fn note_steady(&mut self, guest: &str, now: i64, bytes: u64) {
        if let Some(life) = self.lives.iter_mut().find(|life| life.guest == guest) {
            (life.steady, life.seen) = (Some(bytes), now);
        }
    }

    /// Whether it has to be written down again after it was another: each life of the first few, and then what matters.
    pub fn differs(&self, before: &Self, now: i64) -> bool {
        let (one, other) = (self.expected(now).unwrap_or(0), before.expected(now).unwrap_or(0));
        self.lives.len() <= FIRM || one.abs_diff(other) > other / 10
    }
}

/// What guests of a kind that have settled work with now, where there are enough of them to say so.
pub fn expected_by_present(now: impl Iterator<Item = u64>) -> Option<u64> {
    let all: Vec<u64> = now.collect();
    upper_quartile(all.iter().copied()).filter(|_| all.len() >= FIRM)
}

/// The smallest that three of four do not exceed.
fn upper_quartile(all: impl Iterator<Item = u64>) -> Option<u64> {
    let mut all: Vec<u64> = all.collect();
    all.sort_unstable();
    all.get((all.len() * 3).div_ceil(4).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_greedy_guest_decides_nothing_among_four() {
        let mut figure = Figure::default();
        assert_eq!(figure.expected(0), None, "nobody was seen");
        figure.note_first("greedy", 0, 900);
        assert_eq!(figure.expected(0), Some(900), "whoever comes first is believed");
        for (guest, bytes) in [("a", 10), ("b", 12), ("c", 11)] {
            figure.note_first(guest, 0, bytes);
        }
        assert_eq!(figure.expected(i64::MAX), Some(12));
        // Started again and again it is one guest still.
        (0..100).for_each(|second| figure.note_first("greedy", second, 900));
        assert_eq!((figure.expected(100), figure.lives.len()), (Some(12), 4));
        // Nor does one that takes next to nothing let too many in.
        (0..100).for_each(|second| figure.note_first("a", second, 0));
        assert_eq!(figure.expected(100), Some(12));
    }

    #[test]
    fn few_lives_lapse_and_many_stay() {
        let mut figure = Figure::default();
        figure.note_first("greedy", 1000, 900);
        assert_eq!(figure.expected(1000 + LAPSE - 1), Some(900));
        assert_eq!(figure.expected(1000 + LAPSE), None, "the next one is let in and looked at");
        figure.note_first("a", 2000, 10);
        assert_eq!(figure.expected(2000), Some(10));
        (0..1000).for_each(|number| figure.note_first(&number.to_string(), 3000, number));
        assert_eq!((figure.lives.len(), figure.expected(1_000_000)), (REMEMBERED, Some(997)));
    }

    #[test]
    fn it_is_the_larger_of_the_first_second_and_the_settled_state() {
        let mut figure = Figure::default();
        figure.note_first("a", 0, 100);
        figure.note_steady("a", 30, 60);
        assert_eq!(figure.expected(30), Some(100));
        figure.note_steady("a", 60, 200);
        figure.note_steady("stranger", 60, 900);
        assert_eq!(figure.expected(60), Some(200));
    }

    #[test]
    fn those_who_are_there_say_something_from_four_on() {
        assert_eq!(expected_by_present([900, 900, 900].into_iter()), None);
        assert_eq!(expected_by_present([10, 900, 12, 11].into_iter()), Some(12));
        assert_eq!(expected_by_present([10, 900, 800, 700].into_iter()), Some(800), "most have grown since");
    }

    #[test]
    fn what_matters_is_written_down() {
        let mut figure = Figure::default();
        (0..8).for_each(|number: u32| figure.note_first(&number.to_string(), 0, 100));
        let before = figure.clone();
        figure.note_first("more", 0, 105);
        assert!(!figure.differs(&before, 0));
        (0..4).for_each(|number: u32| figure.note_first(&format!("larger{number}"), 0, 200));
        assert!(figure.differs(&before, 0));
        assert!(Figure::default().differs(&before, 0));
    }
}

//! Sharing equal pages again after cloning: what is worth offering to the kernel's merger, to whom, and how much of a
//! processor that may take.
//!
//! ```text
//!   sample of a mapping ──Hints──▶ Evidence ──Rules──▶ gain ──choose──▶ offered, merged ──Budget──▶ next look
//!   (pages, hashes)       rewritten?          hot ones count nothing     one image, or all
//!                         a sibling's too?
//! ```
//!
//! The thesis hashes pages in levels: 64 bytes, a KiB, the rest. That saves reading where most pages are like no other;
//! of clones most are, and here a few pages stand for a whole mapping, so that they are read whole.

mod hints;

pub use hints::{Hints, Seen};
use serde::{Deserialize, Deserializer};
use std::time::Duration;

/// Whose pages may be one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// Nobody's that are parted already.
    #[default]
    Off,
    /// Those of one image and its clones. The kernel has one merger for all, so that it is one image at a time.
    Clones,
    /// Those of all images and their clones.
    Guests,
}

/// How pages are shared: keys of the table `[memory]` of pando.toml.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// Whose pages may be one.
    pub share: Share,
    /// Percent of a processor that looking and merging may take.
    #[serde(deserialize_with = "percent")]
    pub share_processor: f64,
    /// Seconds from one look to the next, at the least.
    #[serde(deserialize_with = "positive")]
    pub share_every: u64,
    /// How many pages a mapping has to promise to be offered.
    pub share_fewest: u64,
    /// How often a page may be found rewritten before it counts for nothing.
    pub share_hot: u8,
    /// How many pages are remembered at most.
    pub share_hints: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            share: Share::Off,
            share_processor: 1.0,
            share_every: 10,
            share_fewest: 64,
            share_hot: 3,
            share_hints: 65_536,
        }
    }
}

fn percent<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let percent = f64::deserialize(value)?;
    let error = || serde::de::Error::custom("it is a part of a processor, above 0 and up to 100 percent");
    (percent > 0.0 && percent <= 100.0).then_some(percent).ok_or_else(error)
}

fn positive<'de, D: Deserializer<'de>>(value: D) -> Result<u64, D::Error> {
    let seconds = u64::deserialize(value)?;
    (seconds > 0).then_some(seconds).ok_or_else(|| serde::de::Error::custom("it has to be a second at least"))
}

/// What a sample of a mapping's own pages has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// How many pages of the mapping nobody else has.
    pub own: u64,
    /// How many of them were looked at.
    pub sampled: u64,
    /// Those of the sample that somebody else has as well, and that are not rewritten all the time.
    pub alike: u64,
}

impl Evidence {
    /// How many pages would be saved if the mapping were merged with others.
    pub fn gain(&self) -> u64 {
        let Some(each) = (self.own * self.alike).checked_div(self.sampled) else { return 0 };
        each.min(self.own)
    }

    /// Whether that is worth the kernel's looking at all of its pages: there is enough of it, and at least a quarter of
    /// what is looked at.
    pub fn is_worth(&self, rules: &Rules) -> bool {
        self.gain() >= rules.share_fewest && self.alike * 4 >= self.sampled
    }
}

/// What an image and its clones could save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family<'a> {
    /// The name of the image.
    pub image: &'a str,
    /// How many pages that is.
    pub gain: u64,
}

/// Whose pages may be offered and merged now. `offered` is the image of which some are already, and `strangers` whether
/// others of this machine offer memory, such as virtual machines, or programs in other guests: what is merged now could
/// be merged with theirs.
pub fn choose<'a>(rules: &Rules, families: &[Family<'a>], offered: Option<&str>, strangers: bool) -> Vec<&'a str> {
    let wanted = families.iter().filter(|family| family.gain > 0);
    match (rules.share, offered) {
        (Share::Off, _) => Vec::new(),
        (Share::Guests, _) => wanted.map(|family| family.image).collect(),
        (Share::Clones, _) if strangers => Vec::new(),
        (Share::Clones, Some(one)) => wanted.map(|family| family.image).filter(|image| *image == one).collect(),
        (Share::Clones, None) => {
            wanted.max_by_key(|family| family.gain).map(|family| family.image).into_iter().collect()
        }
    }
}

/// How long to rest after a look that took so much processor time, begun so long ago.
pub fn rest(rules: &Rules, used: Duration, elapsed: Duration) -> Duration {
    let due = used.div_f64(rules.share_processor / 100.0).max(Duration::from_secs(rules.share_every));
    due.saturating_sub(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(share: Share) -> Rules {
        Rules { share, ..Rules::default() }
    }

    #[test]
    fn a_mapping_is_worth_what_its_sample_promises() {
        let evidence = |own, sampled, alike| Evidence { own, sampled, alike };
        assert_eq!(evidence(51_200, 64, 48).gain(), 38_400);
        assert_eq!([evidence(0, 0, 0).gain(), evidence(100, 0, 0).gain(), evidence(10, 10, 10).gain()], [0, 0, 10]);
        let worth = |one: Evidence| one.is_worth(&Rules::default());
        assert!(worth(evidence(51_200, 64, 48)) && worth(evidence(256, 64, 16)));
        assert!(!worth(evidence(51_200, 64, 15)), "the kernel would look at four for one");
        assert!(!worth(evidence(63, 63, 63)), "too little to be offered");
        assert!(!worth(evidence(51_200, 0, 0)));
    }

    #[test]
    fn one_image_at_a_time_unless_all_may_share() {
        let families =
            [Family { image: "a", gain: 10 }, Family { image: "b", gain: 90 }, Family { image: "c", gain: 0 }];
        let chosen = |share, offered, strangers| choose(&rules(share), &families, offered, strangers);
        assert_eq!(chosen(Share::Clones, None, false), ["b"]);
        assert_eq!(chosen(Share::Clones, Some("a"), false), ["a"]);
        assert!(chosen(Share::Clones, Some("a"), true).is_empty(), "somebody has come since");
        assert!(chosen(Share::Clones, Some("gone"), false).is_empty());
        assert!(chosen(Share::Clones, None, true).is_empty(), "a stranger would share with it");
        assert_eq!(chosen(Share::Guests, None, true), ["a", "b"]);
        assert!(chosen(Share::Off, None, false).is_empty());
    }

    #[test]
    fn who_has_used_much_rests_long() {
        let of =
            |used, elapsed| rest(&rules(Share::Clones), Duration::from_millis(used), Duration::from_millis(elapsed));
        assert_eq!(of(500, 1_000), Duration::from_secs(49));
        assert_eq!(of(1, 4_000), Duration::from_secs(6), "it looks no more often than it should");
        assert_eq!(of(1, 60_000), Duration::ZERO);
    }

    #[test]
    fn a_setting_that_makes_no_sense_is_refused() {
        use serde::de::value::{F64Deserializer, U64Deserializer};
        type Plain = serde::de::value::Error;
        let part = |value: f64| percent(F64Deserializer::<Plain>::new(value));
        assert!(part(0.5).is_ok() && part(100.0).is_ok());
        assert!([0.0, -1.0, 100.5, f64::NAN].into_iter().all(|value| part(value).is_err()));
        assert!(positive(U64Deserializer::<Plain>::new(0)).is_err());
    }
}

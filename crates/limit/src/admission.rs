//! Whether there is room for one guest more, or a thousand, before any is begun.
//!
//! ```text
//!   who runs: use, promises, what was learned ─┐
//!   who wants to: promises, what was learned ──┼─▶ admit ─▶ yes, or a Shortage: how many fit, how much is missing,
//!   the machine, and how often it is sold ─────┘            and whose end would make room
//! ```

use crate::quantity;
use serde::{Deserialize, Deserializer};

/// How it is decided whether somebody is admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admit {
    /// Everybody is admitted whose reservation can be kept.
    #[default]
    Always,
    /// By what guests of its kind have been seen to come to.
    Learned,
    /// By what each may come to: its reservation, or else its limit.
    Reserved,
}

impl Admit {
    /// The way of a name, as pando.toml has it.
    pub fn named(word: &str) -> Option<Self> {
        match word {
            "always" => Some(Self::Always),
            "learned" => Some(Self::Learned),
            "reserved" => Some(Self::Reserved),
            _ => None,
        }
    }
}

/// How guests are admitted: keys of the table `[memory]` of pando.toml.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// How it is decided whether somebody is admitted.
    pub admit: Admit,
    /// How often the same memory is given away: 1 is once.
    #[serde(deserialize_with = "factor")]
    pub overbook: f64,
    /// Bytes that all guests may come to together; without it, all that the machine has.
    #[serde(deserialize_with = "size")]
    pub guests_memory: Option<u64>,
    /// Seconds after which a guest has settled: from then on it is counted for what it has, not for what its kind may
    /// come to.
    #[serde(rename = "settle", deserialize_with = "seconds")]
    pub settle_seconds: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { admit: Admit::Always, overbook: 1.0, guests_memory: None, settle_seconds: 30 }
    }
}

/// Reads how often memory may be given away: `3`, or `3x`.
pub fn overbook(text: &str) -> Result<f64, String> {
    let wrong = || format!("'{text}' is no number of times from 1 to 1000, such as 3x");
    let number: f64 = text.trim_end_matches('x').parse().map_err(|_| wrong())?;
    if (1.0..=1000.0).contains(&number) { Ok(number) } else { Err(wrong()) }
}

fn factor<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Said {
        Number(f64),
        Text(String),
    }
    let text = match Said::deserialize(value)? {
        Said::Number(number) => number.to_string(),
        Said::Text(text) => text,
    };
    overbook(&text).map_err(serde::de::Error::custom)
}

fn size<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(value)?;
    quantity::size(&text).map(Some).map_err(serde::de::Error::custom)
}

fn seconds<'de, D: Deserializer<'de>>(value: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(value)?;
    let is_sensible = (1..=86_400).contains(&number);
    is_sensible.then_some(number).ok_or_else(|| serde::de::Error::custom("it is a number of seconds from 1 to 86400"))
}

/// What a guest was promised, and what is known of its kind: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// What is reserved for it.
    pub reserve: Option<u64>,
    /// The most that it may have.
    pub limit: Option<u64>,
    /// What guests of its kind have come to. Nothing for one that has settled: it has come to what it has.
    pub learned: Option<u64>,
}

impl Claim {
    /// What it is counted for, when it has so much now.
    fn bytes(&self, admit: Admit, now: u64) -> u64 {
        let promised = self.reserve.unwrap_or(0);
        let most = self.limit.unwrap_or(u64::MAX);
        match admit {
            Admit::Always => 0,
            Admit::Learned => now.max(self.learned.unwrap_or(0).min(most)).max(promised),
            Admit::Reserved => self.reserve.or(self.limit).unwrap_or_else(|| now.max(self.learned.unwrap_or(0))),
        }
    }
}

/// A guest that runs, and what it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present<K> {
    /// What tells the guest from others.
    pub key: K,
    /// The bytes that it works with now.
    pub now: u64,
    /// What the guest was promised, and uses.
    pub claim: Claim,
}

/// What memory there is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// The machine's memory, in bytes.
    pub memory: u64,
    /// What could be had of it and of swap now.
    pub free: u64,
}

/// Why there is no room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage<K> {
    /// What each of those who want to come is counted for.
    pub each: u64,
    /// How many of them fit.
    pub fits: u64,
    /// How many bytes are missing for all of them.
    pub missing: u64,
    /// What guests may have together, and what they are counted for now.
    pub room: u64,
    /// How many bytes of it are taken.
    pub taken: u64,
    /// The fewest guests whose end would make room, and what each is counted for. Nobody, where all would not do.
    pub stop: Vec<(K, u64)>,
}

/// Whether there is room for so many guests of one kind.
pub fn admit<K: Clone + Ord>(
    rules: &Rules,
    room: Room,
    present: &[Present<K>],
    (newcomer, count): (Claim, u64),
) -> Result<(), Shortage<K>> {
    let each = newcomer.bytes(rules.admit, 0);
    if rules.admit == Admit::Always || each == 0 || count == 0 {
        return Ok(());
    }
    let times = |bytes: u64| (bytes as f64 * rules.overbook) as u64;
    let mut claims: Vec<(K, u64)> =
        present.iter().map(|one| (one.key.clone(), one.claim.bytes(rules.admit, one.now))).collect();
    let taken: u64 = claims.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let all = times(rules.guests_memory.map_or(room.memory, |bound| bound.min(room.memory)));
    // What is counted and is not used yet has to be had of what is free as well.
    let unused = taken.saturating_sub(present.iter().map(|one| one.now).sum());
    let free = if rules.admit == Admit::Learned { times(room.free).saturating_sub(unused) } else { u64::MAX };
    let left = all.saturating_sub(taken).min(free);
    let needed = each.saturating_mul(count);
    if needed <= left {
        return Ok(());
    }
    let missing = needed - left;
    claims.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    let mut made = 0;
    let mut stop: Vec<(K, u64)> = Vec::new();
    for claim in claims.into_iter().take_while(|(_, bytes)| *bytes > 0) {
        if made >= missing {
            break;
        }
        made += claim.1;
        stop.push(claim);
    }
    if made < missing {
        stop.clear();
    }
    Err(Shortage { each, fits: left / each, missing, room: all, taken, stop })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn rules(admit: Admit, overbook: f64) -> Rules {
        Rules { admit, overbook, guests_memory: Some(1000 * MIB), ..Rules::default() }
    }

    fn present(key: &'static str, now: u64, claim: Claim) -> Present<&'static str> {
        Present { key, now: now * MIB, claim }
    }

    fn learned(mib: u64) -> Claim {
        Claim { learned: Some(mib * MIB), ..Claim::default() }
    }

    const ROOM: Room = Room { memory: 4000 * MIB, free: 4000 * MIB };

    #[test]
    fn always_is_always() {
        let crowd = [present("a", 5000, Claim::default())];
        assert_eq!(admit(&rules(Admit::Always, 1.0), ROOM, &crowd, (learned(900), 1000)), Ok(()));
    }

    #[test]
    fn what_was_learned_says_how_many_fit_and_who_would_make_room() {
        let crowd = [present("small", 100, Claim::default()), present("grows", 10, learned(300))];
        let ask = |overbook, count| admit(&rules(Admit::Learned, overbook), ROOM, &crowd, (learned(50), count));
        assert_eq!(ask(1.0, 12), Ok(()));
        let short = ask(1.0, 14).unwrap_err();
        let expected = Shortage {
            each: 50 * MIB,
            fits: 12,
            missing: 100 * MIB,
            room: 1000 * MIB,
            taken: 400 * MIB,
            stop: vec![("grows", 300 * MIB)],
        };
        assert_eq!(short, expected);
        assert_eq!(ask(1.0, 19).unwrap_err().stop.len(), 2, "either alone would not do");
        assert!(ask(1.0, 1000).unwrap_err().stop.is_empty(), "all of them would not do");
        assert_eq!((ask(3.0, 52), ask(3.0, 53).unwrap_err().fits), (Ok(()), 52), "sold three times");
    }

    #[test]
    fn what_is_not_free_is_not_there_whatever_was_learned() {
        let room = Room { free: 120 * MIB, ..ROOM };
        let crowd = [present("grows", 10, learned(30))];
        let short = admit(&rules(Admit::Learned, 1.0), room, &crowd, (learned(50), 3)).unwrap_err();
        assert_eq!((short.fits, short.missing), (2, 50 * MIB), "20 of what is free is counted for another already");
        assert_eq!(admit(&rules(Admit::Learned, 1.0), room, &crowd, (Claim::default(), 3)), Ok(()), "nobody knows");
    }

    #[test]
    fn promises_count_whether_they_are_used_or_not() {
        let promised = |reserve: Option<u64>, limit: Option<u64>| Claim {
            reserve: reserve.map(|mib| mib * MIB),
            limit: limit.map(|mib| mib * MIB),
            learned: Some(MIB),
        };
        let crowd = [present("r", 1, promised(Some(400), Some(900))), present("l", 1, promised(None, Some(500)))];
        let ask = |claim| admit(&rules(Admit::Reserved, 1.0), ROOM, &crowd, (claim, 1));
        assert_eq!(ask(promised(Some(100), None)), Ok(()));
        assert_eq!(ask(promised(None, Some(101))).unwrap_err().missing, MIB);
        let by_learning = admit(&rules(Admit::Learned, 1.0), ROOM, &crowd, (promised(None, Some(101)), 1));
        assert_eq!(by_learning, Ok(()));
    }

    #[test]
    fn who_has_settled_is_counted_for_what_it_has() {
        let young = [present("young", 1, learned(900))];
        let settled = [
            present("settled", 1, Claim::default()),
            present("reserved", 1, Claim { reserve: Some(9 * MIB), ..Claim::default() }),
        ];
        let ask = |crowd: &[_], mib| admit(&rules(Admit::Learned, 1.0), ROOM, crowd, (learned(mib), 1));
        assert_eq!((ask(&young, 100), ask(&young, 101).unwrap_err().missing), (Ok(()), MIB));
        assert_eq!((ask(&settled, 990), ask(&settled, 991).unwrap_err().missing), (Ok(()), MIB));
    }

    #[test]
    fn how_often_is_a_number_of_times() {
        assert_eq!(["1", "3x", "2.5"].map(overbook), [Ok(1.0), Ok(3.0), Ok(2.5)]);
        assert!(["0", "0.5x", "x", "many", "-3", "NaN"].iter().all(|text| overbook(text).is_err()));
    }
}

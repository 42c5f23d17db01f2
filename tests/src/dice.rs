//! Numbers that look random (xorshift64), the same for the same seed.

use std::time::{SystemTime, UNIX_EPOCH};

/// Which run this is, where nobody says.
const USUAL_SEED: u64 = 20_261_126;

/// The seed of this run, which is told: that of `PANDO_TEST_SEED`; the time of day if that is `random`, as in `./x test
/// slow`; else the usual one, so that whoever changes nothing sees what the last run saw.
pub(crate) fn seed_of_this_run(usual: u64) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let seed = match std::env::var("PANDO_TEST_SEED") {
        Ok(text) if text == "random" => since.as_nanos() as u64,
        told => told.ok().and_then(|text| text.parse().ok()).unwrap_or(usual),
    };
    println!("     PANDO_TEST_SEED={seed}");
    seed
}

/// The dice.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Seeds that lie close together would begin alike, and 0 would stay 0.
        let mut dice = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            dice.throw(2);
        }
        dice
    }

    /// Dice of this run's seed.
    pub(crate) fn of_this_run() -> (Self, u64) {
        let seed = seed_of_this_run(USUAL_SEED);
        (Self::new(seed), seed)
    }

    /// 0 to `sides` - 1.
    pub(crate) fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    /// One of several.
    pub(crate) fn pick<'a, T>(&mut self, among: &'a [T]) -> Option<&'a T> {
        (!among.is_empty()).then(|| &among[self.throw(among.len() as u64) as usize])
    }
}

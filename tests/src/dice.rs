//! Numbers that look random (xorshift64), the same for the same seed.

use std::time::{SystemTime, UNIX_EPOCH};

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

    /// Dice of a seed that is told, for a run that differs from the last one: `PANDO_TEST_SEED`, or the time of day.
    pub(crate) fn of_this_run() -> (Self, u64) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let seed = std::env::var("PANDO_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or(since.as_nanos() as u64);
        println!("     PANDO_TEST_SEED={seed}");
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

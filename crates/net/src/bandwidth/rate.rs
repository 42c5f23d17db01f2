//! Rates, as tc(8) writes them.

use std::fmt;
use std::str::FromStr;

/// A rate, in bits a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

const UNITS: [(&str, u64); 4] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000), ("bit", 1)];

impl FromStr for Rate {
    type Err = ();

    /// Reads `10mbit`, `1.5gbit`, `64kbit`; a number alone is bits.
    fn from_str(text: &str) -> Result<Self, ()> {
        let lower = text.to_ascii_lowercase();
        let split = UNITS.iter().find_map(|(unit, worth)| Some((lower.strip_suffix(unit)?, *worth)));
        let (number, worth) = split.unwrap_or((&lower, 1));
        let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number: f64 = number.parse().ok().filter(|_| is_plain).ok_or(())?;
        let bits = number * worth as f64;
        // What a class can be told at most.
        const MOST: f64 = 1e12;
        if (1.0..=MOST).contains(&bits) { Ok(Self(bits.round() as u64)) } else { Err(()) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = UNITS.iter().find(|(_, worth)| self.0 >= *worth && self.0.is_multiple_of(*worth));
        let (unit, worth) = fitting.unwrap_or(&UNITS[3]);
        write!(out, "{}{unit}", self.0 / worth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for (text, bits) in [("10mbit", 10_000_000), ("1.5Gbit", 1_500_000_000), ("64kbit", 64_000), ("9600", 9600)] {
            assert_eq!(text.parse(), Ok(Rate(bits)), "{text}");
        }
        assert_eq!((Rate(10_000_000).to_string(), Rate(1500).to_string()), ("10mbit".into(), "1500bit".into()));
        for wrong in ["", "fast", "0", "-1mbit", "10mbps", "1e9", "inf", "9999999gbit"] {
            assert_eq!(wrong.parse::<Rate>(), Err(()), "{wrong}");
        }
    }
}

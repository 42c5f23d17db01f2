//! How much the log keeps, as the settings say it: `"2G, 30d"`.

use serde::{Deserialize, Deserializer};
use std::time::Duration;

/// The bounds of what is kept of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepBounds {
    /// How many bytes of the disk all of it may take.
    pub bytes: u64,
    /// How old it may be.
    pub age: Duration,
}

/// What a text is that says no bounds.
const EXPECTED: &str = "it is a size and an age such as \"2G, 30d\", one of them alone, or \"off\"";

impl KeepBounds {
    /// Where one of them is not said.
    const UNBOUNDED: Self = Self { bytes: u64::MAX, age: Duration::MAX };

    /// Reads them; nothing for `off`.
    fn parse(text: &str) -> Option<Option<Self>> {
        if text.trim() == "off" {
            return Some(None);
        }
        let mut bounds = Self::UNBOUNDED;
        let mut said = [false; 2];
        for word in text.split(',').map(str::trim) {
            let (number, unit) = word.split_at_checked(word.len().checked_sub(1)?)?;
            let number: u64 = number.parse().ok()?;
            let (which, factor) = match unit {
                "K" => (0, 1 << 10),
                "M" => (0, 1 << 20),
                "G" => (0, 1 << 30),
                "T" => (0, 1 << 40),
                "h" => (1, 3600),
                "d" => (1, 24 * 3600),
                "w" => (1, 7 * 24 * 3600),
                _ => return None,
            };
            if std::mem::replace(&mut said[which], true) {
                return None;
            }
            let value = number.checked_mul(factor).filter(|value| *value > 0)?;
            if which == 0 { bounds.bytes = value } else { bounds.age = Duration::from_secs(value) }
        }
        Some(Some(bounds))
    }

    /// Reads a setting.
    ///
    /// # Errors
    ///
    /// What is no size and no age.
    pub fn setting<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("'{text}' says not how much to keep: {EXPECTED}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_and_an_age_are_read_in_any_order() {
        let both = KeepBounds { bytes: 2 << 30, age: Duration::from_secs(30 * 24 * 3600) };
        assert_eq!(KeepBounds::parse("2G, 30d"), Some(Some(both)));
        assert_eq!(KeepBounds::parse("30d,2G"), Some(Some(both)));
        assert_eq!(KeepBounds::parse("512M"), Some(Some(KeepBounds { bytes: 512 << 20, ..KeepBounds::UNBOUNDED })));
        assert_eq!(KeepBounds::parse("off"), Some(None));
        for wrong in ["", "2", "G", "2G, 3G", "2X", "0G", "2G 30d", "-1G", "99999999999T", "é"] {
            assert_eq!(KeepBounds::parse(wrong), None, "{wrong}");
        }
    }
}

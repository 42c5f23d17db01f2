//! What a group is granted, read from the user's words.

use super::rate::Rate;

/// What of a device's bandwidth a group has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// What is guaranteed in what leaves.
    pub reserve: Option<Rate>,
    /// The weight in what is left over.
    pub share: Option<u32>,
    /// The most that leaves by the device.
    pub limit: Option<Rate>,
    /// The most that comes in.
    pub limit_in: Option<Rate>,
}

/// Why words do not say what is granted.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GrantError {
    /// The text is not a rate.
    #[error("{0} cannot be '{1}': use bits a second, such as 10mbit or 64kbit")]
    Rate(String, String),
    /// A rate that lets nothing through.
    #[error("{0} cannot be '{1}': the least is {least}, or no packet would get through in time", least = LEAST)]
    TooLow(String, String),
    /// The text is not a share.
    #[error("{0} cannot be '{1}': use a number from 1 to 1000; 100 is usual")]
    Share(String, String),
    /// More is promised than allowed.
    #[error("net.reserve ({0}) is more than net.limit ({1}) lets through")]
    Above(Rate, Rate),
}

/// The lowest rate: at this one a full packet takes a second and a half.
const LEAST: Rate = Rate(8_000);

/// The share of a group that has none of its own.
pub(super) const USUAL: u32 = 100;

impl Grant {
    /// Reads keys and words: `net.reserve`, `net.share`, `net.limit`, `net.limit_in`.
    ///
    /// # Errors
    ///
    /// The key and the word that cannot be read.
    pub fn read<'a>(requests: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, GrantError> {
        let mut grant = Self::default();
        for (key, word) in requests {
            let rate = || match word.parse::<Rate>() {
                Ok(rate) if rate < LEAST => Err(GrantError::TooLow(key.to_owned(), word.to_owned())),
                Ok(rate) => Ok(rate),
                Err(()) => Err(GrantError::Rate(key.to_owned(), word.to_owned())),
            };
            match key {
                "net.reserve" => grant.reserve = Some(rate()?),
                "net.limit" => grant.limit = Some(rate()?),
                "net.limit_in" => grant.limit_in = Some(rate()?),
                "net.share" => {
                    let share = word.parse().ok().filter(|share| (1..=1000).contains(share));
                    grant.share = Some(share.ok_or_else(|| GrantError::Share(key.to_owned(), word.to_owned()))?);
                }
                _ => {}
            }
        }
        match (grant.reserve, grant.limit) {
            (Some(reserve), Some(limit)) if reserve > limit => Err(GrantError::Above(reserve, limit)),
            _ => Ok(grant),
        }
    }

    /// Whether nothing is granted or limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether what leaves needs a class of its own.
    pub fn has_class(&self) -> bool {
        self.reserve.is_some() || self.share.is_some() || self.limit.is_some()
    }

    /// The most that may leave on a device of this rate.
    pub(super) fn ceiling(&self, link: Rate) -> Rate {
        let own = match (self.reserve, self.share, self.limit) {
            (Some(reserve), None, None) => reserve,
            (_, _, Some(limit)) => limit,
            _ => link,
        };
        own.min(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_alone_is_a_bound_too() {
        let link = Rate(100_000_000);
        let of = |words: &[(&'static str, &'static str)]| Grant::read(words.iter().copied()).unwrap().ceiling(link);
        assert_eq!(of(&[("net.reserve", "10mbit")]), Rate(10_000_000));
        assert_eq!(of(&[("net.reserve", "10mbit"), ("net.share", "50")]), link);
        assert_eq!(of(&[("net.reserve", "10mbit"), ("net.limit", "20mbit")]), Rate(20_000_000));
        assert_eq!(of(&[("net.share", "50")]), link);
        assert_eq!(of(&[("net.limit", "1gbit")]), link);
    }

    #[test]
    fn wrong_words_are_named() {
        let error = |key, word| Grant::read([(key, word)]).unwrap_err().to_string();
        assert!(error("net.limit", "fast").starts_with("net.limit cannot be 'fast'"));
        assert!(error("net.share", "0").starts_with("net.share cannot be '0'"));
        assert!(Grant::read([("net.limit", "1mbit"), ("net.reserve", "2mbit")]).is_err());
        let low = Grant::read([("net.limit", "1bit")]).unwrap_err().to_string();
        assert!(low.contains("net.limit cannot be '1bit': the least is 8kbit"), "{low}");
    }
}

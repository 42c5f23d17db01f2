//! What a prewarmed transaction is handed over by: which one it is, and when the transaction begins that is made of it.
//!
//! Whoever gives it away has seen that it is current at that moment, while the taker's program was still starting.

use crate::tree::attributes::Moment;
use std::fmt;
use std::str::FromStr;

/// Between its parts; no name has one.
const BAR: char = '/';

/// The ticket, a text for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The name of its directory.
    pub(crate) name: String,
    /// When it was seen to be current. Nothing where the taker has to see to that.
    pub(crate) begun: Option<Moment>,
}

/// It is none, or one of another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadTicket;

impl fmt::Display for Ticket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, begun } = self;
        match begun {
            Some(Moment { seconds, nanoseconds }) => write!(out, "{name}{BAR}{seconds}{BAR}{nanoseconds}"),
            None => write!(out, "{name}"),
        }
    }
}

impl FromStr for Ticket {
    type Err = BadTicket;

    fn from_str(text: &str) -> Result<Self, BadTicket> {
        let mut words = text.split(BAR);
        let name = words.next().filter(|name| !name.is_empty()).ok_or(BadTicket)?.to_owned();
        let begun = match (words.next(), words.next(), words.next()) {
            (None, ..) => None,
            (Some(seconds), Some(nanoseconds), None) => Some(Moment {
                seconds: seconds.parse().map_err(|_| BadTicket)?,
                nanoseconds: nanoseconds.parse().ok().filter(|part| *part < 1_000_000_000).ok_or(BadTicket)?,
            }),
            _ => return Err(BadTicket),
        };
        Ok(Self { name, begun })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for begun in [None, Some(Moment { seconds: -1, nanoseconds: 999_999_999 })] {
            let ticket = Ticket { name: ".spare-7".into(), begun };
            assert_eq!(ticket.to_string().parse(), Ok(ticket));
        }
    }

    #[test]
    fn nonsense_is_not() {
        for text in ["", "/1/2", "a/1", "a/1/1000000000", "a/x/1", "a/1/2/3", "a/1/"] {
            assert_eq!(text.parse::<Ticket>(), Err(BadTicket), "{text}");
        }
    }
}

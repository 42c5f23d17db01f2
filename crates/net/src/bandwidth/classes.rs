//! From grants to the classes of one device. Plain data: no system calls.

use super::grant::{Grant, USUAL};
use super::rate::Rate;

/// A class of hierarchical token buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its number within the device.
    pub minor: u16,
    /// What it sends before anybody is asked.
    pub rate: Rate,
    /// What it sends at most.
    pub ceil: Rate,
    /// How many bytes it may send in its turn when classes share what is left. It is this and not the rate that makes
    /// shares: a turn has to hold the largest packet, or shares are off by most of their size.
    pub quantum: u32,
}

/// The class of everything that has none of its own.
pub(super) const OTHERS: u16 = 1;

/// The least rate of a class: without any, buckets would fill too slowly to measure.
const LEAST: Rate = Rate(100_000);

/// The largest packet that is sent in one piece.
const LARGEST: u32 = 65_536;

/// More was promised than there is.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the reservations of {asked} in all are more than the device's {link}; reserve less, or say a higher rate of the device in pando.toml"
)]
pub struct Overbooked {
    /// What was promised, this one included.
    pub asked: Rate,
    /// The rate of the device itself.
    pub link: Rate,
}

/// The classes of a device of rate `link`: that of all others, and one for each member that needs one, by its number.
///
/// # Errors
///
/// [`Overbooked`].
pub fn plan(link: Rate, members: &[(u16, Grant)]) -> Result<Vec<Class>, Overbooked> {
    let members = || members.iter().filter(|(_, grant)| grant.has_class());
    let asked = Rate(members().map(|(_, grant)| grant.reserve.map_or(0, |reserve| reserve.0)).sum());
    if asked > link {
        return Err(Overbooked { asked, link });
    }
    let share = |grant: &Grant| grant.share.unwrap_or(USUAL);
    let least = members().map(|(_, grant)| share(grant)).min().unwrap_or(USUAL).min(USUAL);
    let quantum =
        |share: u32| (u64::from(LARGEST) * u64::from(share) / u64::from(least)).min(u64::from(u32::MAX)) as u32;
    let others = Class { minor: OTHERS, rate: LEAST.min(link), ceil: link, quantum: quantum(USUAL) };
    let own = members().map(|(minor, grant)| {
        let ceil = grant.ceiling(link);
        Class { minor: *minor, rate: grant.reserve.unwrap_or(LEAST).min(ceil), ceil, quantum: quantum(share(grant)) }
    });
    Ok(std::iter::once(others).chain(own).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(words: &[(&'static str, &'static str)]) -> Grant {
        Grant::read(words.iter().copied()).unwrap()
    }

    #[test]
    fn turns_are_as_the_shares_and_hold_a_packet() {
        let members = [(16, grant(&[("net.share", "50")])), (17, grant(&[("net.share", "150")]))];
        let classes = plan(Rate(100_000_000), &members).unwrap();
        let quanta: Vec<_> = classes.iter().map(|class| class.quantum / LARGEST).collect();
        assert_eq!(quanta, [2, 1, 3]);
        assert!(classes.iter().all(|class| class.rate == LEAST && class.ceil == Rate(100_000_000)));
    }

    #[test]
    fn no_more_is_promised_than_there_is() {
        let half = grant(&[("net.reserve", "50mbit")]);
        let full = plan(Rate(100_000_000), &[(16, half), (17, half)]).unwrap();
        assert_eq!(full[1].ceil, Rate(50_000_000));
        assert!(plan(Rate(100_000_000), &[(16, half), (17, half), (18, half)]).is_err());
    }

    #[test]
    fn a_limit_below_the_least_rate_holds() {
        let classes = plan(Rate(1_000_000), &[(16, grant(&[("net.limit", "9600")]))]).unwrap();
        assert_eq!((classes[1].rate, classes[1].ceil), (Rate(9600), Rate(9600)));
        assert_eq!(plan(Rate(1_000_000), &[(16, grant(&[("net.limit_in", "1mbit")]))]).unwrap().len(), 1);
    }
}

//! The addresses of a private network, and which of them is free. Plain data: no system calls.

use crate::device::Device;
use crate::placement::same_network;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The length of a private network's IPv6 prefix.
pub(super) const LENGTH6: u8 = 64;

/// The addresses of a private network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    /// The network's own IPv4 address; its guests' follow.
    pub four: Ipv4Addr,
    /// How many bits of it name the network.
    pub length: u8,
    /// The network's own IPv6 address; of those, 64 bits name the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub six: Option<Ipv6Addr>,
}

/// Where a route of the host's leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The addresses that it is for, with any length of their prefix.
    pub to: Subnet,
    /// The device that it leads by, in words where there is not one.
    pub device: String,
}

/// A network that cannot be had.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SubnetError {
    /// The text is not a network.
    #[error("'{0}' is not a private network's ADDRESS/LENGTH with a length of 8 to 28; for example 10.213.0.0/16")]
    Unreadable(String),
    /// Each network to choose from overlaps one of the host's.
    #[error(
        "every network that a private one could have overlaps one of this host's; name a free one in pando.toml: [network] private = \"10.213.0.0/16\""
    )]
    NoneFree,
    /// One of the host's own networks has some of the addresses.
    #[error("{0} overlaps a network that device {1} of this host is on; choose another")]
    OfDevice(String, String),
    /// A route of the host's leads to some of the addresses, elsewhere.
    #[error("{0} overlaps {1}, to which a route of this host leads by {2}; choose another")]
    Routed(String, String, String),
    /// No address of the network is left.
    #[error("the private network {0}/{1} has no free address left")]
    Full(Ipv4Addr, u8),
}

/// Networks that are tried where none is named, in this order.
const CANDIDATES: [(Ipv4Addr, u8); 5] = [
    (Ipv4Addr::new(10, 213, 0, 0), 16),
    (Ipv4Addr::new(10, 214, 0, 0), 16),
    (Ipv4Addr::new(172, 29, 0, 0), 16),
    (Ipv4Addr::new(10, 101, 0, 0), 16),
    (Ipv4Addr::new(192, 168, 213, 0), 24),
];

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.four, self.length)
    }
}

impl std::str::FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let wrong = || SubnetError::Unreadable(text.to_owned());
        let (four, length) = text.split_once('/').ok_or_else(wrong)?;
        let (four, length): (Ipv4Addr, u8) = (four.parse().map_err(|_| wrong())?, length.parse().map_err(|_| wrong())?);
        let is_network = (8..=28).contains(&length) && four.to_bits() << length == 0;
        if is_network { Ok(Self { four, length, six: None }) } else { Err(wrong()) }
    }
}

impl Subnet {
    /// The same with a local IPv6 prefix (RFC 4193) drawn from `seed`.
    #[must_use]
    pub fn with_six(self, seed: u64) -> Self {
        Self { six: Some(local6(seed)), ..self }
    }

    /// The host's own addresses in it.
    pub fn gateway(&self) -> (Ipv4Addr, Option<Ipv6Addr>) {
        self.host(1)
    }

    /// The addresses of the machine with this number.
    pub fn host(&self, number: u32) -> (Ipv4Addr, Option<Ipv6Addr>) {
        let six = self.six.map(|six| Ipv6Addr::from_bits(six.to_bits() | u128::from(number)));
        (Ipv4Addr::from_bits(self.four.to_bits() | number), six)
    }

    /// The number of the machine with this address, if a guest can have it.
    pub fn number_of(&self, four: Ipv4Addr) -> Option<u32> {
        let number = four.to_bits() ^ self.four.to_bits();
        (number >= 2 && number < self.last()).then_some(number)
    }

    /// The number that is for all machines.
    fn last(&self) -> u32 {
        u32::MAX >> self.length
    }

    /// Whether some address is one of both.
    pub fn overlaps(&self, other: &Self) -> bool {
        same_network(other.four.into(), self.four.into(), self.length.min(other.length))
    }

    /// The first of these devices that is on a network with some of the same addresses.
    pub fn overlapping<'a>(&self, devices: &'a [Device]) -> Option<&'a Device> {
        let same =
            |(ip, length): &(IpAddr, u8)| ip.is_ipv4() && same_network(*ip, self.four.into(), self.length.min(*length));
        devices.iter().find(|device| device.addresses.iter().any(same))
    }

    /// The first of these destinations that lies in it: what is sent there goes elsewhere. In one that is wider a
    /// network can be, for whoever asks for it by name: the closer route is taken.
    pub fn routed<'a>(&self, routes: &'a [Destination]) -> Option<&'a Destination> {
        routes.iter().find(|route| route.to.length >= self.length && route.to.overlaps(self))
    }

    fn is_free(&self, devices: &[Device], taken: &[Self]) -> bool {
        self.overlapping(devices).is_none() && !taken.iter().any(|other| self.overlaps(other))
    }
}

/// A network that none of the host's and none of those that are `taken` overlaps, with a local IPv6 prefix (RFC 4193)
/// drawn from `seed`.
///
/// # Errors
///
/// [`SubnetError::NoneFree`].
pub fn choose(devices: &[Device], taken: &[Subnet], seed: u64) -> Result<Subnet, SubnetError> {
    let candidates = CANDIDATES.into_iter().map(|(four, length)| Subnet { four, length, six: None });
    let free = candidates.into_iter().find(|subnet| subnet.is_free(devices, taken)).ok_or(SubnetError::NoneFree)?;
    Ok(free.with_six(seed))
}

/// The same for one network of many: none of those that [`choose`] tries.
///
/// # Errors
///
/// [`SubnetError::NoneFree`].
pub fn choose_further(devices: &[Device], taken: &[Subnet], seed: u64) -> Result<Subnet, SubnetError> {
    let wide = (216..=231).map(|second| (Ipv4Addr::new(10, second, 0, 0), 16));
    let narrow = (0..=255).map(|third| (Ipv4Addr::new(172, 30, third, 0), 24));
    let narrower = (214..=254).map(|third| (Ipv4Addr::new(192, 168, third, 0), 24));
    let mut candidates = wide.chain(narrow).chain(narrower).map(|(four, length)| Subnet { four, length, six: None });
    let free = candidates.find(|subnet| subnet.is_free(devices, taken)).ok_or(SubnetError::NoneFree)?;
    Ok(free.with_six(seed))
}

/// fd, then forty bits of one's own and sixteen for the first network.
fn local6(seed: u64) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfd << 120 | u128::from(seed & 0xff_ffff_ffff) << 80)
}

/// A free machine's number. A guest gets the one it had, unless another has taken it: the search begins where its name
/// leads.
///
/// # Errors
///
/// [`SubnetError::Full`].
pub fn free(subnet: &Subnet, taken: &BTreeSet<u32>, name: &str) -> Result<u32, SubnetError> {
    let count = subnet.last() - 2;
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    // One more than are taken is enough to find one that is not.
    let tries = count.min(u32::try_from(taken.len()).unwrap_or(u32::MAX).saturating_add(1));
    let numbers = (0..tries).map(|offset| 2 + (hash % count + offset) % count);
    numbers.into_iter().find(|number| !taken.contains(number)).ok_or(SubnetError::Full(subnet.four, subnet.length))
}

impl From<Subnet> for (IpAddr, u8) {
    fn from(subnet: Subnet) -> Self {
        (subnet.four.into(), subnet.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ip: &str, length: u8) -> Device {
        Device { index: 2, name: "eth0".into(), addresses: vec![(ip.parse().unwrap(), length)] }
    }

    #[test]
    fn a_network_of_the_hosts_is_not_taken() {
        assert_eq!(choose(&[], &[], 7).unwrap().four.to_string(), "10.213.0.0");
        assert_eq!(choose(&[device("10.213.4.1", 24)], &[], 7).unwrap().four.to_string(), "10.214.0.0");
        assert_eq!(choose(&[device("10.0.0.1", 8)], &[], 7).unwrap().four.to_string(), "172.29.0.0");
        assert_eq!(choose(&[device("10.0.0.1", 0)], &[], 7), Err(SubnetError::NoneFree));
        assert!(choose(&[], &[], 7).unwrap().six.unwrap().to_string().starts_with("fd00:0:7"));
    }

    #[test]
    fn of_many_networks_none_overlaps_another() {
        let mut taken: Vec<Subnet> = vec!["10.217.3.0/24".parse().unwrap()];
        for seed in 0..300 {
            let one = choose_further(&[device("10.216.0.1", 24)], &taken, seed).unwrap();
            assert!(
                !taken.iter().any(|other| other.overlaps(&one)) && !one.to_string().starts_with("10.216."),
                "{one}"
            );
            taken.push(one);
        }
        assert_eq!(
            choose_further(&[], &["0.0.0.0/8".parse().unwrap(), "10.0.0.0/8".parse().unwrap()], 1).unwrap().length,
            24
        );
        assert_eq!(choose(&[], &["10.213.5.0/24".parse().unwrap()], 7).unwrap().to_string(), "10.214.0.0/16");
        assert_eq!(
            "10.1.0.0/16".parse::<Subnet>().unwrap().overlapping(&[device("10.1.2.3", 8)]).unwrap().name,
            "eth0"
        );
    }

    #[test]
    fn a_route_into_a_network_is_in_its_way_and_a_wider_one_is_not() {
        let to = |four: &str, length| {
            let to = Subnet { four: four.parse().unwrap(), length, six: None };
            Destination { to, device: "tun0".into() }
        };
        let subnet: Subnet = "10.50.0.0/24".parse().unwrap();
        for (four, length, is_in_the_way) in
            [("10.50.0.0", 24, true), ("10.50.0.7", 32, true), ("10.50.1.0", 24, false), ("10.0.0.0", 8, false)]
        {
            assert_eq!(subnet.routed(&[to(four, length)]).is_some(), is_in_the_way, "{four}/{length}");
        }
        // Nobody has asked for the one that is chosen.
        let taken = [to("10.0.0.0", 8).to];
        assert_eq!(choose(&[], &taken, 7).unwrap().four.to_string(), "172.29.0.0");
    }

    #[test]
    fn a_network_is_read_strictly() {
        assert_eq!("10.1.0.0/16".parse::<Subnet>().unwrap().length, 16);
        for wrong in ["", "10.1.0.0", "10.1.0.1/16", "10.1.0.0/29", "10.0.0.0/7", "fd00::/64"] {
            assert!(wrong.parse::<Subnet>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_address_is_given_once_and_to_the_same_name_again() {
        let subnet: Subnet = "10.1.2.0/28".parse().unwrap();
        let mut taken = BTreeSet::new();
        let first = free(&subnet, &taken, "web").unwrap();
        for guest in 0..13 {
            let number = free(&subnet, &taken, &format!("g{guest}")).unwrap();
            assert!(taken.insert(number) && subnet.number_of(subnet.host(number).0) == Some(number), "{number}");
        }
        assert!(!taken.contains(&0) && !taken.contains(&1) && !taken.contains(&15));
        assert_eq!(free(&subnet, &taken, "web"), Err(SubnetError::Full(subnet.four, 28)));
        taken.clear();
        assert_eq!(free(&subnet, &taken, "web"), Ok(first));
    }
}

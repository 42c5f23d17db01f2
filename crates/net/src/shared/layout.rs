//! What the programs read, byte by byte: the same as `bpf/guest.h`.

use crate::Network;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The most addresses of each family that a guest can have.
pub const MOST_ADDRESSES: usize = 16;

/// The most guests that can share an address.
pub const MOST_OWNERS: usize = 8;

/// How many earlier anchors are still looked at.
const FORMER: usize = 2;

/// The first parts of 127.0.0.0/8 stay the host's.
const FIRST_LOOP: u32 = 0x7f40_0000;

/// The highest number that a guest can have: as many private parts of 127.0.0.0/8 as there are.
pub const HIGHEST_ID: u32 = 0xbfff;

/// A guest, as the programs know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuestEntry {
    pub(super) id: u32,
    pub(super) root: u32,
    pub(super) own: Vec<Network>,
    pub(super) former4: [Ipv4Addr; FORMER],
    pub(super) former6: [Ipv6Addr; FORMER],
}

impl GuestEntry {
    pub(super) fn new(id: u32, root: u32, own: Vec<Network>) -> Self {
        Self { id, root, own, former4: [Ipv4Addr::UNSPECIFIED; FORMER], former6: [Ipv6Addr::UNSPECIFIED; FORMER] }
    }

    /// The first address of its private part of 127.0.0.0/8.
    pub(super) fn loop4(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(FIRST_LOOP | self.id << 8)
    }

    /// What `::1` is for it.
    pub(super) fn loop6(&self) -> Ipv6Addr {
        loopback6(self.id)
    }

    fn anchor4(&self) -> Ipv4Addr {
        let first = self.own4().next().map(|(ip, _)| ip);
        first.unwrap_or_else(|| Ipv4Addr::from_bits(self.loop4().to_bits() | 1))
    }

    fn anchor6(&self) -> Ipv6Addr {
        self.own6().next().map_or_else(|| self.loop6(), |(ip, _)| ip)
    }

    fn own4(&self) -> impl Iterator<Item = (Ipv4Addr, u8)> {
        self.own.iter().filter_map(|own| match own.ip {
            IpAddr::V4(ip) => Some((ip, own.prefix)),
            IpAddr::V6(_) => None,
        })
    }

    fn own6(&self) -> impl Iterator<Item = (Ipv6Addr, u8)> {
        self.own.iter().filter_map(|own| match own.ip {
            IpAddr::V6(ip) => Some((ip, own.prefix)),
            IpAddr::V4(_) => None,
        })
    }

    /// The same guest with other addresses: sockets that are bound to ANY stay at the anchors of before, and must go on
    /// being found there.
    pub(super) fn with(&self, own: Vec<Network>) -> Self {
        let mut changed = Self { own, ..self.clone() };
        if changed.anchor4() != self.anchor4() {
            changed.former4 = [self.anchor4(), self.former4[0]];
        }
        if changed.anchor6() != self.anchor6() {
            changed.former6 = [self.anchor6(), self.former6[0]];
        }
        changed
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut number = |value: u32| bytes.extend(value.to_ne_bytes());
        number(self.id);
        number(self.root);
        bytes.extend(self.loop4().octets());
        bytes.extend(self.loop6().octets());
        bytes.extend(self.anchor4().octets());
        bytes.extend(self.anchor6().octets());
        self.former4.iter().for_each(|ip| bytes.extend(ip.octets()));
        self.former6.iter().for_each(|ip| bytes.extend(ip.octets()));
        bytes.extend((self.own4().count() as u32).to_ne_bytes());
        bytes.extend((self.own6().count() as u32).to_ne_bytes());
        let start = bytes.len();
        for (ip, prefix) in self.own4() {
            bytes.extend(ip.octets());
            bytes.extend(u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0).to_be_bytes());
        }
        bytes.resize(start + MOST_ADDRESSES * 8, 0);
        let start = bytes.len();
        for (ip, prefix) in self.own6() {
            bytes.extend(ip.octets());
            bytes.extend(u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0).to_be_bytes());
        }
        bytes.resize(start + MOST_ADDRESSES * 32, 0);
        bytes
    }

    /// Reads what [`Self::bytes`] wrote; `None` where the length is another.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(bytes);
        let (id, root) = (cursor.number()?, cursor.number()?);
        cursor.take::<4>()?;
        cursor.take::<16>()?;
        cursor.take::<4>()?;
        cursor.take::<16>()?;
        let mut entry = Self::new(id, root, Vec::new());
        for former in &mut entry.former4 {
            *former = cursor.take::<4>()?.into();
        }
        for former in &mut entry.former6 {
            *former = cursor.take::<16>()?.into();
        }
        let (count4, count6) = (cursor.number()? as usize, cursor.number()? as usize);
        for number in 0..MOST_ADDRESSES {
            let (ip, mask) = (cursor.take::<4>()?, u32::from_be_bytes(cursor.take()?));
            if number < count4 {
                entry.own.push(Network { ip: Ipv4Addr::from(ip).into(), prefix: mask.leading_ones() as u8 });
            }
        }
        for number in 0..MOST_ADDRESSES {
            let (ip, mask) = (cursor.take::<16>()?, u128::from_be_bytes(cursor.take()?));
            if number < count6 {
                entry.own.push(Network { ip: Ipv6Addr::from(ip).into(), prefix: mask.leading_ones() as u8 });
            }
        }
        cursor.0.is_empty().then_some(entry)
    }
}

/// What `::1` is for the guest of this number.
pub(super) fn loopback6(id: u32) -> Ipv6Addr {
    Ipv6Addr::new(0xfd7f, 0x6c62, 0, 0, 0, 0, id as u16, 1)
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }
}

/// The key of an address in the maps of owners.
pub(super) fn key(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The guests at an address.
pub(super) fn owners(ids: &[u32]) -> Vec<u8> {
    let mut bytes = (ids.len() as u32).to_ne_bytes().to_vec();
    ids.iter().for_each(|id| bytes.extend(id.to_ne_bytes()));
    bytes.resize(4 + MOST_OWNERS * 4, 0);
    bytes
}

/// Reads what [`owners`] wrote.
pub(super) fn read_owners(bytes: &[u8]) -> Vec<u32> {
    let mut cursor = Cursor(bytes);
    let count = cursor.number().unwrap_or(0) as usize;
    (0..count.min(MOST_OWNERS)).filter_map(|_| cursor.number()).collect()
}

/// Whether a key of the map of known sockets is of this address: sixteen bytes of it, the port, the family and the
/// protocol.
pub(super) fn is_place_of(key: &[u8], ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => key.starts_with(&ip.octets()) && key.get(18) == Some(&2),
        IpAddr::V6(ip) => key.starts_with(&ip.octets()) && key.get(18) == Some(&10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        let (ip, prefix) = text.split_once('/').unwrap();
        Network { ip: ip.parse().unwrap(), prefix: prefix.parse().unwrap() }
    }

    fn entry(own: &[&str]) -> GuestEntry {
        GuestEntry::new(258, 7, own.iter().map(|text| network(text)).collect())
    }

    #[test]
    fn what_is_written_can_be_read() {
        for own in [&[] as &[&str], &["10.9.0.5/24"], &["10.9.0.5/0", "10.9.0.6/32", "fd00::5/64", "fd00::6/128"]] {
            let entry = entry(own).with(entry(own).own);
            assert_eq!(GuestEntry::read(&entry.bytes()), Some(entry.clone()));
            assert_eq!(GuestEntry::read(&entry.bytes()[1..]), None);
        }
    }

    #[test]
    fn the_layout_is_that_of_the_programs() {
        let bytes = entry(&["10.9.0.5/24", "fd00::5/64"]).bytes();
        assert_eq!(bytes.len(), 4 + 4 + 4 + 16 + 4 + 16 + 8 + 32 + 8 + 16 * 8 + 16 * 32);
        assert_eq!(bytes[8..12], [127, 65, 2, 0], "its private part of 127.0.0.0/8");
        assert_eq!(bytes[28..32], [10, 9, 0, 5], "its anchor");
        let own4 = 4 + 4 + 4 + 16 + 4 + 16 + 8 + 32 + 8;
        assert_eq!(bytes[own4..own4 + 8], [10, 9, 0, 5, 255, 255, 255, 0]);
    }

    #[test]
    fn anchors_of_before_are_kept() {
        let first = entry(&["10.9.0.5/24"]);
        let second = first.with(vec![network("10.9.0.6/24"), network("fd00::5/64")]);
        assert_eq!(second.former4[0], "10.9.0.5".parse::<Ipv4Addr>().unwrap());
        assert_eq!(second.former6[0], first.loop6());
        let third = second.with(Vec::new());
        assert_eq!(third.former4, ["10.9.0.6", "10.9.0.5"].map(|ip| ip.parse::<Ipv4Addr>().unwrap()));
        assert_eq!(third.anchor4(), "127.65.2.1".parse::<Ipv4Addr>().unwrap(), "without an address its own loopback");
        assert_eq!(
            third.with(vec![network("10.9.0.9/24")]).with(vec![network("10.9.0.9/16")]).former4[0],
            third.anchor4()
        );
    }

    #[test]
    fn owners_are_a_list_of_bounded_length() {
        assert_eq!(read_owners(&owners(&[3, 5])), [3, 5]);
        assert_eq!(owners(&[3]).len(), 36);
        let mut wrong = owners(&[1; MOST_OWNERS]);
        wrong[0] = 200;
        assert_eq!(read_owners(&wrong).len(), MOST_OWNERS);
    }

    #[test]
    fn private_loopbacks_stay_inside_127_0_0_0_8() {
        assert_eq!(GuestEntry::new(HIGHEST_ID, 0, Vec::new()).loop4(), "127.255.255.0".parse::<Ipv4Addr>().unwrap());
    }
}

//! On which device an address of a guest's lies. Plain data: no system calls.

use crate::device::Device;
use std::net::IpAddr;

/// An address and the network it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The address itself, without its network's length.
    pub ip: IpAddr,
    /// How many of its first bits name the network. Addresses of one network talk from one to the other directly.
    pub prefix: u8,
}

/// What has to be done for a guest to own an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The address, and the network it talks to directly.
    pub own: Network,
    /// The device that it has to be put on; `None` where the host has it already.
    pub put_on: Option<u32>,
}

/// An address that cannot be placed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlacementError {
    /// No device, or not this one.
    #[error("this host has no network device '{0}'; 'ip link' lists those there are")]
    NoDevice(String),
    /// The device is not evident.
    #[error("no device of this host is in a network that {0} belongs to; name the device, for example {0}@eth0")]
    NoNetwork(IpAddr),
    /// Not an address that one machine can have.
    #[error("{0} cannot be a guest's address: it is {1}")]
    Special(IpAddr, &'static str),
    /// More bits than the address has.
    #[error("/{1} is no length of a network of {0}")]
    Prefix(IpAddr, u8),
}

/// Bits of a whole address.
pub fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Whether two addresses agree in their first bits.
pub fn same_network(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let drop = u32::from(bits(one).saturating_sub(prefix));
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).checked_shr(drop).unwrap_or(0) == 0,
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).checked_shr(drop).unwrap_or(0) == 0,
        _ => false,
    }
}

/// Places an address: where the host has it, else on the named device, else on the one whose network it belongs to (of
/// several the narrowest).
///
/// # Errors
///
/// Whatever makes it impossible, by name.
pub fn place(
    devices: &[Device],
    ip: IpAddr,
    prefix: Option<u8>,
    device: Option<&str>,
) -> Result<Placement, PlacementError> {
    if let Some(kind) = special(ip) {
        return Err(PlacementError::Special(ip, kind));
    }
    if let Some(prefix) = prefix.filter(|prefix| *prefix > bits(ip)) {
        return Err(PlacementError::Prefix(ip, prefix));
    }
    let named = |name: &str| devices.iter().find(|device| device.name == name);
    let wanted = device.map(|name| named(name).ok_or_else(|| PlacementError::NoDevice(name.to_owned()))).transpose()?;
    let networks = devices.iter().flat_map(|device| device.addresses.iter().map(move |known| (device, *known)));
    let network = networks
        .clone()
        .filter(|(_, (known, length))| *length < bits(*known) && same_network(ip, *known, *length))
        .filter(|(device, _)| wanted.is_none_or(|wanted| wanted.index == device.index))
        .max_by_key(|(_, (_, length))| *length);
    let whole = prefix.or(network.map(|(_, (_, length))| length));
    if networks.clone().any(|(_, (known, _))| known == ip) {
        return Ok(Placement { own: Network { ip, prefix: whole.unwrap_or(bits(ip)) }, put_on: None });
    }
    let on = wanted.or(network.map(|(device, _)| device)).ok_or(PlacementError::NoNetwork(ip))?;
    Ok(Placement { own: Network { ip, prefix: whole.unwrap_or(bits(ip)) }, put_on: Some(on.index) })
}

fn special(ip: IpAddr) -> Option<&'static str> {
    match ip {
        _ if ip.is_unspecified() => Some("the address that stands for all"),
        _ if ip.is_loopback() => Some("a loopback address, and every guest has those of its own"),
        _ if ip.is_multicast() => Some("a multicast address"),
        IpAddr::V4(ip) if ip.is_broadcast() => Some("the broadcast address"),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some("a link-local address, which is the device's own"),
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
            Some("an IPv4 address in IPv6 notation; write it in its own")
        }
        IpAddr::V6(ip) if ip.segments()[..4] == [0xfd7f, 0x6c62, 0, 0] => Some("in the network of guests' loopbacks"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<Device> {
        let device = |index, name: &str, addresses: &[(&str, u8)]| Device {
            index,
            name: name.into(),
            addresses: addresses.iter().map(|(ip, prefix)| (ip.parse().unwrap(), *prefix)).collect(),
        };
        vec![
            device(1, "lo", &[("127.0.0.1", 8), ("::1", 128)]),
            device(2, "eth0", &[("10.9.0.1", 16), ("10.9.0.77", 32), ("fd00:9::1", 64)]),
            device(3, "eth1", &[("10.9.8.1", 24)]),
        ]
    }

    fn placed(ip: &str, prefix: Option<u8>, device: Option<&str>) -> Result<(u8, Option<u32>), PlacementError> {
        let placement = place(&devices(), ip.parse().unwrap(), prefix, device)?;
        assert_eq!(placement.own.ip, ip.parse::<IpAddr>().unwrap());
        Ok((placement.own.prefix, placement.put_on))
    }

    #[test]
    fn an_address_goes_where_its_network_is() {
        assert_eq!(placed("10.9.0.5", None, None), Ok((16, Some(2))));
        assert_eq!(placed("10.9.8.5", None, None), Ok((24, Some(3))), "the narrowest of those that fit");
        assert_eq!(placed("fd00:9::5", None, None), Ok((64, Some(2))));
        assert_eq!(placed("10.9.0.5", Some(24), None), Ok((24, Some(2))), "a length that was given holds");
    }

    #[test]
    fn one_that_the_host_has_is_used_where_it_is() {
        assert_eq!(placed("10.9.0.1", None, None), Ok((16, None)));
        assert_eq!(placed("10.9.0.77", None, None), Ok((16, None)), "a lone address belongs to the network around it");
    }

    #[test]
    fn a_named_device_holds() {
        assert_eq!(placed("192.0.2.1", None, Some("eth1")), Ok((32, Some(3))));
        assert_eq!(placed("10.9.0.5", None, Some("eth1")), Ok((32, Some(3))));
        assert_eq!(placed("10.9.0.5", None, Some("eth7")), Err(PlacementError::NoDevice("eth7".into())));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        assert!(matches!(placed("192.0.2.1", None, None), Err(PlacementError::NoNetwork(_))));
        assert!(matches!(placed("10.9.0.5", Some(33), None), Err(PlacementError::Prefix(..))));
        for ip in ["0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "fe80::1", "::ffff:10.9.0.5"] {
            assert!(matches!(placed(ip, None, Some("eth0")), Err(PlacementError::Special(..))), "{ip}");
        }
    }

    #[test]
    fn networks_are_compared_to_the_last_bit() {
        let same = |one: &str, other: &str, prefix| same_network(one.parse().unwrap(), other.parse().unwrap(), prefix);
        assert!(same("1.2.3.4", "255.0.0.0", 0) && same("1.2.3.4", "1.2.3.4", 32) && !same("1.2.3.4", "1.2.3.5", 32));
        assert!(same("1.2.3.4", "1.2.3.5", 31) && !same("1.2.3.4", "1.2.3.6", 31) && !same("1.2.3.4", "::", 0));
        assert!(same("fd00::1", "fd00::2", 64) && !same("fd00::1", "fd00:0:0:1::1", 64) && same("::", "ff::", 0));
    }
}

//! Which addresses a private network has, and which of them a guest gets.

use crate::network::networks::NetworkError;
use crate::network::private_network::Definition;
use crate::network::settings::NetworkSettings;
use pando_api::Spec;
use pando_net::device::{self, Device};
use pando_net::private::{self, Subnet, SubnetError};
use std::net::IpAddr;

/// The addresses that a network is to have: those that were decided when it was made, those that pando.toml names, or
/// some that no device of the host's has and that are not `taken`.
pub(crate) fn decide(
    definition: &Definition,
    settings: &NetworkSettings,
    taken: &[Subnet],
) -> Result<Subnet, NetworkError> {
    let devices = device::devices()?;
    let subnet = match (definition.subnet, &settings.private) {
        (Some(subnet), _) => {
            // What an earlier daemon left of it is made anew.
            let bridge = private::bridge_of(&definition.tag);
            let others: Vec<_> = devices.into_iter().filter(|device| device.name != bridge).collect();
            is_not_the_hosts(&subnet, &others)?;
            subnet
        }
        (None, Some(named)) => named.parse::<Subnet>()?.with_six(seed(&definition.tag)),
        (None, None) => private::choose(&devices, taken, seed(&definition.tag))?,
    };
    Ok(Subnet { six: subnet.six.filter(|_| has_ipv6()), ..subnet })
}

/// Refuses addresses that are those of a network of the host's.
pub(crate) fn is_not_the_hosts(subnet: &Subnet, devices: &[Device]) -> Result<(), SubnetError> {
    match subnet.overlapping(devices) {
        Some(device) => Err(SubnetError::OfDevice(subnet.to_string(), device.name.clone())),
        None => Ok(()),
    }
}

/// Of the machine and of some letters, and so the same from one daemon to the next.
pub(crate) fn seed(of: &str) -> u64 {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let bytes = machine.iter().chain(of.as_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn has_ipv6() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6").is_ok_and(|text| text.trim() == "0")
}

/// The address that the user chose.
pub(crate) fn wanted(spec: &Spec, subnet: &Subnet) -> Result<Option<u32>, NetworkError> {
    let Some(address) = spec.addresses.first() else { return Ok(None) };
    let number = match address.ip {
        IpAddr::V4(four) => subnet.number_of(four),
        IpAddr::V6(_) => None,
    };
    number.map(Some).ok_or(NetworkError::Outside(address.ip, subnet.four, subnet.length))
}

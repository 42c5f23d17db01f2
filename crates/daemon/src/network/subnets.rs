//! Which addresses a private network has, and which of them a guest gets.

use crate::network::networks::NetworkError;
use crate::network::private_network::Definition;
use crate::network::settings::NetworkSettings;
use pando_api::Spec;
use pando_kernel::CallError;
use pando_net::device::{self, Device};
use pando_net::private::{self, Destination, Subnet, SubnetError};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What the host's own networks have of all addresses.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) devices: Vec<Device>,
    routes: Vec<Destination>,
}

impl Surroundings {
    /// Looks at devices and routes.
    pub(crate) fn look() -> Result<Self, CallError> {
        let devices = device::devices()?;
        let routes = private::destinations(&devices)?;
        Ok(Self { devices, routes })
    }

    /// Without what an earlier daemon left of a network that is made anew.
    fn without(mut self, tag: &str) -> Self {
        let bridge = private::bridge_of(tag);
        self.devices.retain(|device| device.name != bridge);
        self
    }

    /// Those to which routes lead.
    pub(crate) fn routed(&self) -> impl Iterator<Item = Subnet> {
        self.routes.iter().map(|route| route.to)
    }

    /// Refuses addresses that are those of a network of the host's, or to which it knows a way that leads elsewhere.
    pub(crate) fn allow(&self, subnet: &Subnet) -> Result<(), SubnetError> {
        if let Some(device) = subnet.overlapping(&self.devices) {
            return Err(SubnetError::OfDevice(subnet.to_string(), device.name.clone()));
        }
        match subnet.routed(&self.routes) {
            Some(route) => Err(SubnetError::Routed(subnet.to_string(), route.to.to_string(), route.device.clone())),
            None => Ok(()),
        }
    }
}

/// The addresses that a network is to have: those that were decided when it was made, those that pando.toml names, or
/// some that nothing of the host's leads to and that are not `taken` by networks with names.
pub(crate) fn decide(
    definition: &Definition,
    settings: &NetworkSettings,
    taken: &BTreeMap<String, Subnet>,
) -> Result<Subnet, NetworkError> {
    let surroundings = Surroundings::look()?.without(&definition.tag);
    let subnet = match (definition.subnet, &settings.private) {
        (Some(subnet), _) => {
            surroundings.allow(&subnet)?;
            subnet
        }
        (None, Some(named)) => {
            let subnet = named.parse::<Subnet>()?.with_six(seed(&definition.tag));
            if let Some((other, its)) = taken.iter().find(|(_, its)| its.overlaps(&subnet)) {
                return Err(NetworkError::Overlaps(subnet.to_string(), other.clone(), its.to_string()));
            }
            surroundings.allow(&subnet)?;
            subnet
        }
        (None, None) => {
            let taken: Vec<Subnet> = taken.values().copied().chain(surroundings.routed()).collect();
            private::choose(&surroundings.devices, &taken, seed(&definition.tag))?
        }
    };
    Ok(Subnet { six: subnet.six.filter(|_| has_ipv6()), ..subnet })
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

//! What a guest has set of its own network that no clone would have.
//!
//! The network namespace of the first process, where it is the guest's own: a clone gets one with the loopback device,
//! and the device by which the guest is connected, with addresses of its own. What a guest has changed besides is
//! refused by name. What it has set below /proc/sys/net comes along, and how large the packets of its device may be.
//!
//! It is looked at before anybody is stopped, and not once more after that: a network takes longer to be told of than
//! processes stand still.

use crate::capture::networks;
use crate::image::namespace::LOOPBACK;
use crate::image::namespace_kind::NETWORK;
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use crate::subject::{GivenNetwork, GivenPlace, Subject};
use pando_kernel::network::{Address, Device, Network, Route};
use pando_kernel::{CallError, Context};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

/// What stands in the way, said of a process that is there.
pub(crate) fn objections(subject: &Subject<'_>, members: &[Member]) -> Result<Vec<Refusal>, CallError> {
    const ADVICE: &str =
        "undo that; of a guest's own network what each is given comes along, and what is set in /proc/sys/net";
    let (Some(given), Some(member)) = (subject.network, members.iter().find(|member| member.state != 'Z')) else {
        return Ok(Vec::new());
    };
    let at = NETWORK.at(subject.init);
    let look = || Network::of(File::open(&at)?.as_fd());
    let network = look().context(|| format!("looking into the net namespace at {at}"))?;
    let refusal = |kind| Refusal {
        pid: member.pid,
        name: member.name.clone(),
        descriptor: None,
        kind: format!("{kind} in the guest's own network"),
        advice: ADVICE,
    };
    Ok(strange(network, given).map(refusal).into_iter().collect())
}

/// The first thing that no clone would have.
fn strange(mut network: Network, given: &GivenNetwork) -> Option<String> {
    let device = given.device.as_ref().map(|name| network.devices.iter().find(|one| one.name == *name).cloned());
    match &device {
        Some(None) => return Some("a network device that was removed or renamed (eth0)".into()),
        Some(Some(one)) if !one.up => return Some(format!("a network device that was taken down ({})", one.name)),
        _ => {}
    }
    if network.devices.iter().any(|one| one.name == LOOPBACK && !one.up) {
        return Some("a loopback device that was taken down".into());
    }
    let Some(device) = device.flatten() else { return networks::strange(&network) };
    let own = device.index;
    network.devices.retain(|one| one.index != own);
    let Some(place) = &given.place else {
        network.addresses.retain(|one| one.device != own);
        network.routes.retain(|one| one.device != own);
        return networks::strange(&network);
    };
    let lacking = changed(&device, place).or_else(|| removed_address(&network, own, place));
    if lacking.is_some() {
        return lacking;
    }
    let removed = removed_route(&network, own, place);
    network.addresses.retain(|one| one.device != own || !place.has(one) && !is_local(&one.ip));
    network.routes.retain(|one| one.device != own || !place.is_usual(one));
    networks::strange(&network).or(removed)
}

/// What was chosen of the device itself. How large its packets may be comes along.
fn changed(device: &Device, place: &GivenPlace) -> Option<String> {
    if let Some(oddity) = device.oddity {
        return Some(format!("a network device {oddity} ({})", device.name));
    }
    let is_other = device.hardware != place.hardware;
    is_other.then(|| format!("a network device with another hardware address than it was given ({})", device.name))
}

/// An address that the device was given and does not have.
fn removed_address(network: &Network, own: u32, place: &GivenPlace) -> Option<String> {
    let has = |ip: &IpAddr, bits: &u8| {
        network.addresses.iter().any(|one| (one.device, one.ip, one.bits) == (own, *ip, *bits))
    };
    let lost = |(ip, bits): &&(IpAddr, u8)| speaks(network, own, ip) && !has(ip, bits);
    place.addresses.iter().find(lost).map(|(ip, bits)| format!("an address that was removed ({ip}/{bits})"))
}

/// A route that the device was given, or that the kernel made for its addresses, and that is gone.
fn removed_route(network: &Network, own: u32, place: &GivenPlace) -> Option<String> {
    let mut of_device = network.routes.iter().filter(|one| one.device == own && one.table == MAIN);
    let leads = |one: &Route, gateway: &IpAddr| one.to.is_none() && one.via == Some(*gateway) && one.plain;
    let lost = |gateway: &&IpAddr| speaks(network, own, gateway) && !of_device.clone().any(|one| leads(one, gateway));
    if let Some(gateway) = place.gateways.iter().find(lost) {
        return Some(format!("a default route that was removed (by {gateway})"));
    }
    let made = |(ip, bits): &(IpAddr, u8)| {
        let network_of = network_of(*ip, *bits);
        (ip.is_ipv4() && !of_device.any(|one| one.to == Some((network_of, *bits)) && one.maker == KERNEL))
            .then(|| format!("a route that was removed (to {network_of}/{bits})"))
    };
    place.addresses.iter().find_map(made)
}

/// The table of routes that are not the namespace's own addresses (`RT_TABLE_MAIN`).
const MAIN: u32 = 254;

/// The makers of routes that nobody asked for (`RTPROT_*`): the kernel, and what routers announce.
const KERNEL: u8 = 2;
const ANNOUNCED: u8 = 9;

impl GivenPlace {
    fn has(&self, address: &Address) -> bool {
        self.addresses.contains(&(address.ip, address.bits))
    }

    /// Whether a route of the device is one that each has: the ones given, and those that the kernel makes for its
    /// addresses.
    fn is_usual(&self, route: &Route) -> bool {
        let within = |ip: IpAddr, (own, bits): &(IpAddr, u8)| network_of(ip, *bits) == network_of(*own, *bits);
        let of_address =
            |ip: IpAddr| self.addresses.iter().any(|one| ip.is_ipv4() == one.0.is_ipv4() && within(ip, one));
        match route.to {
            _ if route.maker == ANNOUNCED => true,
            None => route.table == MAIN && route.plain && route.via.is_some_and(|via| self.gateways.contains(&via)),
            Some((to, _)) => route.maker == KERNEL && (of_address(to) || to.is_multicast() || is_local(&to)),
        }
    }
}

/// Whether a device has anything of an address's protocol: of IPv6 it has nothing where a setting of it says so, which
/// comes along.
fn speaks(network: &Network, own: u32, ip: &IpAddr) -> bool {
    ip.is_ipv4() || network.addresses.iter().any(|one| one.device == own && one.ip.is_ipv6())
}

/// Whether it is an address that the kernel gives each device of IPv6.
fn is_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80)
}

/// The first address of the network of so many bits that an address is in.
fn network_of(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & mask).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::network::Rule;

    const HARDWARE: [u8; 6] = [2, 0x50, 10, 1, 0, 2];

    fn network() -> (Network, GivenNetwork) {
        let device = |index, name: &str, longest| Device {
            index,
            name: name.into(),
            up: true,
            longest,
            hardware: HARDWARE.to_vec(),
            oddity: None,
        };
        let route = |table, to, device, maker| Route { table, to, device, maker, via: None, plain: true };
        let gateway = Some(Ipv4Addr::new(10, 1, 0, 1).into());
        let address = |ip: &str, bits, device| Address { ip: ip.parse().unwrap(), bits, device };
        let to = |to: &str, bits| Some((to.parse().unwrap(), bits));
        let network = Network {
            devices: vec![device(1, "lo", 65_536), device(2, "eth0", 1500)],
            addresses: vec![
                address("127.0.0.1", 8, 1),
                address("::1", 128, 1),
                address("10.1.0.2", 16, 2),
                address("fe80::1", 64, 2),
            ],
            routes: vec![
                Route { via: gateway, ..route(254, None, 2, 4) },
                route(254, to("10.1.0.0", 16), 2, 2),
                route(255, to("127.0.0.0", 8), 1, 2),
                route(255, to("10.1.255.255", 32), 2, 2),
                route(255, to("ff00::", 8), 2, 2),
            ],
            rules: [0, 32_766, 32_767].map(|priority| Rule { priority, plain: true }).to_vec(),
            ..Network::default()
        };
        let place = GivenPlace {
            addresses: vec![(Ipv4Addr::new(10, 1, 0, 2).into(), 16)],
            gateways: gateway.into_iter().collect(),
            hardware: HARDWARE.to_vec(),
        };
        (network, GivenNetwork { device: Some("eth0".into()), place: Some(place), settings: Vec::new() })
    }

    #[test]
    fn what_was_given_is_told_from_what_was_made() {
        let (plain, given) = network();
        assert_eq!(strange(plain.clone(), &given), None);
        type Change = fn(&mut Network);
        let cases: [(Change, &str); 16] = [
            (|network| network.devices[1].name = "lan".into(), "a network device that was removed"),
            (|network| network.devices[1].up = false, "a network device that was taken down (eth0)"),
            (|network| network.devices[0].up = false, "a loopback device that was taken down"),
            (|network| network.addresses[2].ip = Ipv4Addr::new(10, 1, 0, 3).into(), "an address that was removed"),
            (|network| network.addresses[3].ip = Ipv4Addr::new(10, 1, 0, 3).into(), "an address (10.1.0.3/64)"),
            (|network| network.routes[1].maker = 4, "a route (to 10.1.0.0/16)"),
            (|network| network.filters = true, "packet filters"),
            (|network| network.rules[0].priority = 7, "a rule for routes (with priority 7)"),
            (|network| network.addresses[2].bits = 24, "an address that was removed (10.1.0.2/16)"),
            (|network| network.devices[1].hardware[5] = 9, "a network device with another hardware address"),
            (|network| network.devices[1].oddity = Some("in a group"), "a network device in a group (eth0)"),
            (
                |network| network.routes.retain(|route| route.to.is_some()),
                "a default route that was removed (by 10.1.0.1)",
            ),
            (
                |network| network.routes.retain(|route| route.table != 254 || route.to.is_none()),
                "a route that was removed (to 10.1.0.0/16)",
            ),
            (|network| network.routes[0].plain = false, "a default route"),
            (|network| network.routes[0].via = Some(Ipv4Addr::new(10, 1, 0, 9).into()), "a default route"),
            (
                |network| network.routes[3].to = Some((Ipv4Addr::new(10, 9, 0, 0).into(), 16)),
                "a route (to 10.9.0.0/16)",
            ),
        ];
        for (change, wanted) in cases {
            let (mut network, given) = network();
            change(&mut network);
            let said = strange(network, &given);
            assert!(said.as_ref().is_some_and(|said| said.starts_with(wanted)), "{wanted}: {said:?}");
        }
        // One that gets its addresses itself.
        let (mut other, given) = network();
        other.addresses[2].bits = 24;
        other.addresses[2].ip = Ipv4Addr::new(192, 168, 0, 9).into();
        assert_eq!(strange(other, &GivenNetwork { place: None, ..given }), None);
    }
}

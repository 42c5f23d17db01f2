//! What a guest has set of its own network that no clone would have.
//!
//! The network namespace of the first process, where it is the guest's own: a clone gets one with the loopback device,
//! and the device by which the guest is connected, with addresses of its own. What a guest has changed besides is
//! refused by name; what it has set below /proc/sys/net comes along.
//!
//! It is looked at before anybody is stopped, and not once more after that: a network takes longer to be told of than
//! processes stand still.

use crate::capture::networks;
use crate::image::namespace::LOOPBACK;
use crate::image::namespace_kind::NETWORK;
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use crate::subject::{GivenNetwork, Subject};
use pando_kernel::network::{Address, Network, Route};
use pando_kernel::{CallError, Context};
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// What stands in the way, said of a process that is there.
pub(crate) fn objections(subject: &Subject<'_>, members: &[Member]) -> Result<Vec<Refusal>, CallError> {
    const ADVICE: &str =
        "remove it; of a guest's own network what each is given comes along, and what is set in /proc/sys/net";
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
    /// Those of the kernel, and of what routers announce.
    const MADE: [u8; 2] = [2, 9];
    let device = given.device.as_ref().map(|name| network.devices.iter().find(|one| one.name == *name).cloned());
    match &device {
        Some(None) => return Some("a network device that was removed or renamed (eth0)".into()),
        Some(Some(one)) if !one.up => return Some(format!("a network device that was taken down ({})", one.name)),
        _ => {}
    }
    if network.devices.iter().any(|one| one.name == LOOPBACK && !one.up) {
        return Some("a loopback device that was taken down".into());
    }
    if let Some(Some(device)) = &device {
        let own = device.index;
        if let Some(addresses) = &given.addresses {
            let has = |ip: &IpAddr| network.addresses.iter().any(|one| one.device == own && one.ip == *ip);
            if let Some(lost) = addresses.iter().find(|ip| ip.is_ipv4() && !has(ip)) {
                return Some(format!("an address that was removed ({lost})"));
            }
        }
        let was_given = |ip: &IpAddr| given.addresses.as_ref().is_none_or(|all| all.contains(ip));
        let is_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80);
        network.addresses.retain(|one: &Address| one.device != own || !was_given(&one.ip) && !is_local(&one.ip));
        let usual = |one: &Route| given.addresses.is_none() || one.to.is_none() || MADE.contains(&one.maker);
        network.routes.retain(|one| one.device != own || !usual(one));
        network.devices.retain(|one| one.index != own);
    }
    networks::strange(&network)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::network::Device;
    use std::net::Ipv4Addr;

    fn network() -> (Network, GivenNetwork) {
        let device = |index, name: &str, longest| Device { index, name: name.into(), up: true, longest };
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
                Route { table: 254, to: None, device: 2, maker: 4 },
                Route { table: 254, to: to("10.1.0.0", 16), device: 2, maker: 2 },
                Route { table: 255, to: to("127.0.0.0", 8), device: 1, maker: 2 },
            ],
            rules: vec![0, 32_766, 32_767],
            filters: false,
        };
        let addresses = Some(vec![Ipv4Addr::new(10, 1, 0, 2).into()]);
        (network, GivenNetwork { device: Some("eth0".into()), addresses, settings: Vec::new() })
    }

    #[test]
    fn what_was_given_is_told_from_what_was_made() {
        let (plain, given) = network();
        assert_eq!(strange(plain.clone(), &given), None);
        type Change = fn(&mut Network);
        let cases: [(Change, &str); 8] = [
            (|network| network.devices[1].name = "lan".into(), "a network device that was removed"),
            (|network| network.devices[1].up = false, "a network device that was taken down (eth0)"),
            (|network| network.devices[0].up = false, "a loopback device that was taken down"),
            (|network| network.addresses[2].ip = Ipv4Addr::new(10, 1, 0, 3).into(), "an address that was removed"),
            (|network| network.addresses[3].ip = Ipv4Addr::new(10, 1, 0, 3).into(), "an address (10.1.0.3/64)"),
            (|network| network.routes[1].maker = 4, "a route (to 10.1.0.0/16)"),
            (|network| network.filters = true, "packet filters"),
            (|network| network.rules.push(7), "a rule for routes (with priority 7)"),
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
        assert_eq!(strange(other, &GivenNetwork { addresses: None, ..given }), None);
    }
}

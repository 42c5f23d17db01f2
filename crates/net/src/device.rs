//! The network devices of this thread's network namespace, and the addresses on them.

use crate::netlink::Netlink;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use pando_kernel::{CallError, Context};
use std::io;
use std::net::IpAddr;

/// The mark of addresses that were put on a device by [`Devices::add_address`] (IFA_PROTO, Linux 5.18): by it they are
/// found again after a crash.
const OURS: u8 = 0x50;

/// A network device of the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its index, unique in its namespace.
    pub index: u32,
    /// The device's name in this network namespace.
    pub name: String,
    /// Its addresses with the lengths of their networks' prefixes, in bits.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Groups of changes that the kernel tells of (linux/rtnetlink.h): RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR,
/// RTNLGRP_IPV6_IFADDR.
const CHANGES: [u32; 3] = [1, 5, 9];

/// All devices, as known by the last look at them; what has changed since is waiting to be heard. Own changes are made
/// by the same conversation.
#[derive(Debug)]
pub struct Devices {
    asking: Netlink,
    hearing: Netlink,
    all: Vec<Device>,
}

impl Devices {
    /// Looks at those of this thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel's, from rtnetlink(7).
    pub fn look() -> Result<Self, CallError> {
        let open = || "opening a netlink socket".into();
        // First, so that nothing changes unheard.
        let hearing = Netlink::hearing(&CHANGES).context(open)?;
        let asking = Netlink::open().context(open)?;
        let mut all = Vec::new();
        for (what, request) in [
            ("listing network devices", RouteNetlinkMessage::GetLink(LinkMessage::default())),
            ("listing network addresses", RouteNetlinkMessage::GetAddress(AddressMessage::default())),
        ] {
            for message in asking.dump(request).context(|| what.into())? {
                note(&mut all, message);
            }
        }
        Ok(Self { asking, hearing, all })
    }

    /// Takes note of what has changed since the last look; whether a device has come or gone. Another look would take a
    /// third of the time that a guest needs to be admitted.
    ///
    /// # Errors
    ///
    /// Those of [`Self::look`].
    pub fn catch_up(&mut self) -> Result<bool, CallError> {
        let Ok(told) = self.hearing.heard() else {
            // More has changed than is kept.
            *self = Self::look()?;
            return Ok(true);
        };
        let moved: usize = told.into_iter().map(|message| usize::from(note(&mut self.all, message))).sum();
        Ok(moved > 0)
    }

    /// All devices that are known from the last look.
    pub fn all(&self) -> &[Device] {
        &self.all
    }

    /// Puts an address on a device, usable at once: the operator who gives addresses to guests knows that they are
    /// free, so there is no waiting for others to object (duplicate address detection).
    ///
    /// # Errors
    ///
    /// EEXIST where the device has it already.
    pub fn add_address(&mut self, index: u32, ip: IpAddr, prefix: u8) -> Result<(), CallError> {
        let request = RouteNetlinkMessage::NewAddress(message(index, ip, prefix));
        let added = self.asking.change(request, NLM_F_CREATE | NLM_F_EXCL);
        added.context(|| format!("adding {ip}/{prefix} to device {index}"))?;
        put(&mut self.all, index, (ip, prefix));
        Ok(())
    }
}

/// Takes note of what the kernel tells, be it an answer or a change; whether a device has come or gone.
fn note(all: &mut Vec<Device>, message: RouteNetlinkMessage) -> bool {
    let known = all.len();
    match message {
        // Bridges tell of their ports in words for devices.
        RouteNetlinkMessage::NewLink(message) if message.header.interface_family == AddressFamily::Unspec => {
            let Some(found) = device(message) else { return false };
            match all.iter_mut().find(|device| device.index == found.index) {
                Some(renamed) => renamed.name = found.name,
                None => all.push(found),
            }
        }
        RouteNetlinkMessage::DelLink(message) if message.header.interface_family == AddressFamily::Unspec => {
            all.retain(|device| device.index != message.header.index);
        }
        RouteNetlinkMessage::NewAddress(message) => {
            if let Some(ip) = address(&message) {
                put(all, message.header.index, (ip, message.header.prefix_len));
            }
        }
        RouteNetlinkMessage::DelAddress(message) => {
            let gone = address(&message).map(|ip| (ip, message.header.prefix_len));
            for device in all.iter_mut().filter(|device| device.index == message.header.index) {
                device.addresses.retain(|own| Some(*own) != gone);
            }
        }
        _ => {}
    }
    all.len() != known
}

fn put(all: &mut [Device], index: u32, own: (IpAddr, u8)) {
    if let Some(device) = all.iter_mut().find(|device| device.index == index && !device.addresses.contains(&own)) {
        device.addresses.push(own);
    }
}

/// All devices that there are, with their addresses.
///
/// # Errors
///
/// The kernel's, from rtnetlink(7).
pub fn devices() -> Result<Vec<Device>, CallError> {
    Devices::look().map(|devices| devices.all)
}

/// The indexes of all devices.
///
/// # Errors
///
/// The kernel's, from rtnetlink(7).
pub(crate) fn indexes() -> Result<Vec<u32>, CallError> {
    let netlink = Netlink::open().context(|| "opening a netlink socket".into())?;
    let links = netlink.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()));
    let index = |message| match message {
        RouteNetlinkMessage::NewLink(message) => Some(message.header.index),
        _ => None,
    };
    Ok(links.context(|| "listing network devices".into())?.into_iter().filter_map(index).collect())
}

/// The names of those that are bridges.
///
/// # Errors
///
/// The kernel's, from rtnetlink(7).
pub(crate) fn bridges() -> Result<Vec<String>, CallError> {
    let netlink = Netlink::open().context(|| "opening a netlink socket".into())?;
    let links = netlink.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()));
    let is_bridge = |message: &LinkMessage| {
        message.attributes.iter().any(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => infos.contains(&LinkInfo::Kind(InfoKind::Bridge)),
            _ => false,
        })
    };
    let name = |message| match message {
        RouteNetlinkMessage::NewLink(message) if is_bridge(&message) => device(message).map(|device| device.name),
        _ => None,
    };
    Ok(links.context(|| "listing network devices".into())?.into_iter().filter_map(name).collect())
}

fn device(message: LinkMessage) -> Option<Device> {
    let name = message.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    });
    Some(Device { index: message.header.index, name: name?, addresses: Vec::new() })
}

/// Of a device with a peer the own address is the local one.
fn address(message: &AddressMessage) -> Option<IpAddr> {
    let find = |local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(ip) if local => Some(*ip),
            AddressAttribute::Address(ip) if !local => Some(*ip),
            _ => None,
        })
    };
    find(true).or_else(|| find(false))
}

/// Puts an address on a device of our own, with its network.
pub(crate) fn assign(device: u32, ip: IpAddr, prefix: u8) -> Result<(), CallError> {
    let mut message = message(device, ip, prefix);
    message.attributes.retain(|attribute| !matches!(attribute, AddressAttribute::Flags(_)));
    let netlink = Netlink::open().context(|| "opening a netlink socket".into())?;
    let request = RouteNetlinkMessage::NewAddress(message);
    netlink.change(request, NLM_F_CREATE | NLM_F_EXCL).context(|| format!("adding {ip}/{prefix} to device {device}"))
}

/// Sends everything that has no other route by a gateway.
pub(crate) fn route_by(device: u32, gateway: IpAddr) -> Result<(), CallError> {
    let mut message = RouteMessage::default();
    message.header.address_family = if gateway.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![RouteAttribute::Gateway(gateway.into()), RouteAttribute::Oif(device)];
    let netlink = Netlink::open().context(|| "opening a netlink socket".into())?;
    let request = RouteNetlinkMessage::NewRoute(message);
    netlink.change(request, NLM_F_CREATE | NLM_F_EXCL).context(|| format!("routing by {gateway}"))
}

/// By which devices, and which gateways there, everything goes that has no other route.
///
/// # Errors
///
/// The kernel's, from rtnetlink(7).
pub fn default_routes() -> Result<Vec<(u32, Option<IpAddr>)>, CallError> {
    let netlink = Netlink::open().context(|| "opening a netlink socket".into())?;
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        let routes = netlink.dump(RouteNetlinkMessage::GetRoute(message));
        for message in routes.context(|| "listing routes".into())? {
            let RouteNetlinkMessage::NewRoute(route) = message else { continue };
            let is_default = route.header.destination_prefix_length == 0
                && route.header.table == RouteHeader::RT_TABLE_MAIN
                && route.header.kind == RouteType::Unicast;
            let gateway = route.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Gateway(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
                RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
                _ => None,
            });
            let device = route.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Oif(device) => Some(*device),
                _ => None,
            });
            found.extend(device.filter(|_| is_default).map(|device| (device, gateway)));
        }
    }
    Ok(found)
}

/// The index of the device with this name.
///
/// # Errors
///
/// ENODEV.
pub fn named(name: &str) -> Result<u32, CallError> {
    let missing = || io::Error::from_raw_os_error(rustix::io::Errno::NODEV.raw_os_error());
    let found = devices()?.into_iter().find(|device| device.name == name);
    found.map(|device| device.index).ok_or_else(missing).context(|| format!("looking for device {name}"))
}

/// Takes an address off a device. One that is gone already is no error.
///
/// # Errors
///
/// The kernel's, from rtnetlink(7).
pub fn remove_address(device: u32, ip: IpAddr, prefix: u8) -> Result<(), CallError> {
    let request = RouteNetlinkMessage::DelAddress(message(device, ip, prefix));
    let netlink = Netlink::open().context(|| "opening a netlink socket".into())?;
    match netlink.change(request, 0) {
        Err(error) if is_gone(&error) => Ok(()),
        outcome => outcome.context(|| format!("removing {ip}/{prefix} from device {device}")),
    }
}

/// Takes an address off wherever [`Devices::add_address`] put it, if it did. Those that the host has by itself stay.
///
/// # Errors
///
/// The kernel's, from rtnetlink(7).
pub fn withdraw(ip: IpAddr) -> Result<(), CallError> {
    let netlink = Netlink::open().context(|| "opening a netlink socket".into())?;
    let addresses = netlink.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()));
    for message in addresses.context(|| "listing network addresses".into())? {
        let RouteNetlinkMessage::NewAddress(message) = message else { continue };
        let ours = message.attributes.contains(&AddressAttribute::Protocol(AddressProtocol::Other(OURS)));
        if ours && address(&message) == Some(ip) {
            remove_address(message.header.index, ip, message.header.prefix_len)?;
        }
    }
    Ok(())
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [rustix::io::Errno::ADDRNOTAVAIL, rustix::io::Errno::NODEV];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn message(device: u32, ip: IpAddr, prefix: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.prefix_len = prefix;
    message.header.index = device;
    message.header.scope = if ip.is_loopback() { AddressScope::Host } else { AddressScope::Universe };
    message.header.flags = AddressHeaderFlags::Nodad;
    message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
    message.attributes.push(AddressAttribute::Protocol(AddressProtocol::Other(OURS)));
    if ip.is_ipv6() {
        // No route of its own: the device's other addresses have brought the one to the network.
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad | AddressFlags::Noprefixroute));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Unspec;
        message.header.index = index;
        message.attributes = vec![LinkAttribute::IfName(name.into())];
        message
    }

    fn on(index: u32, ip: &str, prefix: u8) -> AddressMessage {
        message(index, ip.parse().unwrap(), prefix)
    }

    #[test]
    fn devices_come_are_renamed_and_go() {
        let mut all = Vec::new();
        assert!(note(&mut all, RouteNetlinkMessage::NewLink(link(2, "eth0"))), "one has come");
        assert!(!note(&mut all, RouteNetlinkMessage::NewLink(link(2, "lan0"))), "it is the same");
        assert_eq!((all.len(), all[0].name.as_str()), (1, "lan0"));
        assert!(!note(&mut all, RouteNetlinkMessage::DelLink(link(3, "eth1"))), "nobody knew it");
        assert!(note(&mut all, RouteNetlinkMessage::DelLink(link(2, "lan0"))) && all.is_empty());
    }

    #[test]
    fn a_port_that_leaves_its_bridge_is_a_device_still() {
        let mut all = vec![Device { index: 2, name: "eth0".into(), addresses: Vec::new() }];
        let mut port = link(2, "eth0");
        port.header.interface_family = AddressFamily::Bridge;
        assert!(!note(&mut all, RouteNetlinkMessage::DelLink(port)) && all.len() == 1);
    }

    #[test]
    fn addresses_are_known_once_and_until_they_go() {
        let mut all = Vec::new();
        note(&mut all, RouteNetlinkMessage::NewLink(link(2, "eth0")));
        for _ in 0..2 {
            assert!(!note(&mut all, RouteNetlinkMessage::NewAddress(on(2, "10.9.0.1", 24))));
        }
        note(&mut all, RouteNetlinkMessage::NewAddress(on(2, "fd00::1", 64)));
        note(&mut all, RouteNetlinkMessage::NewAddress(on(7, "10.9.0.2", 24)));
        note(&mut all, RouteNetlinkMessage::DelAddress(on(2, "10.9.0.1", 32)));
        assert_eq!(all[0].addresses, [("10.9.0.1".parse().unwrap(), 24), ("fd00::1".parse().unwrap(), 64)]);
        note(&mut all, RouteNetlinkMessage::DelAddress(on(2, "10.9.0.1", 24)));
        assert_eq!(all[0].addresses, [("fd00::1".parse().unwrap(), 64)]);
    }
}

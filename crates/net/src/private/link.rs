//! Devices: a bridge, pairs of which one end is a guest's, and devices on devices.

use super::forwarding;
use super::lease::Lease;
use crate::device;
use crate::netlink::Netlink;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    BridgeBooleanOptionFlags, BridgeBooleanOptions, InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoMacVlan,
    InfoNetkit, InfoPortData, InfoPortKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVlanMode,
    NetkitMode,
};
use pando_kernel::{CallError, Context};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What a guest calls its device.
pub const GUEST_DEVICE: &str = "eth0";

/// What kind of pair connects a guest to the bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    /// A pair of veth(4) devices.
    #[default]
    Veth,
    /// netkit (Linux 6.7), with Ethernet frames.
    Netkit,
}

/// Makes a bridge with an Ethernet address that stays as guests come and go. It learns nothing from what is sent to
/// bridges themselves (IEEE 802.1D), which it has let no table see by then.
pub(super) fn make_bridge(name: &str, four: Ipv4Addr) -> Result<u32, CallError> {
    let unheard = BridgeBooleanOptionFlags::NoLinkLocalLearn;
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Address(ethernet(four).to_vec()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bridge),
            LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::MultiBoolOpt(BridgeBooleanOptions {
                value: unheard,
                mask: unheard,
            })])),
        ]),
    ];
    create(message).context(|| format!("making the bridge {name}"))?;
    device::named(name)
}

/// Makes a pair whose one end is the guest's and whose other end is to be a port of a bridge. It is off, and no part of
/// one yet. A port that a namespace on its way out still holds goes.
pub(super) fn make_pair(port: &str, lease: &Lease, namespace: BorrowedFd<'_>) -> Result<(), CallError> {
    let message = || {
        let mut peer = LinkMessage::default();
        peer.attributes = vec![
            LinkAttribute::IfName(GUEST_DEVICE.to_owned()),
            LinkAttribute::Address(ethernet(lease.four).to_vec()),
            LinkAttribute::NetNsFd(namespace.as_raw_fd()),
        ];
        let (kind, data) = match lease.connection {
            Connection::Veth => (InfoKind::Veth, InfoData::Veth(InfoVeth::Peer(peer))),
            Connection::Netkit => {
                (InfoKind::Netkit, InfoData::Netkit(vec![InfoNetkit::Mode(NetkitMode::L2), InfoNetkit::Peer(peer)]))
            }
        };
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(port.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)]),
        ];
        message
    };
    let made = match create(message()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            delete(port)?;
            create(message())
        }
        made => made,
    };
    made.context(|| format!("making the pair of devices {port} and {GUEST_DEVICE} of the guest"))?;
    forwarding::silence(port).context(|| format!("keeping {port} without addresses of its own"))
}

/// Makes a device a port of a bridge, and turns it on.
pub(super) fn join(port: &str, bridge: u32) -> Result<(), CallError> {
    let mut message = LinkMessage::default();
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message.attributes = vec![LinkAttribute::IfName(port.to_owned()), LinkAttribute::Controller(bridge)];
    change(RouteNetlinkMessage::SetLink(message), 0).context(|| format!("making {port} a port of the bridge"))?;
    turn_back(port).context(|| format!("letting {port} lead back to its own guest"))
}

/// Has a port of the bridge give back what came by it, which a bridge by itself never does. A guest that asks for its
/// own published port needs that where the host's firewall sees bridged packets (br_netfilter, which docker turns on):
/// there translation happens on the bridge and not after it.
fn turn_back(port: &str) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(port.to_owned()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::HairpinMode(true)])),
        ]),
    ];
    // Not as a change (RTM_SETLINK), where the kernel passes over what concerns the port alone.
    change(RouteNetlinkMessage::NewLink(message), 0)
}

/// Makes a guest's device on a device of this namespace's.
pub(super) fn make_macvlan(parent: u32, namespace: BorrowedFd<'_>) -> Result<(), CallError> {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(GUEST_DEVICE.to_owned()),
        LinkAttribute::Link(parent),
        LinkAttribute::NetNsFd(namespace.as_raw_fd()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::MacVlan),
            LinkInfo::Data(InfoData::MacVlan(vec![InfoMacVlan::Mode(MacVlanMode::Bridge)])),
        ]),
    ];
    create(message).context(|| format!("making a device of kind macvlan on device {parent}"))
}

/// Turns a device on.
pub(super) fn set_up(index: u32) -> Result<(), CallError> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    change(RouteNetlinkMessage::SetLink(message), 0).context(|| format!("turning device {index} on"))
}

/// Deletes a device. One that is gone already is no error.
pub(super) fn delete(name: &str) -> Result<(), CallError> {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    match change(RouteNetlinkMessage::DelLink(message), 0) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(()),
        outcome => outcome.context(|| format!("deleting device {name}")),
    }
}

/// An Ethernet address of local meaning that says which machine it is.
pub(super) fn ethernet(four: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = four.octets();
    [0x02, 0x50, a, b, c, d]
}

fn create(message: LinkMessage) -> io::Result<()> {
    change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
}

fn change(request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    Netlink::open()?.change(request, flags)
}

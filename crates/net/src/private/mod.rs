//! Private networks: namespaces that reach one another over a bridge, and the world by translation of addresses.
//!
//! ```text
//!   guest's namespace          host
//!     eth0 ═══ veth ═══ port of the bridge ─── guard: no foreign addresses ─── routes ─── translation ─── device
//!     /etc/hosts ◀── one file for all ◀── names        ports published on the host ──▶ translation ──▶ bridge
//! ```
//!
//! Everything of one guest is a pair of devices, which goes with its namespace, and elements of the firewall's sets
//! ([`ruleset`]): so there is little to forget. What stands for all guests, the bridge, one table and the sysctls for
//! forwarding, comes with the first and goes after the last. The table is the network's own and is changed by whole
//! transactions; no rule of the host's is touched.

mod firewall;
mod forwarding;
mod inside;
mod lease;
mod link;
pub mod names;
mod ruleset;
mod subnet;

pub use forwarding::Turned;
pub use inside::Place;
pub(crate) use inside::within;
pub use lease::{Lease, Published};
pub use link::{Connection, GUEST_DEVICE};
pub use subnet::{Subnet, SubnetError, choose, choose_further, free};

use crate::device;
use pando_kernel::{CallError, Context, network::conntrack};
use ruleset::Names;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// A network of guests in this process's network namespace. Nothing of it lies in this value: it only knows the names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Private {
    names: Names,
    subnet: Subnet,
    /// Whether its guests reach one another and the host, and nobody else.
    internal: bool,
}

/// What the host calls the bridge of the network whose devices bear `tag`.
pub fn bridge_of(tag: &str) -> String {
    Names::of(tag).bridge
}

impl Private {
    /// The network whose devices and tables bear `tag`: up to five letters and digits that no other network of this
    /// machine has.
    pub fn new(tag: &str, subnet: Subnet, internal: bool) -> Self {
        Self { names: Names::of(tag), subnet, internal }
    }

    /// The addresses that the network has.
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// Makes what all guests need: the bridge and the tables. What an earlier process left is made anew, with no guest
    /// in it. Where forwarding is to be `turned` on, the devices that the host has now stay apart.
    ///
    /// # Errors
    ///
    /// The kernel's or nft(8)'s. Nothing is left then.
    pub fn make(&self, turned: &Turned) -> Result<(), CallError> {
        self.remove()?;
        let is_hosts = |name: &String| name != "lo" && !Names::is_of_a_network(name);
        let devices = if turned.is_news() { device::devices()? } else { Vec::new() };
        let apart: Vec<String> = devices.into_iter().map(|device| device.name).filter(is_hosts).collect();
        let made = self.attempt(&apart);
        if made.is_err() {
            let _ = self.remove();
        }
        made
    }

    fn attempt(&self, apart: &[String]) -> Result<(), CallError> {
        let bridge = link::make_bridge(&self.names.bridge, self.subnet.four)?;
        // A guest that asks for the host's own 127.0.0.1 is dropped by the table; the host's own clients reach
        // published ports there.
        forwarding::set(&format!("net/ipv4/conf/{}/route_localnet", self.names.bridge), "1")
            .context(|| format!("letting {} lead to published ports of 127.0.0.1", self.names.bridge))?;
        forwarding::force(&self.names.bridge)
            .context(|| format!("letting {} lead on to other devices", self.names.bridge))?;
        let (four, six) = self.subnet.gateway();
        device::assign(bridge, IpAddr::V4(four), self.subnet.length)?;
        if let Some(six) = six {
            device::assign(bridge, IpAddr::V6(six), subnet::LENGTH6)?;
        }
        link::set_up(bridge)?;
        firewall::load(&ruleset::base(&self.names, &self.subnet, self.internal, apart))
    }

    /// Whether what all guests need is there.
    ///
    /// # Errors
    ///
    /// The kernel's, from rtnetlink(7).
    pub fn exists(&self) -> Result<bool, CallError> {
        Ok(device::devices()?.iter().any(|device| device.name == self.names.bridge))
    }

    /// Gives a guest's namespace its device, addresses, routes and published ports.
    ///
    /// # Errors
    ///
    /// The kernel's or nft(8)'s. Nothing of the guest is left then.
    pub fn admit(&self, lease: &Lease, namespace: BorrowedFd<'_>) -> Result<(), CallError> {
        let admitted = self.connect(lease, namespace);
        if admitted.is_err() {
            let _ = self.dismiss(lease);
        }
        admitted
    }

    fn connect(&self, lease: &Lease, namespace: BorrowedFd<'_>) -> Result<(), CallError> {
        let port = self.names.port(lease.number);
        let bridge = device::named(&self.names.bridge)?;
        link::make_pair(&port, bridge, lease, namespace)?;
        firewall::load(&ruleset::admit(&self.names, lease))?;
        forget(lease)?;
        inside::settle(namespace, &self.place(lease))
    }

    /// What a guest's device is given.
    pub fn place(&self, lease: &Lease) -> Place {
        Place::behind(lease, (self.subnet.length, subnet::LENGTH6), self.subnet.gateway())
    }

    /// Takes a guest's ports and addresses back, and its device where that has not gone with its namespace.
    ///
    /// # Errors
    ///
    /// The kernel's or nft(8)'s. What is gone already is no error.
    pub fn dismiss(&self, lease: &Lease) -> Result<(), CallError> {
        firewall::load(&ruleset::dismiss(&self.names, lease))?;
        forget(lease)?;
        link::delete(&self.names.port(lease.number))
    }

    /// Keeps from a guest whatever others send it, from the next frame on: nobody is told that it does not answer. It
    /// can send.
    ///
    /// # Errors
    ///
    /// nft(8)'s.
    pub fn hold(&self, lease: &Lease) -> Result<(), CallError> {
        firewall::load(&ruleset::hold(&self.names, lease))
    }

    /// Lets it through again. A guest that was not held stays as it is.
    ///
    /// # Errors
    ///
    /// nft(8)'s.
    pub fn let_through(&self, lease: &Lease) -> Result<(), CallError> {
        firewall::load(&ruleset::let_through(&self.names, lease))
    }

    /// Grants what a guest sends the priority by which a class of traffic is found; none with 0.
    ///
    /// # Errors
    ///
    /// nft(8)'s.
    pub fn classify(&self, lease: &Lease, class: u32) -> Result<(), CallError> {
        firewall::load(&ruleset::classify(&self.names, lease, class))
    }

    /// Removes the bridge, every guest's port, and the tables.
    ///
    /// # Errors
    ///
    /// The kernel's or nft(8)'s. What is gone already is no error.
    pub fn remove(&self) -> Result<(), CallError> {
        for device in device::devices()? {
            if self.names.is_port(&device.name) || device.name == self.names.bridge {
                link::delete(&device.name)?;
            }
        }
        firewall::load(&ruleset::remove(&self.names))
    }
}

/// Has the kernel forget where datagrams to a guest's published ports were led before: a client that goes on sending is
/// led anew, to the guest that the port leads to now, and not to another that has the address of an earlier one.
/// Connections end by themselves.
fn forget(lease: &Lease) -> Result<(), CallError> {
    const UDP: u8 = 17;
    let published: Vec<_> = lease.published.iter().filter(|one| one.udp).collect();
    if published.is_empty() {
        return Ok(());
    }
    let own: Vec<IpAddr> =
        device::devices()?.into_iter().flat_map(|device| device.addresses).map(|(ip, _)| ip).collect();
    let is_local = |ip: IpAddr| ip.is_loopback() || own.contains(&ip);
    let forgotten = conntrack::forget(|talk| {
        let leads =
            |one: &&Published| one.host == talk.port && one.ip.map_or_else(|| is_local(talk.to), |ip| ip == talk.to);
        talk.protocol == UDP && published.iter().any(leads)
    });
    forgotten.map(drop).context(|| "forgetting where datagrams to published ports were led".into())
}

/// Makes the tables once, where it hurts nobody.
pub(crate) fn try_firewall() -> std::io::Result<()> {
    let subnet = Subnet { four: std::net::Ipv4Addr::new(10, 213, 0, 0), length: 16, six: None };
    firewall::load(&ruleset::base(&Names::of("probe"), &subnet, false, &[])).map_err(|error| error.source)
}

/// Makes a namespace a machine of its own on a device of this namespace's (macvlan), with these addresses.
///
/// # Errors
///
/// The kernel's; ENODEV where there is no such device.
pub fn connect_to_device(
    parent: &str,
    own: &[crate::Network],
    gateways: &[IpAddr],
    namespace: BorrowedFd<'_>,
) -> Result<(), CallError> {
    link::make_macvlan(device::named(parent)?, namespace)?;
    inside::settle(namespace, &inside::Place { own: own.to_vec(), gateways: gateways.to_vec() })
}

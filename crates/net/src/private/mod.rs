//! Private networks: namespaces that reach one another over a bridge, and the world by translation of addresses.
//!
//! ```text
//!   guest's namespace          host
//!     eth0 ═══ veth ═══ port of the bridge ─── guard: no foreign addresses ─── routes ─── translation ─── device
//!     /etc/hosts ◀── one file for all ◀── names        ports published on the host ──▶ translation ──▶ bridge
//! ```
//!
//! Everything of one guest is a pair of devices, which goes with its namespace, elements of the firewall's sets and a
//! chain ([`ruleset`]): so there is little to forget. What stands for all guests, the bridge, the tables and the
//! sysctls for forwarding, comes with the first and goes after the last. The tables are the network's own and are
//! changed by whole transactions; no rule of the host's is touched. Others can remove them: then they are made anew.

mod destinations;
mod firewall;
mod forwarding;
mod inside;
mod lease;
mod link;
pub mod names;
mod ruleset;
mod subnet;

pub use destinations::destinations;
pub use forwarding::Turned;
pub use inside::Place;
pub(crate) use inside::within;
pub use lease::{Lease, Published};
pub use link::{Connection, GUEST_DEVICE};
pub use subnet::{Destination, Subnet, SubnetError, choose, choose_further, free};

use crate::device::{self, Device};
use pando_kernel::network::{conntrack, filter_tables};
use pando_kernel::{CallError, Context};
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

    /// Makes what all guests need: the tables and the bridge. What an earlier process left is made anew, with no guest
    /// in it. Where forwarding is to be `turned` on, the devices that the host had before stay apart.
    ///
    /// # Errors
    ///
    /// The kernel's or nft(8)'s. Nothing is left then.
    pub fn make(&self, turned: &Turned) -> Result<(), CallError> {
        self.remove()?;
        let made = self.attempt(turned);
        if made.is_err() {
            let _ = self.remove();
        }
        made
    }

    /// The tables come first, so that there is no moment without them, and the bridge's address last: by that a later
    /// process knows that nothing is missing.
    fn attempt(&self, turned: &Turned) -> Result<(), CallError> {
        firewall::load(&self.base(turned, &device::devices()?))?;
        let bridge = link::make_bridge(&self.names.bridge, self.subnet.four)?;
        self.furnish(bridge, &[])
    }

    /// Gives the bridge what it needs and does not have.
    fn furnish(&self, bridge: u32, has: &[(IpAddr, u8)]) -> Result<(), CallError> {
        // A guest that asks for the host's own 127.0.0.1 is dropped by the table; the host's own clients reach
        // published ports there.
        forwarding::set(&format!("net/ipv4/conf/{}/route_localnet", self.names.bridge), "1")
            .context(|| format!("letting {} lead to published ports of 127.0.0.1", self.names.bridge))?;
        forwarding::force(&self.names.bridge)
            .context(|| format!("letting {} lead on to other devices", self.names.bridge))?;
        let (four, six) = self.subnet.gateway();
        let lacks = |own: &(IpAddr, u8)| !has.contains(own);
        if let Some((ip, length)) = six.map(|six| (IpAddr::V6(six), subnet::LENGTH6)).filter(lacks) {
            device::assign(bridge, ip, length)?;
        }
        link::set_up(bridge)?;
        match Some((IpAddr::V4(four), self.subnet.length)).filter(lacks) {
            Some((ip, length)) => device::assign(bridge, ip, length),
            None => Ok(()),
        }
    }

    /// The tables without guests.
    fn base(&self, turned: &Turned, devices: &[Device]) -> String {
        ruleset::base(&self.names, &self.subnet, self.internal, &turned.apart(devices))
    }

    /// Whether the bridge is there. One that a process left without its address, or that others took it from, has it
    /// again.
    ///
    /// # Errors
    ///
    /// The kernel's, from rtnetlink(7).
    pub fn has_bridge(&self) -> Result<bool, CallError> {
        let devices = device::devices()?;
        let Some(bridge) = devices.iter().find(|device| device.name == self.names.bridge) else { return Ok(false) };
        if !bridge.addresses.contains(&(IpAddr::V4(self.subnet.gateway().0), self.subnet.length)) {
            self.furnish(bridge.index, &bridge.addresses)?;
        }
        Ok(true)
    }

    /// Whether the tables are there. Everybody who may change the host's firewall can remove them.
    ///
    /// # Errors
    ///
    /// The kernel's, from nfnetlink.
    pub fn is_guarded(&self) -> Result<bool, CallError> {
        let tables = filter_tables::tables().context(|| "listing the firewall's tables".into())?;
        let is_there = |family| tables.iter().any(|(other, name)| *other == family && *name == self.names.table);
        Ok(ruleset::FAMILIES.into_iter().all(is_there))
    }

    /// Makes the tables anew, with all that these guests have in them: from one moment to the next.
    ///
    /// # Errors
    ///
    /// The kernel's or nft(8)'s. The tables are as they were then.
    pub fn guard<'a>(&self, turned: &Turned, leases: impl IntoIterator<Item = &'a Lease>) -> Result<(), CallError> {
        let devices = device::devices()?;
        let has_port = |lease: &Lease| {
            let port = self.names.port(lease.number);
            devices.iter().any(|device| device.name == port)
        };
        let script = ruleset::remove(&self.names) + &self.base(turned, &devices);
        let guests = leases.into_iter().map(|lease| ruleset::admit(&self.names, lease, has_port(lease)));
        firewall::load(&guests.fold(script, |script, guest| script + &guest))
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
        link::make_pair(&port, lease, namespace)?;
        // Nothing that the guest sends goes unseen.
        firewall::load(&ruleset::admit(&self.names, lease, true))?;
        link::join(&port, bridge)?;
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
        link::delete(&self.names.port(lease.number))?;
        firewall::load(&ruleset::dismiss(&self.names, lease))?;
        forget(lease)
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

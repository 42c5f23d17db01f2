//! What one guest has of a private network.

use crate::private::{Connection, link};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A guest's part of a private network. It is written down before anything is made of it, so that the next daemon can
/// take it back after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The guest's number, unique on this machine.
    pub number: u32,
    /// Its names, as others resolve them.
    pub names: Vec<String>,
    /// The kind of device pair that connects the guest: veth(4) or netkit.
    pub connection: Connection,
    /// The guest's IPv4 address on the private network.
    pub four: Ipv4Addr,
    /// Its other address, where the host has IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub six: Option<Ipv6Addr>,
    /// Names that it alone knows, each with its address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub knows: Vec<(String, IpAddr)>,
    /// The host's ports that lead to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// The class of traffic that what it sends belongs to; 0 for none.
    #[serde(default)]
    pub class: u32,
    /// Whether nothing that others send reaches it for now.
    #[serde(default)]
    pub held: bool,
}

/// A port of the host's that leads to a guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The host's address; every one without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// The port of the host, 1 to 65535.
    pub host: u16,
    /// The port of the guest, 1 to 65535.
    pub guest: u16,
    /// Whether datagrams (UDP) are forwarded instead of connections (TCP).
    #[serde(default)]
    pub udp: bool,
}

impl Lease {
    /// The hardware address of the guest's device.
    pub fn hardware(&self) -> [u8; 6] {
        link::ethernet(self.four)
    }
}

impl Published {
    /// Whether both could not lead to different guests.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let same_place = self.ip == other.ip || self.ip.is_none() || other.ip.is_none();
        same_place && self.host == other.host && self.udp == other.udp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_port_leads_to_one_guest() {
        let one = |ip: Option<&str>, host, udp| Published { ip: ip.map(|ip| ip.parse().unwrap()), host, guest: 1, udp };
        assert!(one(None, 80, false).conflicts_with(&one(Some("10.0.0.1"), 80, false)));
        assert!(!one(Some("10.0.0.2"), 80, false).conflicts_with(&one(Some("10.0.0.1"), 80, false)));
        assert!(!one(None, 80, false).conflicts_with(&one(None, 80, true)));
        assert!(!one(None, 80, false).conflicts_with(&one(None, 81, false)));
    }
}

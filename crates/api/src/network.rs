//! Networks of guests that are known by their names.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A private network that was made by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedNetwork {
    /// The network's name, unique on this state root.
    pub name: String,
    /// Its IPv4 addresses, as `ADDRESS/LENGTH`.
    pub subnet: String,
    /// The host's own IPv4 address in it.
    pub gateway: IpAddr,
    /// Whether nothing leads out of it.
    pub internal: bool,
    /// Seconds since the epoch when it was made.
    pub created: i64,
    /// The bridge that the host has for it while a guest is on it.
    pub bridge: String,
    /// The guests and images that are to be on it.
    pub guests: Vec<String>,
    /// The addresses of those that are on it now, by the guest's name.
    pub addresses: BTreeMap<String, Vec<IpAddr>>,
}

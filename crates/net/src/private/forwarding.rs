//! The sysctls that let a host pass packets on between its devices.
//!
//! IPv4 forwarding is one switch. That of IPv6 turns a host into a router, which then ignores the router advertisements
//! that it has its own default route from; so it is left as it is, and where the kernel has a switch without that
//! effect (`force_forwarding`, Linux 6.17) that is used.

use pando_kernel::{CallError, Context};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

const FORWARD4: &str = "net/ipv4/ip_forward";
const FORWARD6: &str = "net/ipv6/conf/all/forwarding";
const FORCE6: &str = "net/ipv6/conf/all/force_forwarding";

/// What has to be turned on, and off again afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turned(Vec<String>);

impl Turned {
    /// What is off and has to be on.
    pub fn needed() -> Self {
        let is_off = |name: &str| get(name).as_deref() == Some("0");
        let six = (is_off(FORWARD6) && is_off(FORCE6)).then_some(FORCE6);
        Self(Some(FORWARD4).filter(|name| is_off(name)).into_iter().chain(six).map(str::to_owned).collect())
    }

    /// Whether the host passed nothing on before.
    pub(super) fn is_news(&self) -> bool {
        self.0.iter().any(|name| name == FORWARD4)
    }

    /// Turns it on.
    ///
    /// # Errors
    ///
    /// A sysctl cannot be written.
    pub fn on(&self) -> Result<(), CallError> {
        self.0.iter().try_for_each(|name| set(name, "1").context(|| format!("turning {name} on")))
    }

    /// Turns it off again.
    ///
    /// # Errors
    ///
    /// A sysctl cannot be written.
    pub fn off(&self) -> Result<(), CallError> {
        self.0.iter().try_for_each(|name| set(name, "0").context(|| format!("turning {name} off again")))
    }
}

/// Has a device of our own forward IPv6, which one that came after the switch for all was turned does not do by itself.
pub(super) fn force(device: &str) -> io::Result<()> {
    let name = format!("net/ipv6/conf/{device}/force_forwarding");
    if path(&name).exists() { set(&name, "1") } else { Ok(()) }
}

/// Has a port of a bridge take no part in IPv6 itself: what a guest says there, such as that it is a router, is for the
/// bridge alone.
pub(super) fn silence(port: &str) -> io::Result<()> {
    let name = format!("net/ipv6/conf/{port}/disable_ipv6");
    if path(&name).exists() { set(&name, "1") } else { Ok(()) }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}

fn get(name: &str) -> Option<String> {
    std::fs::read_to_string(path(name)).ok().map(|text| text.trim().to_owned())
}

pub(super) fn set(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(path(name), value)
}

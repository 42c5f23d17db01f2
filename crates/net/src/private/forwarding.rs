//! The sysctls that let a host pass packets on between its devices.
//!
//! IPv4 forwarding is one switch. That of IPv6 turns a host into a router, which then ignores the router advertisements
//! that it has its own default route from; so it is left as it is, and where the kernel has a switch without that
//! effect (`force_forwarding`, Linux 6.17) that is used.

use super::ruleset::Names;
use crate::device::{self, Device};
use pando_kernel::{CallError, Context};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

const FORWARD4: &str = "net/ipv4/ip_forward";
const FORWARD6: &str = "net/ipv6/conf/all/forwarding";
const FORCE6: &str = "net/ipv6/conf/all/force_forwarding";

/// What has to be turned on, and off again afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct Turned {
    /// The sysctls, by their paths.
    switches: Vec<String>,
    /// The devices that the host had then. None where an earlier release has not written them down.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<Vec<String>>,
}

/// The same, as this release writes it down or earlier ones did.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Switches(Vec<String>),
    Whole {
        switches: Vec<String>,
        #[serde(default)]
        devices: Option<Vec<String>>,
    },
}

impl From<Written> for Turned {
    fn from(written: Written) -> Self {
        match written {
            Written::Switches(switches) => Self { switches, devices: None },
            Written::Whole { switches, devices } => Self { switches, devices },
        }
    }
}

impl Turned {
    /// What is off and has to be on.
    ///
    /// # Errors
    ///
    /// The kernel's, from rtnetlink(7).
    pub fn needed() -> Result<Self, CallError> {
        let is_off = |name: &str| get(name).as_deref() == Some("0");
        let six = (is_off(FORWARD6) && is_off(FORCE6)).then_some(FORCE6);
        let switches = Some(FORWARD4).filter(|name| is_off(name)).into_iter().chain(six).map(str::to_owned).collect();
        let devices = hosts(&device::devices()?);
        Ok(Self { switches, devices: Some(devices) })
    }

    /// The devices that are to stay apart, if the host passed nothing on before: those that it had then. What has come
    /// since was put there by somebody who found that it does.
    pub(super) fn apart(&self, now: &[Device]) -> Vec<String> {
        let is_news = self.switches.iter().any(|name| name == FORWARD4);
        if is_news { self.devices.clone().unwrap_or_else(|| hosts(now)) } else { Vec::new() }
    }

    /// Turns it on.
    ///
    /// # Errors
    ///
    /// A sysctl cannot be written.
    pub fn on(&self) -> Result<(), CallError> {
        self.switches.iter().try_for_each(|name| set(name, "1").context(|| format!("turning {name} on")))
    }

    /// Turns it off again. Forwarding of IPv4 stays on where there is a bridge now that was not there then: who made
    /// it, such as an engine of containers or of machines, has found it on and relies on that.
    ///
    /// # Errors
    ///
    /// The kernel's, from rtnetlink(7), or a sysctl cannot be written.
    pub fn off(&self) -> Result<(), CallError> {
        let is_relied_on = self.devices.as_ref().map_or(Ok(false), |before| {
            device::bridges().map(|bridges| bridges.iter().any(|name| is_hosts(name) && !before.contains(name)))
        })?;
        let to_go = self.switches.iter().filter(|name| !is_relied_on || *name != FORWARD4);
        to_go.into_iter().try_for_each(|name| set(name, "0").context(|| format!("turning {name} off again")))
    }
}

fn is_hosts(device: &str) -> bool {
    device != "lo" && !Names::is_of_a_network(device)
}

fn hosts(devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| device.name.clone()).filter(|name| is_hosts(name)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_that_were_there_then_stay_apart() {
        let old = Turned::from(Written::Switches(vec![FORWARD4.to_owned()]));
        let device = |index, name: &str| Device { index, name: name.into(), addresses: Vec::new() };
        let now = [device(1, "lo"), device(2, "eth0"), device(3, "pb-abcde"), device(4, "pv-abcde-1")];
        assert_eq!(old.apart(&now), ["eth0"], "an earlier release has not said which");
        let new = Turned { devices: Some(vec!["wlan0".into()]), ..old };
        assert_eq!(new.apart(&now), ["wlan0"]);
        assert!(Turned { switches: vec![FORCE6.into()], ..new }.apart(&now).is_empty(), "it was on before");
    }
}

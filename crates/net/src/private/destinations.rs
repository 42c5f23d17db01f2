//! Where the host's routes lead, as far as a private network could be in their way.

use super::ruleset::Names;
use super::subnet::{Destination, Subnet};
use crate::device::Device;
use pando_kernel::network::{Route, routes4};
use pando_kernel::{CallError, Context};
use std::net::IpAddr;

/// A route to more than this leads to the world rather than to somebody's network: some who send everything through a
/// tunnel have two or more of them in the place of one (0.0.0.0/1 and 128.0.0.0/1).
const WIDEST: u8 = 8;

/// Those of IPv4. `devices` are all that there are: what they have themselves, and what belongs to private networks, is
/// not among it.
///
/// # Errors
///
/// The kernel's, from rtnetlink(7).
pub fn destinations(devices: &[Device]) -> Result<Vec<Destination>, CallError> {
    let routes = routes4().context(|| "listing routes".into())?;
    Ok(routes.iter().filter_map(|route| destination(route, devices)).collect())
}

fn destination(route: &Route, devices: &[Device]) -> Option<Destination> {
    /// The kernel's, of addresses that are the host's (`RT_TABLE_LOCAL`).
    const LOCAL: u32 = 255;
    let (IpAddr::V4(four), length) = route.to? else { return None };
    let device = devices.iter().find(|device| device.index == route.device).map(|device| device.name.as_str());
    let is_meant = route.table != LOCAL && length >= WIDEST && !device.is_some_and(Names::is_of_a_network);
    let to = Subnet { four, length, six: None };
    is_meant.then(|| Destination { to, device: device.unwrap_or("no device, or several").to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_the_world_nor_own_addresses_nor_private_networks_are_destinations() {
        let device = |index, name: &str| Device { index, name: name.into(), addresses: Vec::new() };
        let devices = [device(2, "tun0"), device(3, "pb-abcde")];
        let route = |to: Option<(&str, u8)>, device, table| {
            let to = to.map(|(ip, bits)| (ip.parse().unwrap(), bits));
            Route { table, to, device, maker: 4, via: None, plain: true }
        };
        let found = |route: Route| destination(&route, &devices).map(|one| format!("{} {}", one.to, one.device));
        assert_eq!(found(route(Some(("10.8.0.0", 24)), 2, 254)), Some("10.8.0.0/24 tun0".into()));
        assert_eq!(found(route(Some(("10.8.0.0", 24)), 0, 77)), Some("10.8.0.0/24 no device, or several".into()));
        assert_eq!(found(route(Some(("10.213.0.0", 16)), 3, 254)), None);
        assert_eq!(found(route(Some(("10.8.0.1", 32)), 2, 255)), None);
        assert_eq!(found(route(Some(("128.0.0.0", 1)), 2, 254)), None);
        assert_eq!(found(route(None, 2, 254)), None);
    }
}

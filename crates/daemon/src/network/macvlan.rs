//! A guest that is a machine on the host's network, by a device on one of the host's.

use crate::network::networks::NetworkError;
use crate::network::private_network::Newcomer;
use pando_net::{device, private};
use std::net::IpAddr;
use std::os::fd::AsFd;

/// Gives a guest a device on the one of the host's that its addresses belong to.
pub(crate) fn connect(newcomer: &Newcomer) -> Result<(), NetworkError> {
    let devices = device::devices()?;
    let mut own = Vec::new();
    let mut parent = None;
    for address in &newcomer.spec.addresses {
        let place = pando_net::placement::place(&devices, address.ip, address.prefix, address.device.as_deref())?;
        let on = place.put_on.ok_or(NetworkError::OfTheHost(address.ip))?;
        parent = parent.or(Some(on));
        own.push(place.own);
    }
    let parent = parent.and_then(|index| devices.iter().find(|device| device.index == index));
    let parent = parent.ok_or(NetworkError::NoAddress)?;
    let routes = device::default_routes()?.into_iter().filter(|(device, _)| *device == parent.index);
    let gateways: Vec<IpAddr> = routes
        .filter_map(|(_, gateway)| gateway)
        .filter(|gateway| own.iter().any(|own| own.ip.is_ipv4() == gateway.is_ipv4()))
        .collect();
    Ok(private::connect_to_device(&parent.name, &own, &gateways, newcomer.namespace.as_fd())?)
}

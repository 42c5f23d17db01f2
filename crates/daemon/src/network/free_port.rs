//! Ports of the host's for guests that want some, whichever.

use crate::failure;
use crate::state::daemon::Daemon;
use pando_api::{Fault, FaultKind, Protocol, Publication, Spec};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};

/// How often the kernel is asked for another.
const TIMES: usize = 64;

/// Chooses a port of the host's for each publication that names none: one that nobody has now, and no other guest is to
/// have.
pub(crate) fn choose(daemon: &Daemon, spec: &mut Spec) -> Result<(), Fault> {
    if spec.publish.iter().all(|port| port.host != 0) {
        return Ok(());
    }
    let guests = daemon.guests.borrow();
    let of_guests = guests.values().flat_map(|guest| guest.spec.borrow().publish.clone());
    let mut taken: BTreeSet<(u16, Protocol)> =
        of_guests.chain(spec.publish.iter().copied()).map(|port| (port.host, port.protocol)).collect();
    for port in spec.publish.iter_mut().filter(|port| port.host == 0) {
        let free = (0..TIMES).find_map(|_| free(port).filter(|number| !taken.contains(&(*number, port.protocol))));
        port.host = free.ok_or_else(|| {
            let message = format!("there is no port of the host's left for port {} of the guest", port.guest);
            Fault::new(FaultKind::Unavailable, "publish", message)
        })?;
        taken.insert((port.host, port.protocol));
    }
    Ok(())
}

/// One that the kernel gives to whoever asks for none by name.
fn free(port: &Publication) -> Option<u16> {
    let ip = port.ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let bound = match port.protocol {
        Protocol::Tcp => TcpListener::bind((ip, 0)).and_then(|socket| socket.local_addr()),
        Protocol::Udp => UdpSocket::bind((ip, 0)).and_then(|socket| socket.local_addr()),
    };
    bound.map(|address| address.port()).ok()
}

/// Refuses what only makes sense before a guest exists.
pub(crate) fn are_chosen(spec: &Spec) -> Result<(), Fault> {
    match spec.publish.iter().find(|port| port.host == 0) {
        Some(port) => {
            Err(failure::bad("publish", format!("port {port} names no port of the host's; write HOST:GUEST")))
        }
        None => Ok(()),
    }
}

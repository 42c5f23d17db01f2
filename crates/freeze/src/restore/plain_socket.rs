//! Writes the making of sockets that are no unix sockets: TCP, UDP, raw ones, netlink.

use crate::image::{PlainSocket, Role};
use crate::restore::script::Writer;
use crate::restore::unix_socket::set;

/// Writes the making of one onto a slot. `spare` is a descriptor to use meanwhile.
pub(crate) fn make(writer: &mut Writer, socket: &PlainSocket, slot: u64, spare: u64) {
    let chapter = Writer::MAKING;
    let arguments = [socket.family as u64, socket.kind as u64, socket.protocol as u64];
    writer.open(chapter, "making a socket", libc::SYS_socket, &arguments, slot);
    if socket.role == Role::Lost {
        return lose(writer, socket, slot, spare);
    }
    for option in &socket.options {
        set(writer, slot, option);
    }
    attach_filter(writer, socket, slot);
    bind(writer, socket, slot);
    match &socket.role {
        Role::Listens { backlog } => {
            writer.call(chapter, "listening", libc::SYS_listen, &[slot, u64::from(*backlog)]);
        }
        Role::Sends { to } => {
            let address = writer.data(to, 8);
            // There may be no way to it any more.
            writer.attempt(chapter, "connecting a socket", libc::SYS_connect, &[slot, address, to.len() as u64]);
        }
        Role::Idle | Role::Lost => {}
    }
}

/// Writes the attaching of a packet filter, before anything can come in.
fn attach_filter(writer: &mut Writer, socket: &PlainSocket, slot: u64) {
    if socket.filter.is_empty() {
        return;
    }
    // `struct sock_fprog`: how many instructions, and where.
    let count = socket.filter.len() as u64 / 8;
    let at = writer.data(&socket.filter, 8);
    let program = writer.words(&[count, at]);
    let arguments = [slot, libc::SOL_SOCKET as u64, libc::SO_ATTACH_FILTER as u64, program, 16];
    writer.call(Writer::MAKING, "attaching a packet filter", libc::SYS_setsockopt, &arguments);
}

pub(crate) fn bind(writer: &mut Writer, socket: &PlainSocket, slot: u64) {
    if socket.name.is_empty() {
        return;
    }
    let chapter = Writer::MAKING;
    let mut tries = vec![socket.name.clone()];
    let mut any = socket.name.clone();
    // Behind the family: of netlink two bytes and the address; of IP the port, then (IPv6) the flow, the address, the
    // scope.
    let own = match socket.family {
        libc::AF_NETLINK => 4..8,
        libc::AF_INET => 4..8,
        _ => 8..24,
    };
    let is_loopback = matches!(any.get(4..8), Some([127, ..])) && socket.family == libc::AF_INET
        || any.get(8..24) == Some(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    if let Some(part) = any.get_mut(own).filter(|_| !is_loopback)
        && part.iter().any(|byte| *byte != 0)
    {
        part.fill(0);
        tries.push(any);
    }
    // An address that the clone does not have is replaced by all that it will have. Of two attempts the second fails
    // where the first did not.
    let last = tries.len() - 1;
    let label = format!("binding a socket to {}", address(&socket.name));
    for (number, name) in tries.iter().enumerate() {
        let at = writer.data(name, 8);
        let arguments = [slot, at, name.len() as u64];
        if last == 0 {
            writer.call(chapter, label.clone(), libc::SYS_bind, &arguments);
        } else {
            writer.attempt(chapter, format!("{label}, attempt {number}"), libc::SYS_bind, &arguments);
        }
    }
}

/// An address for people.
pub(crate) fn address(name: &[u8]) -> String {
    let port = name.get(2..4).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
    match name {
        [2, 0, _, _, a, b, c, d, ..] => format!("{a}.{b}.{c}.{d}:{port}"),
        [10, 0, ..] if name.len() >= 24 => {
            let ip: [u8; 16] = name[8..24].try_into().unwrap_or_default();
            format!("[{}]:{port}", std::net::Ipv6Addr::from(ip))
        }
        _ => "its own number".into(),
    }
}

/// Writes what makes a socket one whose peer has reset the connection: it connects to a listener that goes before it
/// accepts. Where there is no loopback it is one that is not connected.
fn lose(writer: &mut Writer, socket: &PlainSocket, slot: u64, spare: u64) {
    let chapter = Writer::MAKING;
    let name = loopback(socket);
    let length = name.len() as u64;
    let (asked, given) = (writer.data(&name, 8), writer.data(&name, 8));
    let room = writer.data(&(length as u32).to_le_bytes(), 8);
    writer.open(chapter, "making a listener", libc::SYS_socket, &[socket.family as u64, 1, 0], spare);
    writer.attempt(chapter, "binding a listener", libc::SYS_bind, &[spare, asked, length]);
    writer.attempt(chapter, "listening for a moment", libc::SYS_listen, &[spare, 1]);
    // The port that it got is written where the next step finds it.
    writer.attempt(chapter, "asking for a port", libc::SYS_getsockname, &[spare, given, room]);
    writer.attempt(chapter, "connecting to be reset", libc::SYS_connect, &[slot, given, length]);
    writer.call(chapter, "resetting", libc::SYS_close, &[spare]);
    for option in &socket.options {
        set(writer, slot, option);
    }
}

/// Where a socket can be connected and lose its peer again. One that was connected by IPv4 goes on sending by that,
/// whatever it is connected to later: so it is connected by what its connection was.
fn loopback(socket: &PlainSocket) -> Vec<u8> {
    const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let mut name = socket.family.to_le_bytes()[..2].to_vec();
    match (socket.family, socket.name.get(8..20)) {
        (libc::AF_INET, _) => name.extend([0, 0, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        (_, Some(prefix)) if prefix != MAPPED => {
            name.extend([0; 6]);
            name.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        }
        _ => {
            name.extend([0; 6]);
            name.extend(MAPPED);
            name.extend([127, 0, 0, 1, 0, 0, 0, 0]);
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_lost_by_the_protocol_that_it_had() {
        let of = |ip: std::net::Ipv6Addr| {
            let name = [&[10, 0, 0, 80, 0, 0, 0, 0][..], &ip.octets(), &[0; 4]].concat();
            let socket = PlainSocket { family: libc::AF_INET6, name, ..PlainSocket::default() };
            let loopback: [u8; 16] = loopback(&socket)[8..24].try_into().unwrap();
            std::net::Ipv6Addr::from(loopback)
        };
        assert!(of("fd00::5".parse().unwrap()).is_loopback());
        assert_eq!(of("::ffff:10.9.0.5".parse().unwrap()).to_ipv4_mapped(), Some(std::net::Ipv4Addr::LOCALHOST));
        let plain = PlainSocket { family: libc::AF_INET, ..PlainSocket::default() };
        assert_eq!(loopback(&plain).len(), 16);
    }
}

//! Sockets that are made by themselves: TCP, UDP, netlink. What a TCP socket was connected to stays with the frozen process: to a clone its peer has
//! reset the connection.

use crate::image::{PlainSocket, Role};
use crate::script::Writer;
use crate::socket_options;
use crate::unix_making::set;
use pando_kernel::{CallError, Context, socket_option};
use rustix::net::{AddressFamily, Protocol, SocketType};
use std::os::fd::OwnedFd;

const FAMILIES: [i32; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

fn number(socket: &OwnedFd, option: i32) -> Result<i32, CallError> {
    socket_option::number(socket, libc::SOL_SOCKET, option).context(|| "reading a socket".into())
}

/// Why a socket that is no unix socket cannot be captured, if it cannot.
pub(crate) fn objection(socket: &OwnedFd) -> Result<Option<(String, &'static str)>, CallError> {
    let (family, kind) = (number(socket, libc::SO_DOMAIN)?, number(socket, libc::SO_TYPE)?);
    let named = |what: &str, advice| Ok(Some((what.to_owned(), advice)));
    if !FAMILIES.contains(&family) {
        return named(&format!("a socket of {}", family_name(family)), "close it");
    }
    match (family, kind) {
        (libc::AF_NETLINK, _) | (_, libc::SOCK_STREAM | libc::SOCK_DGRAM | libc::SOCK_RAW) => {
            let newer = socket_option::filter(socket).is_err_and(|error| error.raw_os_error() == Some(libc::EACCES));
            if newer { named("a socket with a BPF program (SO_ATTACH_BPF)", "close it") } else { Ok(None) }
        }
        _ => named("a socket of a protocol of its own", "make the program use TCP or UDP"),
    }
}

fn family_name(family: i32) -> String {
    match family {
        libc::AF_PACKET => "packets (AF_PACKET)".into(),
        libc::AF_VSOCK => "a virtual machine (AF_VSOCK)".into(),
        libc::AF_ALG => "the kernel's ciphers (AF_ALG)".into(),
        libc::AF_XDP => "AF_XDP".into(),
        other => format!("family {other}"),
    }
}

/// Captures one.
pub(crate) fn capture(socket: &OwnedFd) -> Result<PlainSocket, CallError> {
    let what = || "reading a socket".to_owned();
    let (family, kind) = (number(socket, libc::SO_DOMAIN)?, number(socket, libc::SO_TYPE)?);
    let protocol = number(socket, libc::SO_PROTOCOL)?;
    let fresh = fresh(family, kind, protocol).context(what)?;
    let name = socket_option::name(socket).context(what)?;
    let port = || name.get(2..4).is_some_and(|port| port != [0, 0]);
    // What is raw has an address and no port.
    let address = || {
        name.get(if family == libc::AF_INET { 4..8 } else { 8..24 }).is_some_and(|all| all.iter().any(|one| *one != 0))
    };
    let bound = family == libc::AF_NETLINK || if kind == libc::SOCK_RAW { address() } else { port() };
    Ok(PlainSocket {
        family,
        kind,
        protocol,
        name: if bound { name } else { Vec::new() },
        role: role(socket, family, kind).context(what)?,
        options: socket_options::differing(socket, &fresh),
        filter: socket_option::filter(socket).unwrap_or_default(),
        net_space: None,
    })
}

/// A new one of the kind. Where we may not have one to ping by, who is root in a guest may: UDP's has the same options.
fn fresh(family: i32, kind: i32, protocol: i32) -> rustix::io::Result<OwnedFd> {
    let make = |protocol: i32| {
        let protocol = std::num::NonZeroU32::new(protocol as u32).map(Protocol::from_raw);
        rustix::net::socket(AddressFamily::from_raw(family as u16), SocketType::from_raw(kind as u32), protocol)
    };
    match make(protocol) {
        Err(rustix::io::Errno::ACCESS) if kind == libc::SOCK_DGRAM => make(0),
        made => made,
    }
}

fn role(socket: &OwnedFd, family: i32, kind: i32) -> std::io::Result<Role> {
    /// Where `struct tcp_info` says how many connections may wait, of one that listens (tcpi_sacked).
    const BACKLOG: usize = 28;
    const CLOSED: u8 = 7;
    if family == libc::AF_NETLINK {
        return Ok(Role::Idle);
    }
    if kind == libc::SOCK_STREAM {
        let listens = socket_option::number(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? != 0;
        // MPTCP has none of its own.
        let info = socket_option::get(socket, libc::IPPROTO_TCP, libc::TCP_INFO).unwrap_or_default();
        let word =
            info.get(BACKLOG..BACKLOG + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        return Ok(match info.first() {
            _ if listens => Role::Listens { backlog: if word == 0 { 128 } else { word } },
            None | Some(&CLOSED) => Role::Idle,
            Some(_) => Role::Lost,
        });
    }
    match socket_option::peer_name(socket) {
        Ok(to) => Ok(Role::Sends { to }),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(Role::Idle),
        Err(error) => Err(error),
    }
}

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
    // Behind the family: of netlink two bytes and the address; of IP the port, then (IPv6) the flow, the address, the scope.
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
    // An address that the clone does not have is replaced by all that it will have. Of two attempts the second fails where the first did not.
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
fn address(name: &[u8]) -> String {
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

/// Writes what makes a socket one whose peer has reset the connection: it connects to a listener that goes before it accepts. Where there is no loopback
/// it is one that is not connected.
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

/// Where a socket can be connected and lose its peer again. One that was connected by IPv4 goes on sending by that, whatever it is connected to later: so it
/// is connected by what its connection was.
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
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn roles_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let role = |fd: OwnedFd| capture(&fd).unwrap().role;
        let listening = capture(&listener.try_clone().unwrap().into()).unwrap();
        assert!(matches!(listening.role, Role::Listens { backlog } if backlog > 0));
        assert_eq!(address(&listening.name), format!("127.0.0.1:{port}"));
        assert_eq!(role(stream.into()), Role::Lost);
        let other = socket.try_clone().unwrap();
        assert_eq!(role(socket.into()), Role::Idle);
        other.connect("127.0.0.1:9").unwrap();
        assert!(matches!(role(other.into()), Role::Sends { .. }));
    }

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

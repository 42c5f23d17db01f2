//! Captures sockets that are no unix sockets: TCP, UDP, raw ones, netlink. What a TCP socket was connected to stays
//! with the frozen process: to a clone its peer has reset the connection.

use crate::capture::socket_options;
use crate::image::{PlainSocket, Role};
use pando_kernel::{CallError, Context, socket};
use rustix::net::{AddressFamily, Protocol, SocketType};
use std::os::fd::OwnedFd;

pub(crate) fn number(socket: &OwnedFd, option: i32) -> Result<i32, CallError> {
    socket::option::number(socket, libc::SOL_SOCKET, option).context(|| "reading a socket".into())
}

/// Captures a socket that is no unix socket.
pub(crate) fn capture(socket: &OwnedFd) -> Result<PlainSocket, CallError> {
    let what = || "reading a socket".to_owned();
    let (family, kind) = (number(socket, libc::SO_DOMAIN)?, number(socket, libc::SO_TYPE)?);
    let protocol = number(socket, libc::SO_PROTOCOL)?;
    let fresh = fresh(family, kind, protocol).context(what)?;
    let name = socket::option::name(socket).context(what)?;
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
        filter: socket::option::filter(socket).unwrap_or_default(),
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
        let listens = socket::option::number(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? != 0;
        // MPTCP has none of its own.
        let info = socket::option::get(socket, libc::IPPROTO_TCP, libc::TCP_INFO).unwrap_or_default();
        let word =
            info.get(BACKLOG..BACKLOG + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        return Ok(match info.first() {
            _ if listens => Role::Listens { backlog: if word == 0 { 128 } else { word } },
            None | Some(&CLOSED) => Role::Idle,
            Some(_) => Role::Lost,
        });
    }
    match socket::option::peer_name(socket) {
        Ok(to) => Ok(Role::Sends { to }),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(Role::Idle),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restore::plain_socket::address;
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
}

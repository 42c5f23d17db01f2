//! Ending the connections that a guest has at an address which it has lost.

use netlink_sys::{Socket, SocketAddr};
use pando_kernel::{CallError, Context};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `NETLINK_SOCK_DIAG` and its messages (linux/sock_diag.h).
const NETLINK_SOCK_DIAG: isize = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;

/// An answer's attribute (linux/inet_diag.h).
const INET_DIAG_CGROUP_ID: u16 = 21;

/// The lengths of a message's header, of what precedes a socket's identity in a request and in an answer, and of a
/// whole answer.
const HEADER: usize = 16;
const BEFORE_IDENTITY_IN_REQUEST: usize = 8;
const BEFORE_IDENTITY: usize = 4;
const ANSWER: usize = 72;
/// Ports, addresses, device and cookie (`struct inet_diag_sockid`).
const IDENTITY: usize = 48;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Ends every connection of processes in these cgroups (by their inode numbers) whose local address is `ip`, as if the
/// network had failed (SOCK_DESTROY, Linux 4.5, where it was built in; groups are told since 5.9). Sockets without a
/// peer live on.
///
/// # Errors
///
/// The kernel's; EOPNOTSUPP where it cannot end sockets.
pub(crate) fn end_connections(ip: IpAddr, groups: &HashSet<u64>) -> Result<(), CallError> {
    let what = || format!("ending connections at {ip}");
    let mut socket = Socket::new(NETLINK_SOCK_DIAG).context(what)?;
    socket.bind_auto().context(what)?;
    socket.connect(&SocketAddr::new(0, 0)).context(what)?;
    for family in [AF_INET, AF_INET6] {
        for protocol in [TCP, UDP] {
            let sockets = list(&socket, family, protocol).context(what)?;
            for found in sockets.iter().filter(|found| found.is_lost(ip, groups)) {
                end(&socket, family, protocol, &found.identity).context(what)?;
            }
        }
    }
    Ok(())
}

/// A socket, as the kernel lists it.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    local: IpAddr,
    has_peer: bool,
    group: Option<u64>,
    identity: Vec<u8>,
}

impl Listed {
    fn is_lost(&self, ip: IpAddr, groups: &HashSet<u64>) -> bool {
        self.has_peer && self.local == ip && self.group.is_some_and(|group| groups.contains(&group))
    }

    /// Reads `struct inet_diag_msg` and what follows it.
    fn read(body: &[u8], family: u8) -> Option<Self> {
        let identity = body.get(BEFORE_IDENTITY..BEFORE_IDENTITY + IDENTITY)?;
        let bytes: [u8; 16] = identity.get(4..20)?.try_into().ok()?;
        let local: IpAddr = match family {
            AF_INET => Ipv4Addr::from(*bytes.first_chunk::<4>()?).into(),
            // An IPv6 socket may hold an IPv4 address.
            _ => Ipv6Addr::from(bytes).to_canonical(),
        };
        let has_peer = identity.get(2..4)? != [0, 0];
        Some(Self { local, has_peer, group: group(body.get(ANSWER..)?), identity: identity.to_vec() })
    }
}

/// The cgroup among an answer's attributes: length, kind and value each, at multiples of four bytes.
fn group(mut attributes: &[u8]) -> Option<u64> {
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let value = attributes.get(4..length)?;
        if kind == INET_DIAG_CGROUP_ID {
            return Some(u64::from_ne_bytes(value.try_into().ok()?));
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn list(socket: &Socket, family: u8, protocol: u8) -> io::Result<Vec<Listed>> {
    socket.send(&request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, protocol, &[0; IDENTITY]), 0)?;
    let mut found = Vec::new();
    loop {
        let (received, _) = socket.recv_from_full()?;
        let mut rest = received.as_slice();
        while let Some((kind, body, behind)) = message(rest) {
            match kind {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => return error_of(body).map_or(Ok(found), Err),
                _ => found.extend(Listed::read(body, family)),
            }
            rest = behind;
        }
    }
}

fn end(socket: &Socket, family: u8, protocol: u8, identity: &[u8]) -> io::Result<()> {
    socket.send(&request(SOCK_DESTROY, NLM_F_ACK, family, protocol, identity), 0)?;
    let (received, _) = socket.recv_from_full()?;
    let failed = message(&received).and_then(|(kind, body, _)| if kind == NLMSG_ERROR { error_of(body) } else { None });
    match failed {
        // Gone by itself in the meantime.
        Some(error) if error.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) => Ok(()),
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn request(kind: u16, flags: u16, family: u8, protocol: u8, identity: &[u8]) -> Vec<u8> {
    let length = (HEADER + BEFORE_IDENTITY_IN_REQUEST + IDENTITY) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, protocol, 0, 0]);
    // Sockets in any state.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(identity);
    bytes
}

/// The first message: its kind, its body, and what follows.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn error_of(body: &[u8]) -> Option<io::Error> {
    let code = i32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
    (code != 0).then(|| io::Error::from_raw_os_error(-code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_long_as_it_says() {
        let bytes = request(SOCK_DESTROY, NLM_F_ACK, AF_INET, TCP, &[7; IDENTITY]);
        let (kind, body, behind) = message(&bytes).unwrap();
        assert_eq!((kind, body.len(), behind.len()), (SOCK_DESTROY, BEFORE_IDENTITY_IN_REQUEST + IDENTITY, 0));
    }

    #[test]
    fn connections_are_found_by_their_local_address_and_group() {
        let mut body = vec![0; ANSWER];
        body[6..8].copy_from_slice(&[0, 80]);
        body[8..12].copy_from_slice(&[10, 9, 0, 5]);
        body.extend([5, 0, 8, 0, 1, 0, 0, 0, 12, 0, 21, 0]);
        body.extend(77u64.to_ne_bytes());
        let (here, ours) = ("10.9.0.5".parse().unwrap(), HashSet::from([77]));
        let found = Listed::read(&body, AF_INET).unwrap();
        assert_eq!((found.group, found.has_peer), (Some(77), true));
        assert!(found.is_lost(here, &ours));
        assert!(!found.is_lost("10.9.0.6".parse().unwrap(), &ours) && !found.is_lost(here, &HashSet::from([78])));
        body[8..24].copy_from_slice(&"::ffff:10.9.0.5".parse::<Ipv6Addr>().unwrap().octets());
        assert!(Listed::read(&body, AF_INET6).unwrap().is_lost(here, &ours));
        body[6..8].copy_from_slice(&[0, 0]);
        assert!(!Listed::read(&body, AF_INET6).unwrap().is_lost(here, &ours), "a listener has no peer");
        assert_eq!(Listed::read(&body[..70], AF_INET6), None);
        assert_eq!(Listed::read(&body[..80], AF_INET6).unwrap().group, None);
    }

    #[test]
    fn cut_messages_are_none() {
        assert!(message(&[1, 2, 3]).is_none());
        assert!(message(&[200, 0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_none());
    }
}

//! Where a transaction's sockets are connected to.

use super::argument::{self, Fails};
use pando_kernel::seccomp::notify::Call;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `socketcall` by 32-bit programs: which of the calls on sockets it is, and that its arguments lie in memory.
const SOCKET: u64 = 1;
const CONNECT: u64 = 3;
const SENDTO: u64 = 11;
const SENDMSG: u64 = 16;
const SENDMMSG: u64 = 20;

/// Families of sockets that reach nothing but this machine: its processes, and its kernel. Any other may reach another
/// machine: there are dozens (SMC, RDS, TIPC, Bluetooth, CAN), some of which carry TCP under a name of their own, and
/// more come.
const INWARD: [i32; 3] = [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_ALG];

/// Whether a call of socket(2) makes one that may reach other machines.
pub(super) fn is_outward(family: u64) -> bool {
    !INWARD.contains(&(family as i32))
}

/// The call that a 32-bit program makes through `socketcall`.
pub(super) fn unpacked(call: &Call) -> Result<Option<Packed>, Fails> {
    let which = call.arguments[0] & 0xffff_ffff;
    let count = match which {
        SOCKET | CONNECT | SENDMSG => 3,
        SENDMMSG => 4,
        SENDTO => 6,
        _ => return Ok(None),
    };
    let mut bytes = [0; 24];
    let bytes = &mut bytes[..count * 4];
    argument::read(call.pid, call.arguments[1] & 0xffff_ffff, bytes)?;
    let number = |at: usize| {
        let word = bytes.get(at * 4..at * 4 + 4).and_then(|word| word.try_into().ok());
        u64::from(u32::from_ne_bytes(word.unwrap_or_default()))
    };
    Ok(Some(match which {
        SOCKET => Packed::Socket { family: number(0) },
        CONNECT => Packed::Connect { at: number(1), length: number(2) },
        SENDTO => Packed::Connect { at: number(4), length: number(5) },
        SENDMSG => Packed::Messages { at: number(1), count: 1 },
        _ => Packed::Messages { at: number(1), count: number(2) },
    }))
}

/// A call that is made through another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    Socket {
        family: u64,
    },
    /// Or a send with an address, which is 0 where there is none.
    Connect {
        at: u64,
        length: u64,
    },
    Messages {
        at: u64,
        count: u64,
    },
}

/// The family of an address.
pub(super) fn family(address: &[u8]) -> Option<i32> {
    Some(i32::from(u16::from_ne_bytes(address.get(..2)?.try_into().ok()?)))
}

/// The other machine's address in that of a socket; `None` for a socket of this machine. A program can change it right
/// afterwards: it is to be told, and decides nothing.
pub(super) fn machine(bytes: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    let ip = match family(bytes)? {
        libc::AF_INET => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?)),
        libc::AF_INET6 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?)),
        _ => return None,
    };
    // Programs ask by a connection to port 0 which way a packet would take; none is sent.
    (port != 0).then_some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_anything_else_is_none() {
        let mut bytes = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        bytes.extend([0, 80, 10, 0, 0, 1]);
        assert_eq!(machine(&bytes).map(|address| address.to_string()), Some("10.0.0.1:80".to_owned()));
        assert_eq!(machine(&bytes[..7]), None);
        bytes[3] = 0;
        assert_eq!(machine(&bytes), None);
        let mut bytes = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        bytes.extend([1, 187, 0, 0, 0, 0]);
        bytes.extend([0; 15]);
        bytes.push(1);
        assert_eq!(machine(&bytes).map(|address| address.to_string()), Some("[::1]:443".to_owned()));
        assert_eq!(machine(&(libc::AF_UNIX as u16).to_ne_bytes()), None);
        assert_eq!(machine(&[]), None);
    }
}

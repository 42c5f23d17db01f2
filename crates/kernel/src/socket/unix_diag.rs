//! The unix sockets of a network namespace and their connections (sock_diag(7), UNIX_DIAG, since Linux 3.3).

use crate::namespace::inside_network;
use crate::network::netlink_dump::{self, attributes, word};
use rustix::net::netlink;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A unix socket, as sock_diag(7) lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnixEntry {
    /// Its inode, as fstat(2) gives it.
    pub inode: u32,
    /// The inode of the socket that it is connected to: 0 for one that is gone, or that nobody has accepted yet.
    pub peer: Option<u32>,
    /// Inode of the file that it is bound to.
    pub file: Option<u32>,
    /// For one that listens: the inodes of those that wait to be accepted, the first one first; 0 for one that has
    /// gone.
    pub waiting: Vec<u32>,
    /// What is queued and what may be: for one that listens connections, else bytes.
    pub queues: (u32, u32),
    /// 1 if it receives no more, 2 if it sends no more, 3 for both.
    pub shut: u8,
}

/// Every unix socket of a network namespace, open as `namespace`; of our own if it is `None`. Needs CAP_SYS_ADMIN for
/// another's.
///
/// # Errors
///
/// EPERM where another's namespace is asked for without CAP_SYS_ADMIN; ENOENT where the kernel has no unix_diag.
pub fn list(namespace: Option<BorrowedFd<'_>>) -> io::Result<Vec<UnixEntry>> {
    let open = || netlink_dump::open(Some(netlink::SOCK_DIAG));
    dump(match namespace {
        None => open()?,
        Some(namespace) => inside_network(namespace, open)?,
    })
}

fn dump(socket: OwnedFd) -> io::Result<Vec<UnixEntry>> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    /// Files, peers, waiting connections, queues.
    const SHOW: u32 = 2 | 4 | 8 | 16;
    let mut request = vec![libc::AF_UNIX as u8, 0, 0, 0];
    for word in [u32::MAX, 0, SHOW, u32::MAX, u32::MAX] {
        request.extend(word.to_le_bytes());
    }
    let mut entries = Vec::new();
    netlink_dump::ask(socket, SOCK_DIAG_BY_FAMILY, &request, |body| entries.push(entry(body)))?;
    Ok(entries)
}

/// `struct unix_diag_msg` and its attributes.
pub(crate) fn entry(body: &[u8]) -> UnixEntry {
    const FIXED: usize = 16;
    let mut entry = UnixEntry { inode: word(body, 4), ..UnixEntry::default() };
    for (number, value) in attributes(body, FIXED) {
        match number {
            1 => entry.file = Some(word(value, 0)),
            2 => entry.peer = Some(word(value, 0)),
            3 => entry.waiting = (0..value.len() / 4).map(|place| word(value, place * 4)).collect(),
            4 => entry.queues = (word(value, 0), word(value, 4)),
            6 => entry.shut = value.first().copied().unwrap_or(0),
            _ => {}
        }
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
        for length in 0..40 {
            let _ = (entry(&vec![0xff; length]), entry(&vec![4; length]));
        }
    }
}

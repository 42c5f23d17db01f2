//! Sockets of an image.

use serde::{Deserialize, Serialize};

/// A unix socket, with what waits in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnixSocket {
    /// Its open file, an index into [`Image::files`](super::Image::files).
    pub file: usize,
    /// Which network namespace it belongs to, an index into [`Image::net_spaces`](super::Image::net_spaces); none if
    /// the first process's.
    pub net_space: Option<usize>,
    /// The type of the socket: `SOCK_*`.
    pub kind: i32,
    /// Its address as the kernel has it, a family and a name; nothing but the family if it has no name.
    pub name: Vec<u8>,
    /// The directory that a name without a leading slash starts at.
    pub directory: String,
    /// Mode, owner and group of the file that it is bound to, if that is still there.
    pub place: Option<(u32, u32, u32)>,
    /// The path of that file, if it was renamed or linked since.
    pub published: Option<String>,
    /// Whether the directory of its name is gone, and has to be there while it is bound.
    pub borrows_directory: bool,
    /// Whether the socket is connected to a peer.
    pub connected: bool,
    /// What it is connected to, an index into [`Image::unix`](super::Image::unix); nothing if that is gone.
    pub peer: Option<usize>,
    /// Who the kernel says is at its other end, or has it listen; nobody for datagrams that were connected by a name.
    pub peer_credentials: Option<PeerCredentials>,
    /// Who connected it, as far as that can be known, if it waits to be accepted.
    pub connector: Option<PeerCredentials>,
    /// What waits to be received.
    pub queue: Vec<Waiting>,
    /// 1 if it receives no more, 2 if it sends no more, 3 for both.
    pub shut: u8,
    /// How many connections may wait, if it listens.
    pub backlog: Option<u32>,
    /// Those that wait: indices into [`Image::unix`](super::Image::unix).
    pub waiting: Vec<usize>,
    /// What it has sent, if it is one that waits.
    pub sent: Vec<Waiting>,
    /// Those that wait and have been closed by who connected them, in their order.
    pub gone: Vec<GoneClient>,
    /// Options that differ from those of a new socket.
    pub options: Vec<SocketOption>,
    /// Whether something was sent to who has not accepted it, and cannot be had, so that it cannot be captured.
    #[serde(skip)]
    pub(crate) is_untold: bool,
    /// Whether descriptors wait in it of which nobody knows, so that it cannot be captured.
    #[serde(skip)]
    pub(crate) carries: bool,
    /// Whether urgent data waits in it, so that it cannot be captured.
    #[serde(skip)]
    pub(crate) is_urgent: bool,
    /// Whether only a mount namespace of its process's own has its file, so that it cannot be made.
    #[serde(skip)]
    pub(crate) is_elsewhere: bool,
    /// Whether the directory of its name is gone, so that it cannot be made.
    #[serde(skip)]
    pub(crate) is_homeless: bool,
    /// Whether its file has another name, and nobody knows which.
    #[serde(skip)]
    pub(crate) is_lost: bool,
}

/// A connection that nobody has accepted, and whose other end was closed meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoneClient {
    /// How many of [`UnixSocket::waiting`] were there before it.
    pub behind: usize,
    /// What was sent by it before.
    pub sent: Vec<Waiting>,
    /// Who connected it, without further groups.
    pub connector: PeerCredentials,
}

/// More than so many of them are not kept of a listener.
pub(crate) const MOST_GONE: usize = 4096;

/// Who made a connection, as the other end of it is told: by SO_PEERCRED, and by SO_PEERGROUPS. These are the effective
/// ids that a process had when it called connect(2), listen(2) or socketpair(2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerCredentials {
    /// The effective user of that process.
    pub user: u32,
    /// The effective group of that process.
    pub group: u32,
    /// Further groups, in rising order.
    pub further: Vec<u32>,
}

/// The id that the kernel tells of whoever has none in a user namespace (`overflowuid`, `overflowgid`).
pub(crate) const NOBODY: u32 = 65_534;

impl PeerCredentials {
    /// Whom nobody gives anything.
    pub(crate) fn nobody() -> Self {
        Self { user: NOBODY, group: NOBODY, further: Vec::new() }
    }

    /// Whether it is what a maker is: root, without further groups.
    pub(crate) fn is_plain_root(&self) -> bool {
        *self == Self::default()
    }
}

/// A message, or a part of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The bytes of the message.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// The sender's address, as the kernel has it.
    pub from: Vec<u8>,
    /// The open files that come with it, indices into [`Image::files`](super::Image::files): with the first byte, if it
    /// is part of a stream.
    pub files: Vec<usize>,
    /// Who sent it, where that comes with it (SCM_CREDENTIALS).
    pub sender: Option<Sender>,
}

/// Who sent a message, as whoever receives it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// The process inside; 0 if it has no number there.
    pub process: i32,
    /// The user that the sender named.
    pub user: u32,
    /// The group that the sender named.
    pub group: u32,
}

impl UnixSocket {
    /// Whether it has a name: of a file or an abstract one.
    pub(crate) fn is_named(&self) -> bool {
        self.name.len() > 2
    }

    /// The path of its name, unless it is abstract.
    pub(crate) fn path(&self) -> Option<String> {
        path(&self.name, &self.directory)
    }
}

/// A socket that is no unix socket: of TCP, UDP, IP or netlink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainSocket {
    /// The socket's address family: `AF_*`.
    pub family: i32,
    /// The type of the socket: `SOCK_*`.
    pub kind: i32,
    /// `IPPROTO_*`, or which of netlink's.
    pub protocol: i32,
    /// The address that it is bound to, as the kernel has it; empty if it is not.
    pub name: Vec<u8>,
    /// What the socket does in a clone.
    pub role: Role,
    /// Options that differ from those of a new socket.
    pub options: Vec<SocketOption>,
    /// Its packet filter (`SO_ATTACH_FILTER`): instructions of eight bytes.
    pub filter: Vec<u8>,
    /// Which network namespace it belongs to, an index into [`net_spaces`](crate::image::Image::net_spaces); none if
    /// the first process's.
    pub net_space: Option<usize>,
}

/// What a plain socket does in a clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Nothing yet; or it sends and receives without a connection.
    #[default]
    Idle,
    /// It listens, and connections wait at it.
    Listens {
        /// How many connections may wait.
        backlog: u32,
    },
    /// Its messages go to an address.
    Sends {
        /// The address that its messages go to.
        to: Vec<u8>,
    },
    /// It was connected by TCP.
    Lost,
}

/// An option: level, number, the kernel's bytes.
pub type SocketOption = (i32, i32, Vec<u8>);

pub(crate) const SNDBUF: i32 = 7;
pub(crate) const RCVBUF: i32 = 8;
pub(crate) const PASSCRED: i32 = 16;
pub(crate) const PEEK_OFF: i32 = 42;

/// More than this are not captured: each is open here meanwhile.
pub(crate) const MOST_IN_FLIGHT: usize = 512;

/// The path in an address.
pub(crate) fn path(address: &[u8], directory: &str) -> Option<String> {
    let name = address.get(2..)?;
    let name = name.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
    let name = String::from_utf8_lossy(name);
    Some(if name.starts_with('/') { name.into_owned() } else { format!("{}/{name}", directory.trim_end_matches('/')) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restore::plain_socket::bind;
    use crate::restore::script::Writer;

    #[test]
    fn an_address_that_a_clone_may_lack_has_a_second_choice() {
        let steps = |name: [u8; 16]| {
            let mut writer = Writer::new();
            let socket = PlainSocket { family: libc::AF_INET, kind: 1, name: name.to_vec(), ..PlainSocket::default() };
            bind(&mut writer, &socket, 9);
            format!("{:?}", writer.finish(1, 1, 0, 0)).lines().count()
        };
        let mut name = [2, 0, 0, 80, 10, 9, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(steps(name), 2);
        name[4] = 127;
        assert_eq!(steps(name), 1);
        name[4..8].fill(0);
        assert_eq!(steps(name), 1);
    }

    #[test]
    fn names_are_paths_or_abstract() {
        let socket =
            |name: &[u8]| UnixSocket { name: name.to_vec(), directory: "/run/x".into(), ..UnixSocket::default() };
        assert_eq!(socket(b"\x01\x00/run/a\0").path().as_deref(), Some("/run/a"));
        assert_eq!(socket(b"\x01\x00a").path().as_deref(), Some("/run/x/a"));
        assert_eq!(socket(b"\x01\x00\0a").path(), None);
        assert!(socket(b"\x01\x00\0a").is_named() && !socket(b"\x01\x00").is_named());
    }
}

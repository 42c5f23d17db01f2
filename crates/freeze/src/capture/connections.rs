//! TCP connections. Those that processes have among themselves are in the image with both ends, so that each clone has
//! its own. Those with others have one owner: they are kept of processes that end where they were frozen, so that what
//! is restored has them still.
//!
//! ```text
//!   stand still ▷ find ▷ (packets of the outside are withheld) ▷ take: repair, read
//!     ▷ the processes end, and no peer hears of it; or they run on
//!   processes wait at the gate ▷ revive (`revival`)
//! ```

use crate::capture::urgent_data;
use crate::image::connection::{Bytes, Connection, Ended, Ends, MOST_QUEUED, Peer, is_loopback, owners};
use crate::image::{FileKind, Image, Role};
use crate::inspect::socket_table;
use pando_kernel::socket;
use pando_kernel::socket::tcp_repair::{self, Queue, Repair};
use rustix::net::RecvFlags;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// Where `struct tcp_info` has the state, what was agreed on (`TCPI_OPT_*`), the two window scales, how many
/// connections wait at a listener (`tcpi_unacked`), and how much was sent and acknowledged (`tcpi_bytes_acked`).
const INFO_STATE: usize = 0;

const INFO_OPTIONS: usize = 5;
const INFO_SCALES: usize = 6;
const INFO_WAITING: usize = 24;
const INFO_ACKNOWLEDGED: usize = 120;

/// A state in which there is something to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    ended: Ended,
    /// Whether the end of what was sent waits to be acknowledged: it counts as one byte of that.
    unacknowledged: bool,
}

impl State {
    fn of(number: u8) -> Option<Self> {
        // TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING.
        let (sent, received, unacknowledged) = match number {
            1 => (false, false, false),
            4 => (true, false, true),
            5 => (true, false, false),
            8 => (false, true, false),
            9 | 11 => (true, true, true),
            _ => return None,
        };
        Some(Self { ended: Ended { sent, received }, unacknowledged })
    }
}

/// An address as both ends see it, whichever family their sockets are of.
fn canonical(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// Which connections are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those that clones have: of processes that run on.
    Clones,
    /// All, of processes that end.
    All,
}

/// A connected socket of a process that stands still.
struct Socket {
    file: usize,
    socket: OwnedFd,
    ends: Ends,
    /// Its network namespace, see [`PlainSocket`](crate::image::PlainSocket).
    space: Option<usize>,
    peer: Peer,
    state: State,
}

impl Socket {
    fn of(file: usize, space: Option<usize>, socket: OwnedFd) -> Option<Self> {
        let ends = ends(&socket).ok()?;
        let state = state(&socket)?;
        is_plain(&socket).then_some(Self { file, socket, ends, space, peer: Peer::Outside, state })
    }

    fn is_wanted(&self, scope: Scope) -> bool {
        let closed = self.state.ended.received && is_loopback(self.ends.1);
        self.peer != Peer::Outside || closed || scope == Scope::All && self.space.is_none()
    }

    /// Whether all that was written to it lies here still: the first byte that is acknowledged is the connection
    /// itself, the last one its end.
    fn has_all_that_it_sent(&self) -> bool {
        let number = info(&self.socket).ok().and_then(|info| {
            info.get(INFO_ACKNOWLEDGED..INFO_ACKNOWLEDGED + 8)?.try_into().ok().map(u64::from_le_bytes)
        });
        let end = u64::from(self.state.ended.sent && !self.state.unacknowledged);
        number.is_some_and(|number| number <= 1 + end)
    }
}

/// A listener at which connections wait.
struct Listener {
    space: Option<usize>,
    at: (IpAddr, u16),
    waiting: u32,
}

impl Listener {
    fn of(space: Option<usize>, socket: &OwnedFd) -> Option<Self> {
        let info = info(socket).ok()?;
        let waiting = info.get(INFO_WAITING..INFO_WAITING + 4)?.try_into().ok().map(u32::from_le_bytes)?;
        let at = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
        (waiting > 0).then_some(Self { space, at: canonical(at), waiting })
    }

    fn serves(&self, socket: &Socket) -> bool {
        let (ip, port) = canonical(socket.ends.1);
        self.space == socket.space && self.at.1 == port && (self.at.0 == ip || self.at.0.is_unspecified())
    }
}

/// The connected sockets of processes that stand still.
pub(crate) struct Connected(Vec<Socket>);

impl Connected {
    /// Those of an image that was just captured. `outer` tells the pid here of a process of it.
    pub(crate) fn find(image: &Image, scope: Scope, outer: impl Fn(i32) -> Option<i32>) -> Self {
        let (mut found, mut listeners) = (Vec::new(), Vec::new());
        let owners = owners(image);
        for (number, file) in image.files.iter().enumerate() {
            let FileKind::Plain(socket) = &file.kind else { continue };
            let space = socket.net_space;
            let take = || {
                let (pid, descriptor) = owners.get(&number)?;
                socket_table::take(outer(*pid)?, *descriptor).ok()
            };
            match socket.role {
                Role::Lost => found.extend(take().and_then(|taken| Socket::of(number, space, taken))),
                Role::Listens { .. } => listeners.extend(take().and_then(|taken| Listener::of(space, &taken))),
                _ => {}
            }
        }
        place(&mut found, &listeners);
        found.retain(|one| one.is_wanted(scope));
        Self(found)
    }

    /// Those that a clone would have, and in which urgent data waits: open files of the image.
    pub(crate) fn urgent(&self) -> Vec<usize> {
        let urgent =
            |one: &&Socket| one.peer != Peer::Outside && urgent_data::waits_in_tcp(&one.socket).unwrap_or(false);
        self.0.iter().filter(urgent).map(|one| one.file).collect()
    }

    /// The ends of those that others have, too.
    pub(crate) fn outward(&self) -> Vec<Ends> {
        self.0.iter().filter(|one| one.peer == Peer::Outside && one.space.is_none()).map(|one| one.ends).collect()
    }

    /// Reads all of them. From here on they send nothing, until the value is dropped or the processes have ended.
    /// Should the maker of the task that does this be killed meanwhile, they are as they were.
    pub(crate) fn take(self) -> Taken {
        let mut halves = Vec::new();
        for Socket { file, socket, ends, peer, state, .. } in self.0 {
            let Ok(socket) = Repair::begin(socket) else { continue };
            // One that has ended meanwhile, or that cannot be read, is reset as any that is not in the image.
            if let Ok(sent) = read_sent(&socket, state) {
                halves.push((
                    socket,
                    sent,
                    Connection { file, peer, ended: state.ended, ..Connection::between(ends) },
                    state,
                ));
            }
        }
        let mut taken = Taken::default();
        let mut room = MOST_QUEUED;
        // Between two of them something may be on its way still. It is with both then, of which the other takes it
        // once; read before it was sent, and after it came, it would be with neither.
        for (socket, sent, begun, was) in halves {
            if let Ok(connection) = read(&socket, begun, sent)
                && connection.queued() <= room
                && state(&socket) == Some(was)
            {
                room -= connection.queued();
                taken.connections.push(connection);
                taken.sockets.push(socket);
            }
        }
        taken
    }
}

/// Finds out where the other ends are.
fn place(found: &mut [Socket], listeners: &[Listener]) {
    type Key = (Option<usize>, (IpAddr, u16), (IpAddr, u16));
    let key = |one: &Socket, turned: bool| -> Key {
        let (local, remote) = (canonical(one.ends.0), canonical(one.ends.1));
        if turned { (one.space, remote, local) } else { (one.space, local, remote) }
    };
    let all: std::collections::HashSet<Key> = found.iter().map(|one| key(one, false)).collect();
    for one in found.iter_mut() {
        if all.contains(&key(one, true)) {
            one.peer = Peer::Inside;
        }
    }
    for listener in listeners {
        let waits = |one: &&mut Socket| one.peer == Peer::Outside && !one.state.ended.received && listener.serves(one);
        let waiting: Vec<_> = found.iter_mut().filter(waits).collect();
        // Of more than wait there some are connected to somebody else.
        if waiting.len() <= listener.waiting as usize {
            waiting.into_iter().filter(|one| one.has_all_that_it_sent()).for_each(|one| one.peer = Peer::Unaccepted);
        }
    }
}

/// Connections that were read.
#[derive(Default)]
pub(crate) struct Taken {
    sockets: Vec<Repair>,
    connections: Vec<Connection>,
}

impl Taken {
    pub(crate) fn connections(&self) -> &[Connection] {
        &self.connections
    }

    /// The processes are about to end: nobody hears of it. Allocates and frees nothing.
    pub(crate) fn leave(&self) {
        self.sockets.iter().for_each(Repair::leave);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // What came last is found first.
        while self.sockets.pop().is_some() {}
    }
}

pub(crate) fn ends(socket: &OwnedFd) -> io::Result<Ends> {
    let address = |found: rustix::net::SocketAddrAny| SocketAddr::try_from(found).map_err(io::Error::other);
    let peer = rustix::net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok((address(rustix::net::getsockname(socket)?)?, address(peer)?))
}

fn info(socket: impl AsFd) -> io::Result<Vec<u8>> {
    let info = socket::option::get(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    if info.len() > INFO_SCALES { Ok(info) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn state(socket: impl AsFd) -> Option<State> {
    info(socket).ok().and_then(|info| State::of(info[INFO_STATE]))
}

/// Whether nothing lies between its user and TCP: the keys of an encryption in the kernel (`TCP_ULP`, "tls") cannot be
/// read, and what is sent without them would be something else. Asked for since Linux 4.13.
fn is_plain(socket: impl AsFd) -> bool {
    socket::option::get(socket, libc::IPPROTO_TCP, libc::TCP_ULP)
        .map_or(true, |name| name.iter().all(|byte| *byte == 0))
}

/// What was written to one that is in repair, and how much of it has never left. The end of it is no byte of it.
fn read_sent(socket: &Repair, State { ended, unacknowledged }: State) -> io::Result<((u32, Bytes), u32)> {
    let (written, unsent) = tcp_repair::unacknowledged(socket)?;
    let length = written.saturating_sub(u32::from(unacknowledged));
    tcp_repair::choose(socket, Queue::Sent)?;
    let next = tcp_repair::sequence(socket)?.wrapping_sub(u32::from(ended.sent));
    Ok(((next, Bytes(peek(socket, length as usize)?)), unsent.min(length)))
}

/// Reads the rest of it.
fn read(socket: &Repair, begun: Connection, (sent, unsent): ((u32, Bytes), u32)) -> io::Result<Connection> {
    if urgent_data::waits_in_tcp(socket)? {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let info = info(socket)?;
    let length = tcp_repair::unread(socket)?;
    tcp_repair::choose(socket, Queue::Received)?;
    Ok(Connection {
        // Where the other end has sent all, its end is counted: it does not come again.
        received: (tcp_repair::sequence(socket)?, Bytes(peek(socket, length as usize)?)),
        sent,
        unsent,
        segment: socket::option::number(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG)? as u32,
        agreed: info[INFO_OPTIONS],
        scales: info[INFO_SCALES],
        clock: tcp_repair::clock(socket)?,
        window: Bytes(tcp_repair::window(socket)?),
        reuse: socket.reuse(),
        ..begun
    })
}

/// What lies in the chosen queue.
fn peek(socket: &Repair, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    if length > 0 {
        let (_, read) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        if read != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_at_a_listener_is_told_from_what_is_connected_to_somebody_else() {
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("[::]:0").unwrap();
        let to = (std::net::Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port());
        let connected = TcpStream::connect(to).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let fresh = TcpStream::connect(to).unwrap();
        let mut sockets: Vec<_> = [&connected, &accepted, &fresh]
            .map(|one| Socket::of(0, None, one.try_clone().unwrap().into()).unwrap())
            .into_iter()
            .collect();
        let at = || Listener::of(None, &listener.try_clone().unwrap().into());
        place(&mut sockets, &[at().unwrap()]);
        assert_eq!(
            sockets.iter().map(|one| one.peer).collect::<Vec<_>>(),
            [Peer::Inside, Peer::Inside, Peer::Unaccepted]
        );
        // Of two that may wait one does.
        let mut alone: Vec<_> =
            [&connected, &fresh].map(|one| Socket::of(0, None, one.try_clone().unwrap().into()).unwrap()).into();
        place(&mut alone, &[at().unwrap()]);
        assert!(alone.iter().all(|one| one.peer == Peer::Outside));
        drop(listener.accept().unwrap());
        assert!(at().is_none(), "nobody waits");
    }

    #[test]
    fn half_of_a_connection_that_has_ended_is_known() {
        let (sent, received) =
            (|state: u8| State::of(state).unwrap().ended.sent, |state: u8| State::of(state).unwrap().ended.received);
        assert_eq!([1, 4, 5, 8, 9, 11].map(sent), [false, true, true, false, true, true]);
        assert_eq!([1, 4, 5, 8, 9, 11].map(received), [false, false, false, true, true, true]);
        assert_eq!([2, 3, 6, 7, 10].map(State::of), [None; 5]);
    }
}

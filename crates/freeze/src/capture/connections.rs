//! TCP connections. Those that processes have among themselves are in the image with both ends, so that each clone has
//! its own. Those with others have one owner: they are kept of processes that end where they were frozen, so that what
//! is restored has them still.
//!
//! ```text
//!   stand still ▷ find ▷ (packets of the outside are withheld) ▷ take: repair, read
//!     ▷ the processes end, and no peer hears of it; or they run on
//!   processes wait at the gate ▷ revive (`revival`)
//! ```

use crate::capture::unaccepted::{Key, Listener, Listeners, Place};
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

/// Where `struct tcp_info` has the state, what was agreed on (`TCPI_OPT_*`), the two window scales, and how much was
/// sent and acknowledged (`tcpi_bytes_acked`).
const INFO_STATE: usize = 0;

const INFO_OPTIONS: usize = 5;
const INFO_SCALES: usize = 6;
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
pub(super) fn canonical(address: SocketAddr) -> (IpAddr, u16) {
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
    /// Where its other end waits to be accepted, if the kernel has told that.
    place: Option<Place>,
}

impl Socket {
    fn of(file: usize, space: Option<usize>, socket: OwnedFd) -> Option<Self> {
        let ends = ends(&socket).ok()?;
        let state = state(&socket)?;
        is_plain(&socket).then_some(Self { file, socket, ends, space, peer: Peer::Outside, state, place: None })
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

/// The connected sockets of processes that stand still.
pub(crate) struct Connected {
    sockets: Vec<Socket>,
    listeners: Listeners,
    /// How many wait to be accepted and have sent something, which this kernel lets nobody look at.
    unheard: usize,
}

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
                Role::Listens { .. } => listeners.extend(take().and_then(|taken| listener(space, taken))),
                _ => {}
            }
        }
        let mut listeners = Listeners::of(listeners);
        let unheard = place(&mut found, &mut listeners);
        found.retain(|one| one.is_wanted(scope));
        // They are to wait in the order in which they do.
        found.sort_by_key(|one| one.place);
        Self { sockets: found, listeners, unheard }
    }

    /// How many of them a clone will find reset, since nobody has accepted them and they have sent something.
    pub(crate) fn unheard(&self) -> usize {
        self.unheard
    }

    /// Those that a clone would have, and in which urgent data waits: open files of the image.
    pub(crate) fn urgent(&self) -> Vec<usize> {
        let urgent =
            |one: &&Socket| one.peer != Peer::Outside && urgent_data::waits_in_tcp(&one.socket).unwrap_or(false);
        self.sockets.iter().filter(urgent).map(|one| one.file).collect()
    }

    /// The ends of those that others have, too.
    pub(crate) fn outward(&self) -> Vec<Ends> {
        self.sockets.iter().filter(|one| one.peer == Peer::Outside && one.space.is_none()).map(|one| one.ends).collect()
    }

    /// Reads all of them. From here on they send nothing, until the value is dropped or the processes have ended.
    /// Should the maker of the task that does this be killed meanwhile, they are as they were.
    pub(crate) fn take(self) -> Taken {
        let mut halves = Vec::new();
        for Socket { file, socket, ends, peer, state, place, .. } in self.sockets {
            let Ok(socket) = Repair::begin(socket) else { continue };
            // One that has ended meanwhile, or that cannot be read, is reset as any that is not in the image.
            if let Ok(sent) = read_sent(&socket, state) {
                let begun = Connection { file, peer, ended: state.ended, ..Connection::between(ends) };
                halves.push((socket, sent, begun, (state, place)));
            }
        }
        let queues = self.listeners.waiting();
        let mut taken = Taken::default();
        let mut room = MOST_QUEUED;
        // Between two of them something may be on its way still. It is with both then, of which the other takes it
        // once; read before it was sent, and after it came, it would be with neither.
        for (socket, sent, begun, (was, place)) in halves {
            let read = read(&socket, begun, sent).and_then(|connection| {
                let Some(place) = place else { return Ok(connection) };
                let sent = queues.all_sent((place, connection.ends()), &connection.sent, room)?;
                Ok(Connection { sent, ..connection })
            });
            if let Ok(connection) = read
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

fn listener(space: Option<usize>, socket: OwnedFd) -> Option<Listener> {
    let info = info(&socket).ok()?;
    Listener::of(space, socket, &info)
}

/// Finds out where the other ends are. How many of those that wait to be accepted have sent something that is lost.
fn place(found: &mut [Socket], listeners: &mut Listeners) -> usize {
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
    let (heard, unclear) = place_unaccepted(found, &listeners.all);
    if heard + unclear == 0 {
        return 0;
    }
    listeners.ask_the_kernel();
    let places = listeners.places();
    for one in found.iter_mut().filter(|one| one.peer != Peer::Inside && !one.state.ended.received) {
        if let Some(place) = places.get(&key(one, false)) {
            (one.peer, one.place) = (Peer::Unaccepted, Some(*place));
        }
    }
    place_unaccepted(found, &listeners.all).0
}

/// Finds those that nobody has accepted, as far as a listener tells: how many wait there. How many of them have sent
/// something that lies with the listener, and how many may be connected to somebody else.
fn place_unaccepted(found: &mut [Socket], listeners: &[Listener]) -> (usize, usize) {
    let (mut heard, mut unclear) = (0, 0);
    for listener in listeners {
        let may_wait = |one: &&mut Socket| {
            one.peer != Peer::Inside && !one.state.ended.received && listener.serves(one.space, one.ends.1)
        };
        let waiting: Vec<_> = found.iter_mut().filter(may_wait).collect();
        // Of more than wait there some are connected to somebody else.
        let all_wait = waiting.len() <= listener.waiting as usize;
        for one in waiting.into_iter().filter(|one| one.peer == Peer::Outside) {
            match (all_wait, one.has_all_that_it_sent()) {
                (true, true) => one.peer = Peer::Unaccepted,
                (true, false) => heard += 1,
                (false, _) => unclear += 1,
            }
        }
    }
    (heard, unclear)
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
        let listener_socket = TcpListener::bind("[::]:0").unwrap();
        let to = (std::net::Ipv4Addr::LOCALHOST, listener_socket.local_addr().unwrap().port());
        let connected = TcpStream::connect(to).unwrap();
        let (accepted, _) = listener_socket.accept().unwrap();
        let fresh = TcpStream::connect(to).unwrap();
        let mut sockets: Vec<_> = [&connected, &accepted, &fresh]
            .map(|one| Socket::of(0, None, one.try_clone().unwrap().into()).unwrap())
            .into_iter()
            .collect();
        let at = || listener(None, listener_socket.try_clone().unwrap().into());
        place(&mut sockets, &mut Listeners::of(vec![at().unwrap()]));
        assert_eq!(
            sockets.iter().map(|one| one.peer).collect::<Vec<_>>(),
            [Peer::Inside, Peer::Inside, Peer::Unaccepted]
        );
        // Of two that may wait one does.
        let mut alone: Vec<_> =
            [&connected, &fresh].map(|one| Socket::of(0, None, one.try_clone().unwrap().into()).unwrap()).into();
        assert_eq!(place_unaccepted(&mut alone, &[at().unwrap()]), (0, 2));
        assert!(alone.iter().all(|one| one.peer == Peer::Outside));
        drop(listener_socket.accept().unwrap());
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

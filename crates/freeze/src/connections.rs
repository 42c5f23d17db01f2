//! TCP connections of processes that end where they were frozen, so that what is restored has them still. Clones have none: a connection has one owner.
//!
//! ```text
//!   stand still ▷ find ▷ (their packets are withheld) ▷ take: repair, read ▷ the processes end, and nobody hears of it
//!   processes wait at the gate ▷ revive: repair, connect, fill ▷ (their packets come through) ▷ wake ▷ the processes run
//! ```
//!
//! A restored process has a socket in the place of each that was connected; it was made by the process itself, in its network and control group, and is
//! given its connection from here, which takes privilege over the network.

use crate::image::{FileKind, Image, Role};
use crate::socket_options::SocketOption;
use crate::unix_socket;
use pando_kernel::tcp_repair::{self, Queue, Repair};
use pando_kernel::{CallError, Context, socket_option};
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// More than so many unread and unacknowledged bytes of all connections together are not kept: what has more is reset.
const MOST_QUEUED: usize = 4 << 20;

/// `TCP_ESTABLISHED`.
const ESTABLISHED: u8 = 1;

/// Where `struct tcp_info` has the state, what was agreed on (`TCPI_OPT_*`), and the two window scales.
const INFO_STATE: usize = 0;
const INFO_OPTIONS: usize = 5;
const INFO_SCALES: usize = 6;

/// An established connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Its open file, an index into [`Image::files`].
    pub file: usize,
    /// Its own end.
    pub local: SocketAddr,
    /// The other's.
    pub remote: SocketAddr,
    /// The number of the next byte that is to come, and what came before it and was not read.
    pub received: (u32, Bytes),
    /// The number of the next byte that is to be written, and what was written before it and not acknowledged.
    pub sent: (u32, Bytes),
    /// How many of those have never left.
    pub unsent: u32,
    /// The largest segment.
    pub segment: u32,
    /// What was agreed on: timestamps 1, selective acknowledgements 2, window scales 4.
    pub agreed: u8,
    /// Window scales, the other's in the lower half.
    pub scales: u8,
    /// The clock of its timestamps.
    pub clock: u32,
    /// What either end may send.
    pub window: Bytes,
    /// Whether its address may be bound again (SO_REUSEADDR), which being repaired undoes.
    pub reuse: bool,
}

/// Bytes that are written in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("these are no hexadecimal digits"))
    }
}

/// The two ends of a connection, its own first.
pub type Ends = (SocketAddr, SocketAddr);

impl Connection {
    /// Its ends.
    pub fn ends(&self) -> Ends {
        (self.local, self.remote)
    }
}

/// The connected sockets of processes that stand still.
pub(crate) struct Connected(Vec<(usize, OwnedFd, Ends)>);

impl Connected {
    /// Those of an image that was just captured, in the first process's network. `outer` tells the pid here of a process of it.
    pub(crate) fn find(image: &Image, outer: impl Fn(i32) -> Option<i32>) -> Self {
        let lost = |kind: &FileKind| matches!(kind, FileKind::Plain(socket) if socket.role == Role::Lost && socket.net_space.is_none());
        let files = image.files.iter().enumerate().filter(|(_, file)| lost(&file.kind));
        let found = files.filter_map(|(number, _)| {
            let (pid, descriptor) = owner(image, number)?;
            let socket = unix_socket::take(outer(pid)?, descriptor).ok()?;
            let ends = ends(&socket).ok()?;
            (is_established(&socket) && is_plain(&socket)).then_some((number, socket, ends))
        });
        Self(found.collect())
    }

    /// Their ends.
    pub(crate) fn ends(&self) -> Vec<Ends> {
        self.0.iter().map(|(_, _, ends)| *ends).collect()
    }

    /// Reads all of them. From here on they send nothing, until the value is dropped or the processes have ended. Should the maker of the task that does
    /// this be killed meanwhile, they are as they were.
    pub(crate) fn take(self) -> Taken {
        let mut taken = Taken::default();
        let mut room = MOST_QUEUED;
        for (file, socket, ends) in self.0 {
            let Ok(socket) = Repair::begin(socket) else { continue };
            // One that has ended meanwhile, or that cannot be read, is reset as any that is not in the image.
            let read = read(&socket, file, ends).map(|connection| (connection.queued(), connection));
            if let Ok((queued, connection)) = read
                && queued <= room
                && is_established(&socket)
            {
                room -= queued;
                taken.connections.push(connection);
                taken.sockets.push(socket);
            }
        }
        taken
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

impl Connection {
    fn queued(&self) -> usize {
        self.received.1.0.len() + self.sent.1.0.len()
    }
}

/// A process of an image that has an open file, and its descriptor.
fn owner(image: &Image, file: usize) -> Option<(i32, i32)> {
    image.processes.iter().find_map(|process| {
        let descriptor = process.descriptors.iter().find(|one| one.file == file)?;
        Some((process.pid, descriptor.number))
    })
}

fn ends(socket: &OwnedFd) -> io::Result<Ends> {
    let address = |found: rustix::net::SocketAddrAny| SocketAddr::try_from(found).map_err(io::Error::other);
    let peer = rustix::net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok((address(rustix::net::getsockname(socket)?)?, address(peer)?))
}

fn info(socket: impl AsFd) -> io::Result<Vec<u8>> {
    let info = socket_option::get(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    if info.len() > INFO_SCALES { Ok(info) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn is_established(socket: impl AsFd) -> bool {
    info(socket).is_ok_and(|info| info[INFO_STATE] == ESTABLISHED)
}

/// Whether nothing lies between its user and TCP: the keys of an encryption in the kernel (`TCP_ULP`, "tls") cannot be read, and what is sent without them would be
/// something else. Asked for since Linux 4.13.
fn is_plain(socket: impl AsFd) -> bool {
    socket_option::get(socket, libc::IPPROTO_TCP, libc::TCP_ULP).map_or(true, |name| name.iter().all(|byte| *byte == 0))
}

/// Reads one that is in repair.
fn read(socket: &Repair, file: usize, (local, remote): Ends) -> io::Result<Connection> {
    let info = info(socket)?;
    let (written, unsent) = tcp_repair::unacknowledged(socket)?;
    let queue = |queue: Queue, length: u32| -> io::Result<(u32, Bytes)> {
        tcp_repair::choose(socket, queue)?;
        Ok((tcp_repair::sequence(socket)?, Bytes(peek(socket, length as usize)?)))
    };
    Ok(Connection {
        file,
        local,
        remote,
        received: queue(Queue::Received, tcp_repair::unread(socket)?)?,
        sent: queue(Queue::Sent, written)?,
        unsent,
        segment: socket_option::number(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG)? as u32,
        agreed: info[INFO_OPTIONS],
        scales: info[INFO_SCALES],
        clock: tcp_repair::clock(socket)?,
        window: Bytes(tcp_repair::window(socket)?),
        reuse: socket.reuse(),
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

/// Connections that have been put into the sockets of processes which wait to run. Until they wake nothing is sent.
#[derive(Debug, Default)]
pub struct Revived {
    sockets: Vec<(OwnedFd, Connection)>,
    /// Those that could not be, and why.
    pub lost: Vec<(Ends, CallError)>,
}

/// Puts connections into the sockets that were made in their place. `outer` tells the pid here of a process of the image.
pub fn revive(image: &Image, connections: &[Connection], outer: impl Fn(i32) -> Option<i32>) -> Revived {
    let mut revived = Revived::default();
    for connection in connections {
        let place = || -> io::Result<(i32, i32)> {
            let gone = || io::Error::other("no process of the guest has it");
            let (pid, descriptor) = owner(image, connection.file).ok_or_else(gone)?;
            Ok((outer(pid).ok_or_else(gone)?, descriptor))
        };
        let what = || format!("connecting {} with {}", connection.local, connection.remote);
        let put = place().context(what).and_then(|(outer, descriptor)| {
            let socket = unix_socket::take(outer, descriptor)?;
            put(&socket, connection).context(what)?;
            Ok(socket)
        });
        match put {
            Ok(socket) => revived.sockets.push((socket, connection.clone())),
            Err(error) => revived.lost.push((connection.ends(), error)),
        }
    }
    revived
}

impl Revived {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.sockets.len()
    }

    /// Has each of them tell the other end that it is there, and send what is to be sent.
    pub fn wake(mut self) -> Vec<(Ends, CallError)> {
        for (socket, connection) in self.sockets.drain(..) {
            if let Err(error) = wake(&socket, &connection) {
                let what = format!("waking the connection of {} with {}", connection.local, connection.remote);
                self.lost.push((connection.ends(), CallError { what, source: error }));
            }
        }
        self.lost
    }
}

fn wake(socket: &OwnedFd, connection: &Connection) -> io::Result<()> {
    tcp_repair::end(socket)?;
    if connection.reuse {
        socket_option::set_number(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    }
    let bytes = &connection.sent.1.0;
    let (_, unsent) = bytes.split_at(bytes.len().saturating_sub(connection.unsent as usize));
    let _room = Room::make(socket, connection.queued())?;
    fill(socket, unsent)
}

/// What the socket was before is undone: it stands for a connection that is lost.
fn put(socket: &OwnedFd, connection: &Connection) -> io::Result<()> {
    tcp_repair::forget_peer(socket)?;
    tcp_repair::begin(socket)?;
    let done = connect(socket, connection);
    if done.is_err() {
        let _ = tcp_repair::forget_peer(socket);
        let _ = tcp_repair::end(socket);
    }
    done
}

fn connect(socket: &OwnedFd, connection: &Connection) -> io::Result<()> {
    let before = |(next, bytes): &(u32, Bytes)| next.wrapping_sub(bytes.0.len() as u32);
    rustix::net::bind(socket, &connection.local)?;
    tcp_repair::choose(socket, Queue::Sent)?;
    tcp_repair::set_sequence(socket, before(&connection.sent))?;
    tcp_repair::choose(socket, Queue::Received)?;
    tcp_repair::set_sequence(socket, before(&connection.received))?;
    rustix::net::connect(socket, &connection.remote)?;
    tcp_repair::set_options(socket, &connection.options())?;
    tcp_repair::set_clock(socket, connection.clock)?;
    let room = Room::make(socket, connection.queued())?;
    fill(socket, &connection.received.1.0)?;
    tcp_repair::choose(socket, Queue::Sent)?;
    let bytes = &connection.sent.1.0;
    let (gone, _) = bytes.split_at(bytes.len().saturating_sub(connection.unsent as usize));
    fill(socket, gone)?;
    drop(room);
    tcp_repair::set_window(socket, &connection.window.0)
}

impl Connection {
    fn options(&self) -> Vec<(u32, u32)> {
        const TIMESTAMPS: u8 = 1;
        const SELECTIVE: u8 = 2;
        const SCALES: u8 = 4;
        let mut options = Vec::new();
        if self.agreed & SELECTIVE != 0 {
            options.push((tcp_repair::SELECTIVE, 0));
        }
        if self.agreed & SCALES != 0 {
            let (theirs, ours) = (u32::from(self.scales & 15), u32::from(self.scales >> 4));
            options.push((tcp_repair::SCALES, theirs | ours << 16));
        }
        if self.agreed & TIMESTAMPS != 0 {
            options.push((tcp_repair::TIMESTAMPS, 0));
        }
        options.push((tcp_repair::SEGMENT, self.segment));
        options
    }
}

/// Room for more than a socket usually takes. What its process has set comes back when this goes.
struct Room<'a>(&'a OwnedFd, Vec<SocketOption>);

impl<'a> Room<'a> {
    fn make(socket: &'a OwnedFd, queued: usize) -> io::Result<Self> {
        const USUAL: usize = 32 << 10;
        const FORCE: [(i32, i32); 2] = [(libc::SO_SNDBUF, 32), (libc::SO_RCVBUF, 33)];
        let mut before = Vec::new();
        // A size that was set is one that the kernel does not adapt any more.
        if queued > USUAL {
            for (plain, force) in FORCE {
                let size = socket_option::number(socket, libc::SOL_SOCKET, plain)?;
                before.push((libc::SOL_SOCKET, force, (size / 2).to_le_bytes().to_vec()));
                socket_option::set_number(socket, libc::SOL_SOCKET, force, (2 * queued) as i32)?;
            }
        }
        Ok(Self(socket, before))
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        for (level, number, value) in &self.1 {
            let _ = socket_option::set(self.0, *level, *number, value);
        }
    }
}

/// Writes all of it to the chosen queue.
fn fill(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    const AT_ONCE: usize = 16 << 10;
    while !bytes.is_empty() {
        let piece = &bytes[..bytes.len().min(AT_ONCE)];
        let sent = rustix::net::send(socket, piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Connection {
        Connection {
            file: 3,
            local: "10.9.0.5:80".parse().unwrap(),
            remote: "[fd00::1]:4000".parse().unwrap(),
            received: (7, Bytes(b"in".to_vec())),
            sent: (9, Bytes(vec![0, 255])),
            unsent: 1,
            segment: 1448,
            agreed: 7,
            scales: 0xa7,
            clock: 5,
            window: Bytes(vec![1; 20]),
            reuse: true,
        }
    }

    #[test]
    fn what_is_kept_can_be_read() {
        let text = serde_json::to_string(&connection()).unwrap();
        assert!(text.contains("\"00ff\""), "{text}");
        assert_eq!(serde_json::from_str::<Connection>(&text).unwrap(), connection());
        let wrong = text.replace("00ff", "0x0");
        assert!(serde_json::from_str::<Connection>(&wrong).is_err());
    }

    #[test]
    fn what_was_agreed_on_is_what_the_kernel_wants() {
        let all = connection().options();
        assert_eq!(all, [(4, 0), (3, 0x000a_0007), (8, 0), (2, 1448)]);
        assert_eq!(Connection { agreed: 0, ..connection() }.options(), [(2, 1448)]);
    }
}

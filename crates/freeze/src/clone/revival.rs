//! TCP connections of an image, given to processes that wait to run: those of a guest that is restored, and what the
//! processes of a clone have among themselves.
//!
//! ```text
//!   processes wait at the gate ▷ revive: repair, connect, fill
//!     ▷ (packets of the outside come through) ▷ wake ▷ the processes run
//! ```
//!
//! Each has a socket in the place of the one that was connected; it was made by the process itself, in its network and
//! control group, and is given its connection from here, which takes privilege over the network. What waited at a
//! listener connects to that anew, in the order in which it waited, and sends all that it has sent once more: nobody
//! has had any of it.

use crate::image::connection::{Bytes, Connection, Ends, Peer, owners};
use crate::image::{FileKind, Image, Role, SocketOption};
use crate::inspect::socket_table;
use pando_kernel::socket::tcp_repair::{self, Queue};
use pando_kernel::{CallError, Context, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Connections that have been put into the sockets of processes which wait to run. Until they wake nothing is sent.
#[derive(Debug, Default)]
pub struct Revived {
    sockets: Vec<(OwnedFd, Connection)>,
    /// Those that could not be, and why.
    pub lost: Vec<(Ends, CallError)>,
}

/// Puts connections into the sockets that were made in their place. `outer` tells the pid here of a process of the
/// image.
pub fn revive(image: &Image, connections: &[Connection], outer: impl Fn(i32) -> Option<i32>) -> Revived {
    let mut revived = Revived::default();
    let owners = owners(image);
    let take = |file: usize| -> Option<Result<OwnedFd, CallError>> {
        let (pid, descriptor) = owners.get(&file)?;
        Some(socket_table::take(outer(*pid)?, *descriptor))
    };
    let _room = RoomToWait::make(image, connections, |file| take(file)?.ok());
    let mut pending = Vec::new();
    for connection in connections {
        let begin = || -> Result<Pending, CallError> {
            let gone =
                || CallError { what: named(connection), source: io::Error::other("no process of the guest has it") };
            let socket = take(connection.file).ok_or_else(gone)??;
            Pending::begin(socket, connection).context(|| named(connection))
        };
        match begin() {
            Ok(begun) => pending.push((begun, connection)),
            Err(error) => revived.lost.push((connection.ends(), error)),
        }
    }
    await_connections(&pending);
    for (begun, connection) in pending {
        match begun.finish(connection).context(|| named(connection)) {
            Ok(socket) => revived.sockets.push((socket, connection.clone())),
            Err(error) => revived.lost.push((connection.ends(), error)),
        }
    }
    revived
}

fn named(connection: &Connection) -> String {
    format!("connecting {} with {}", connection.local, connection.remote)
}

impl Revived {
    /// How many connections have been put in place.
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
    if connection.peer == Peer::Unaccepted {
        return Ok(());
    }
    if connection.ended.received {
        // Its user finds the end behind what he has not read. Whoever has closed the other end may be gone, and would
        // answer by a reset.
        rustix::net::shutdown(socket, Shutdown::Read)?;
        tcp_repair::end_silently(socket)?;
    } else {
        tcp_repair::end(socket)?;
    }
    if connection.reuse {
        socket::option::set_number(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    }
    let bytes = &connection.sent.1.0;
    let (_, unsent) = bytes.split_at(bytes.len().saturating_sub(connection.unsent as usize));
    {
        let _room = Room::make(socket, connection.queued())?;
        fill(socket, unsent)?;
    }
    finish(socket, connection)
}

/// The end of what it sends goes behind all of that, with the number that it had: whoever has had it takes it for the
/// same.
fn finish(socket: &OwnedFd, connection: &Connection) -> io::Result<()> {
    if connection.ended.sent {
        rustix::net::shutdown(socket, Shutdown::Write)?;
    }
    Ok(())
}

/// A socket that gets its connection. It waits for nobody meanwhile: how long a listener takes, and how often that is
/// asked, its guest has a say in.
struct Pending {
    socket: OwnedFd,
    flags: OFlags,
}

impl Pending {
    /// What the socket was before is undone: it stands for a connection that is lost.
    fn begin(socket: OwnedFd, connection: &Connection) -> io::Result<Self> {
        let flags = fcntl_getfl(&socket)?;
        let begun = Self { socket, flags };
        fcntl_setfl(&begun.socket, flags | OFlags::NONBLOCK)?;
        let socket = &begun.socket;
        tcp_repair::forget_peer(socket)?;
        if connection.peer == Peer::Unaccepted {
            meet(socket, connection).inspect_err(|_| lose(socket, connection))?;
        } else {
            tcp_repair::begin(socket)?;
            connect(socket, connection).inspect_err(|_| lose(socket, connection))?;
        }
        Ok(begun)
    }

    /// The socket, as its process had it.
    fn finish(self, connection: &Connection) -> io::Result<OwnedFd> {
        if connection.peer == Peer::Unaccepted {
            send_again(&self.socket, connection).inspect_err(|_| lose(&self.socket, connection))?;
        }
        self.socket.try_clone()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let _ = fcntl_setfl(&self.socket, self.flags);
    }
}

/// Begins to connect to the listener that has not accepted it.
fn meet(socket: &OwnedFd, connection: &Connection) -> io::Result<()> {
    rustix::net::bind(socket, &connection.local)?;
    match rustix::net::connect(socket, &connection.remote) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends to the listener what had been sent, if it took the connection.
fn send_again(socket: &OwnedFd, connection: &Connection) -> io::Result<()> {
    if !is_decided(&[socket], Duration::ZERO)?[0] {
        return Err(io::ErrorKind::TimedOut.into());
    }
    match socket::option::number(socket, libc::SOL_SOCKET, libc::SO_ERROR)? {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    {
        let _room = Room::make(socket, connection.queued())?;
        fill(socket, &connection.sent.1.0)?;
    }
    finish(socket, connection)
}

/// Waits until listeners have taken connections or refused them. Between two sockets of one machine nothing takes long:
/// else the listener does not take it. There is one limit for all of them, as there may be thousands.
fn await_connections(pending: &[(Pending, &Connection)]) {
    const PATIENCE: Duration = Duration::from_secs(1);
    let begun = Instant::now();
    let unaccepted = pending.iter().filter(|(_, connection)| connection.peer == Peer::Unaccepted);
    let mut sockets: Vec<&OwnedFd> = unaccepted.map(|(one, _)| &one.socket).collect();
    while !sockets.is_empty() {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let Ok(decided) = is_decided(&sockets, left) else { return };
        let mut decided = decided.into_iter();
        sockets.retain(|_| decided.next() == Some(false));
        if left.is_zero() {
            return;
        }
    }
}

/// Whether sockets that connect have a connection, or an error, after a while.
fn is_decided(sockets: &[&OwnedFd], patience: Duration) -> io::Result<Vec<bool>> {
    let mut asked: Vec<_> = sockets.iter().map(|socket| PollFd::new(*socket, PollFlags::OUT)).collect();
    let patience = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    match poll(&mut asked, Some(&patience)) {
        Ok(_) | Err(Errno::INTR) => Ok(asked.iter().map(|one| !one.revents().is_empty()).collect()),
        Err(errno) => Err(errno.into()),
    }
}

/// Listeners at which more waited than they now let wait: a process may say so after they came. What is more the kernel
/// would pass over.
struct RoomToWait(Vec<(OwnedFd, i32)>);

impl RoomToWait {
    fn make(image: &Image, connections: &[Connection], take: impl Fn(usize) -> Option<OwnedFd>) -> Self {
        let mut waiting: HashMap<u16, i32> = HashMap::new();
        for one in connections.iter().filter(|connection| connection.peer == Peer::Unaccepted) {
            *waiting.entry(one.remote.port()).or_default() += 1;
        }
        let mut made = Vec::new();
        for (number, file) in image.files.iter().enumerate() {
            let FileKind::Plain(socket) = &file.kind else { continue };
            let Role::Listens { backlog } = socket.role else { continue };
            let waiting = port(&socket.name).and_then(|port| waiting.get(&port)).copied().unwrap_or(0);
            let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
            if waiting <= backlog {
                continue;
            }
            if let Some(listener) = take(number).filter(|listener| rustix::net::listen(listener, waiting).is_ok()) {
                made.push((listener, backlog));
            }
        }
        Self(made)
    }
}

impl Drop for RoomToWait {
    fn drop(&mut self) {
        for (listener, backlog) in &self.0 {
            let _ = rustix::net::listen(listener, *backlog);
        }
    }
}

/// The port of an address as the kernel has it, of either family.
fn port(name: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes([*name.get(2)?, *name.get(3)?]))
}

/// Makes of a socket whose connection could not be put into it one whose other end has reset that: it asks somebody who
/// knows nothing of it.
fn lose(socket: &OwnedFd, connection: &Connection) {
    const NOBODY: u16 = 1;
    let ip = match connection.local {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(local) if local.ip().to_ipv4_mapped().is_some() => Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    // Where not even that goes it is one that is not connected.
    let _ = tcp_repair::begin(socket);
    let _ = tcp_repair::forget_peer(socket);
    let _ = rustix::net::connect(socket, &SocketAddr::new(ip, NOBODY));
    let _ = tcp_repair::end(socket);
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
                let size = socket::option::number(socket, libc::SOL_SOCKET, plain)?;
                before.push((libc::SOL_SOCKET, force, (size / 2).to_le_bytes().to_vec()));
                socket::option::set_number(socket, libc::SOL_SOCKET, force, (2 * queued) as i32)?;
            }
        }
        Ok(Self(socket, before))
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        for (level, number, value) in &self.1 {
            let _ = socket::option::set(self.0, *level, *number, value);
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
    use crate::image::connection::Ended;
    use crate::image::{Descriptor, OpenFile, PlainSocket, Process};
    use std::os::fd::AsRawFd;

    fn connection() -> Connection {
        let end = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Connection {
            file: 3,
            local: end(80),
            remote: end(4000),
            received: (7, Bytes::default()),
            sent: (9, Bytes::default()),
            unsent: 0,
            segment: 1448,
            agreed: 7,
            scales: 0xa7,
            clock: 5,
            window: Bytes(vec![1; 20]),
            reuse: true,
            peer: Peer::Outside,
            ended: Ended::default(),
        }
    }

    /// So many sockets, and a listener that lets two wait; the connections that are to be made anew.
    fn unaccepted(count: usize) -> (Vec<OwnedFd>, OwnedFd, Image, Vec<Connection>) {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
        let make = || socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let (listener, nowhere) = (make(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        bind(&listener, &nowhere).unwrap();
        listen(&listener, 1).unwrap();
        let remote = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
        let sockets: Vec<_> = (0..count).map(|_| make()).collect();
        let name = [[2, 0], remote.port().to_be_bytes()].concat();
        let listens = PlainSocket { name, role: Role::Listens { backlog: 1 }, ..PlainSocket::default() };
        let all = sockets.iter().chain([&listener]);
        let descriptors =
            all.enumerate().map(|(file, socket)| Descriptor { number: socket.as_raw_fd(), file, close_on_exec: false });
        let process = Process { pid: 1, descriptors: descriptors.collect(), ..Process::default() };
        let idle = || FileKind::Plain(PlainSocket::default());
        let kinds = (0..count).map(|_| idle()).chain([FileKind::Plain(listens)]);
        let open = |kind| OpenFile { flags: 0, position: 0, lock: None, ranges: Vec::new(), kind, mount_space: None };
        let files = kinds.map(open).collect();
        let image = Image { files, processes: vec![process], ..Image::default() };
        let one = |file| Connection { file, local: nowhere, remote, peer: Peer::Unaccepted, ..connection() };
        (sockets, listener, image, (0..count).map(one).collect())
    }

    #[test]
    fn as_many_wait_as_did_and_a_socket_waits_when_its_process_said_so() {
        let (sockets, _listener, image, connections) = unaccepted(40);
        let revived = revive(&image, &connections, |_| Some(std::process::id() as i32));
        assert_eq!((revived.count(), revived.lost.len()), (40, 0));
        assert!(sockets.iter().all(|socket| !fcntl_getfl(socket).unwrap().contains(OFlags::NONBLOCK)));
    }

    /// One after the other they would be waited for over an hour.
    #[test]
    fn who_is_not_let_wait_is_lost_and_not_waited_for() {
        let (_sockets, _listener, mut image, connections) = unaccepted(40);
        image.files.pop();
        let revived = revive(&image, &connections, |_| Some(std::process::id() as i32));
        assert_eq!(revived.count() + revived.lost.len(), 40);
        assert!(revived.lost.len() > 30, "{}", revived.lost.len());
    }

    #[test]
    fn what_was_agreed_on_is_what_the_kernel_wants() {
        let all = connection().options();
        assert_eq!(all, [(4, 0), (3, 0x000a_0007), (8, 0), (2, 1448)]);
        assert_eq!(Connection { agreed: 0, ..connection() }.options(), [(2, 1448)]);
    }
}

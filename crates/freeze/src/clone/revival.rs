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
//! listener connects to that anew: it has sent nothing that anybody has.

use crate::image::connection::{Bytes, Connection, Ends, Peer, owners};
use crate::image::{Image, SocketOption};
use crate::inspect::socket_table;
use pando_kernel::tcp_repair::{self, Queue};
use pando_kernel::{CallError, Context, socket_option};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, Shutdown};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

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
    for connection in connections {
        let take = || -> Result<OwnedFd, CallError> {
            let gone =
                || CallError { what: named(connection), source: io::Error::other("no process of the guest has it") };
            let (pid, descriptor) = owners.get(&connection.file).ok_or_else(gone)?;
            socket_table::take(outer(*pid).ok_or_else(gone)?, *descriptor)
        };
        let put = take().and_then(|socket| put(&socket, connection).map(|()| socket).context(|| named(connection)));
        match put {
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
        socket_option::set_number(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
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

/// What the socket was before is undone: it stands for a connection that is lost.
fn put(socket: &OwnedFd, connection: &Connection) -> io::Result<()> {
    tcp_repair::forget_peer(socket)?;
    if connection.peer == Peer::Unaccepted {
        return meet(socket, connection).inspect_err(|_| lose(socket, connection));
    }
    tcp_repair::begin(socket)?;
    connect(socket, connection).inspect_err(|_| lose(socket, connection))
}

/// Connects to the listener that has not accepted it, and sends what had been sent.
fn meet(socket: &OwnedFd, connection: &Connection) -> io::Result<()> {
    rustix::net::bind(socket, &connection.local)?;
    match rustix::net::connect(socket, &connection.remote) {
        Err(rustix::io::Errno::INPROGRESS) => await_connection(socket)?,
        done => done?,
    }
    {
        let _room = Room::make(socket, connection.queued())?;
        fill(socket, &connection.sent.1.0)?;
    }
    finish(socket, connection)
}

/// Between two sockets of one machine nothing takes long: else the listener does not take it.
fn await_connection(socket: &OwnedFd) -> io::Result<()> {
    const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&PATIENCE))?;
    match socket_option::number(socket, libc::SOL_SOCKET, libc::SO_ERROR)? {
        0 if ready > 0 => Ok(()),
        0 => Err(io::ErrorKind::TimedOut.into()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
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
    use crate::image::connection::Ended;

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

    #[test]
    fn what_was_agreed_on_is_what_the_kernel_wants() {
        let all = connection().options();
        assert_eq!(all, [(4, 0), (3, 0x000a_0007), (8, 0), (2, 1448)]);
        assert_eq!(Connection { agreed: 0, ..connection() }.options(), [(2, 1448)]);
    }
}

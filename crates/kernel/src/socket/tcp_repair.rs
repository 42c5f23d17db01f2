//! TCP_REPAIR (Linux 3.5, windows since 4.8): an established TCP connection read out of its socket, and put into
//! another. While a socket is in repair it sends nothing of its own accord: it can be closed, connected and filled
//! without the other end's hearing of it. Needs CAP_NET_ADMIN over the socket's network.

use crate::socket;
use crate::trace::pending_undo::{PendingUndo, PutBack};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

// linux/tcp.h
const TCP: i32 = libc::IPPROTO_TCP;
const REPAIR: i32 = 19;
const REPAIR_QUEUE: i32 = 20;
const QUEUE_SEQUENCE: i32 = 21;
const REPAIR_OPTIONS: i32 = 22;
const TIMESTAMP: i32 = 24;
const REPAIR_WINDOW: i32 = 29;

/// `TCPOPT_*`, as [`set_options`] takes them: the segment size, window scales (ours in the upper half), selective
/// acknowledgements, timestamps.
pub const SEGMENT: u32 = 2;
/// Window scales, ours in the upper half: an option as [`SEGMENT`] is.
pub const SCALES: u32 = 3;
/// Selective acknowledgements: an option as [`SEGMENT`] is.
pub const SELECTIVE: u32 = 4;
/// Timestamps: an option as [`SEGMENT`] is.
pub const TIMESTAMPS: u32 = 8;

/// What the other end may send: `struct tcp_repair_window`.
pub const WINDOW_LENGTH: usize = 20;

/// One of a socket's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// What came and was not read.
    Received = 1,
    /// What was written and not acknowledged.
    Sent = 2,
}

/// Puts a socket into repair. Not one that listens: EPERM.
///
/// # Errors
///
/// EPERM where the socket listens, and without CAP_NET_ADMIN over its network.
pub fn begin(socket: impl AsFd) -> io::Result<()> {
    socket::option::set_number(socket, TCP, REPAIR, 1)
}

/// Ends the repair of a socket: a connected one asks the other end for its window, which tells that end that it is
/// there.
///
/// # Errors
///
/// EPERM without CAP_NET_ADMIN over its network.
pub fn end(socket: impl AsFd) -> io::Result<()> {
    socket::option::set_number(socket, TCP, REPAIR, 0)
}

/// Ends the repair of a socket, and the other end hears nothing of that (since Linux 4.19).
///
/// # Errors
///
/// EPERM without CAP_NET_ADMIN over its network; EINVAL before Linux 4.19.
pub fn end_silently(socket: impl AsFd) -> io::Result<()> {
    socket::option::set_number(socket, TCP, REPAIR, -1)
}

/// A connected socket that is in repair. Dropped, it is as it was before; so it is too when its owner is no more (see
/// [`survivor`](crate::trace::survivor)).
#[derive(Debug)]
pub struct Repair {
    /// Before the socket: it is needed for that.
    pending_undo: PendingUndo,
    socket: OwnedFd,
    reuse: bool,
}

impl Repair {
    /// Puts a socket into repair.
    ///
    /// # Errors
    ///
    /// EPERM where the socket listens, and without CAP_NET_ADMIN over its network.
    pub fn begin(socket: OwnedFd) -> io::Result<Self> {
        // A socket in repair says that its address may be bound again, whatever it was before, and one that has been in
        // repair that it may not.
        let reuse = socket::option::number(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)? != 0;
        let pending_undo = PendingUndo::new(Before { socket: socket.as_raw_fd(), reuse });
        begin(&socket)?;
        Ok(Self { pending_undo, socket, reuse })
    }

    /// Whether its address may be bound again (SO_REUSEADDR).
    pub fn reuse(&self) -> bool {
        self.reuse
    }

    /// From here on it stays in repair: when the last descriptor of it is closed, the other end does not hear of it.
    /// Allocates and frees nothing.
    pub fn leave(&self) {
        self.pending_undo.forgive();
    }
}

impl AsFd for Repair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How it was.
#[derive(Debug)]
struct Before {
    socket: RawFd,
    reuse: bool,
}

impl PutBack for Before {
    fn put_back(&self) {
        // SAFETY: the value that owes this has the socket open.
        let socket = unsafe { BorrowedFd::borrow_raw(self.socket) };
        let _ = end(socket);
        let _ = socket::option::set_number(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, i32::from(self.reuse));
    }
}

/// Names the queue that reading, writing and sequence numbers are about.
///
/// # Errors
///
/// EINVAL where the socket is not in repair.
pub fn choose(socket: impl AsFd, queue: Queue) -> io::Result<()> {
    socket::option::set_number(socket, TCP, REPAIR_QUEUE, queue as i32)
}

/// The number of the byte after the chosen queue's last.
///
/// # Errors
///
/// EINVAL where no queue was chosen.
pub fn sequence(socket: impl AsFd) -> io::Result<u32> {
    socket::option::number(socket, TCP, QUEUE_SEQUENCE).map(|number| number as u32)
}

/// Sets the number of the chosen queue's next byte, before it is connected.
///
/// # Errors
///
/// EPERM where the socket is connected already; EINVAL where no queue was chosen.
pub fn set_sequence(socket: impl AsFd, number: u32) -> io::Result<()> {
    socket::option::set_number(socket, TCP, QUEUE_SEQUENCE, number as i32)
}

/// How many bytes lie in the queue of what was sent, and how many of those have not left yet (SIOCOUTQ, SIOCOUTQNSD).
///
/// # Errors
///
/// EINVAL where the socket listens.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<(u32, u32)> {
    const SIOCOUTQ: libc::c_ulong = 0x5411;
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    Ok((count(socket.as_fd(), SIOCOUTQ)?, count(socket.as_fd(), SIOCOUTQNSD)?))
}

/// How many bytes wait to be read (SIOCINQ).
///
/// # Errors
///
/// EINVAL where the socket listens.
pub fn unread(socket: impl AsFd) -> io::Result<u32> {
    const SIOCINQ: libc::c_ulong = 0x541b;
    count(socket.as_fd(), SIOCINQ)
}

fn count(socket: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<u32> {
    let mut number: libc::c_int = 0;
    // SAFETY: these requests write one int, to a place of ours.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut number) };
    if result == 0 { Ok(number.unsigned_abs()) } else { Err(io::Error::last_os_error()) }
}

/// What the two ends agreed on when they connected: pairs of a kind and a value. For a socket that is connected, in
/// repair.
///
/// # Errors
///
/// EINVAL where the socket is not in repair; EPERM where it is not connected.
pub fn set_options(socket: impl AsFd, options: &[(u32, u32)]) -> io::Result<()> {
    let bytes: Vec<u8> = options.iter().flat_map(|(kind, value)| [*kind, *value]).flat_map(u32::to_ne_bytes).collect();
    socket::option::set(socket, TCP, REPAIR_OPTIONS, &bytes)
}

/// The clock that a socket's timestamps go by.
///
/// # Errors
///
/// ENOPROTOOPT before Linux 3.9.
pub fn clock(socket: impl AsFd) -> io::Result<u32> {
    socket::option::number(socket, TCP, TIMESTAMP).map(|clock| clock as u32)
}

/// Sets the clock that its timestamps go by.
///
/// # Errors
///
/// EPERM where the socket is not in repair.
pub fn set_clock(socket: impl AsFd, clock: u32) -> io::Result<()> {
    socket::option::set_number(socket, TCP, TIMESTAMP, clock as i32)
}

/// What each end may send, in repair.
///
/// # Errors
///
/// EPERM where the socket is not in repair; EINVAL before Linux 4.8.
pub fn window(socket: impl AsFd) -> io::Result<Vec<u8>> {
    let mut window = vec![0; WINDOW_LENGTH];
    let mut length = WINDOW_LENGTH as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, and how many, to places of ours. It takes no other length.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), TCP, REPAIR_WINDOW, window.as_mut_ptr().cast(), &raw mut length)
    };
    if result == 0 { Ok(window) } else { Err(io::Error::last_os_error()) }
}

/// Sets what each end may send, in repair.
///
/// # Errors
///
/// EPERM where the socket is not in repair; EINVAL for what cannot be a window.
pub fn set_window(socket: impl AsFd, window: &[u8]) -> io::Result<()> {
    socket::option::set(socket, TCP, REPAIR_WINDOW, window)
}

/// Lets a socket go back to what a new one is (connect(2) to AF_UNSPEC), error and all. In repair nobody hears of it.
///
/// # Errors
///
/// EBADF and ENOTSOCK alone.
pub fn forget_peer(socket: impl AsFd) -> io::Result<()> {
    let nobody = [0_u8; 16];
    // SAFETY: the address is sixteen bytes of ours; all zeroes is AF_UNSPEC.
    let result =
        unsafe { libc::connect(socket.as_fd().as_raw_fd(), nobody.as_ptr().cast(), nobody.len() as libc::socklen_t) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // Reading an error takes it.
    socket::option::number(socket, libc::SOL_SOCKET, libc::SO_ERROR).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn reuse(socket: &TcpStream) -> i32 {
        socket::option::number(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap()
    }

    #[test]
    fn a_socket_comes_out_of_repair_as_it_went_in() {
        for wanted in [0, 1] {
            let (mut near, mut far) = pair();
            socket::option::set_number(&near, libc::SOL_SOCKET, libc::SO_REUSEADDR, wanted).unwrap();
            let repair = match Repair::begin(near.try_clone().unwrap().into()) {
                Ok(repair) => repair,
                Err(error) => return eprintln!("skipped: repair needs root: {error}"),
            };
            assert_eq!(repair.reuse(), wanted == 1);
            drop(repair);
            assert_eq!(reuse(&near), wanted);
            near.write_all(b"on").unwrap();
            let mut heard = [0; 2];
            far.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"on");
        }
    }

    #[test]
    fn of_one_that_is_left_in_repair_nobody_hears() {
        let (near, far) = pair();
        match Repair::begin(near.into()) {
            Ok(repair) => repair.leave(),
            Err(error) => return eprintln!("skipped: repair needs root: {error}"),
        }
        far.set_nonblocking(true).unwrap();
        assert_eq!((&far).read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}

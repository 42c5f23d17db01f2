//! What waits in a socket, left where it is: recvmsg(2) with MSG_PEEK. Of descriptors that wait with it one gets
//! copies, or none.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What recvmsg(2) with MSG_PEEK saw in a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peeked {
    /// The bytes; of a stream all that follow one another, else one message.
    pub bytes: Vec<u8>,
    /// The sender: an address as the kernel has it, empty if the sender has no name.
    pub from: Vec<u8>,
    /// Whether descriptors come with it of which one did not get copies.
    pub carries: bool,
    /// Who sent it, where the socket wants to know (SO_PASSCRED), and where that came with it.
    pub sender: Option<Sender>,
}

/// Whom the kernel names as a message's sender (SCM_CREDENTIALS), as whoever looks knows him: 0 is a process that has
/// no number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// The process that sent it.
    pub process: i32,
    /// The user of that process.
    pub user: u32,
    /// The group of that process.
    pub group: u32,
}

/// Room for the sender's credentials and nothing else.
const CREDENTIALS: usize = 32;

/// Room for all that a message can bring: 253 descriptors (`SCM_MAX_FD`), credentials, a pidfd, a security label.
const ALL: usize = 4096;

/// What comes next, at most `room` bytes of it. `None` if nothing waits; an empty message is something.
///
/// Descriptors need room in the control buffer, of which there is none: the kernel only says that something did not
/// fit. With `credentials`, which says whether the socket wants those of its senders (SO_PASSCRED), there is room for
/// just them.
///
/// # Errors
///
/// ENOTCONN where the socket is not connected, and what error it has by itself.
pub fn peek(socket: impl AsFd, room: usize, credentials: bool) -> io::Result<Option<Peeked>> {
    let mut control = [0_u64; CREDENTIALS / 8];
    let length = if credentials { CREDENTIALS } else { 0 };
    Ok(look(socket, room, &mut control[..length / 8])?.map(|(seen, _)| seen))
}

/// The same, and copies of the descriptors that come with it: those of a stream belong to the last of its bytes. Where
/// not all of them could be had it still [carries](Peeked::carries) some.
///
/// # Errors
///
/// ENOTCONN where the socket is not connected; EMFILE where not one of the descriptors could be had.
pub fn peek_with_descriptors(socket: impl AsFd, room: usize) -> io::Result<Option<(Peeked, Vec<OwnedFd>)>> {
    let mut control = [0_u64; ALL / 8];
    let Some((seen, found)) = look(socket, room, &mut control)? else { return Ok(None) };
    // SAFETY: the kernel has just made these descriptors for us, and nobody else knows of them.
    let own = |number: &RawFd| unsafe { OwnedFd::from_raw_fd(*number) };
    // A pidfd that names the sender is no descriptor of the message's.
    drop(found.senders.iter().map(own).collect::<Vec<_>>());
    Ok(Some((seen, found.sent.iter().map(own).collect())))
}

/// Of the next `end` bytes of a stream: how many come before the part that the last of them belongs to, as parts were
/// sent.
///
/// The kernel glues parts together, and reports the descriptors of one also to a reader that has no room for its bytes.
/// But where a part cannot be copied it gives those before; so the last byte has its place where nothing may be
/// written.
///
/// # Errors
///
/// ENOTCONN where the socket is not connected; EFAULT where nothing waits in it.
pub fn parts_before(socket: impl AsFd, end: usize) -> io::Result<usize> {
    let guarded = Guarded::new(end.saturating_sub(1))?;
    let mut part = libc::iovec { iov_base: guarded.first(), iov_len: end };
    // SAFETY: all zeroes is a valid `struct msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: of the bytes all but the last are memory of ours that nothing else uses, and the last cannot be written
    // to.
    let count = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    usize::try_from(count).or_else(|_| match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
        error => Err(error),
    })
}

/// Memory that ends where nobody may write.
struct Guarded {
    start: *mut libc::c_void,
    /// Bytes before the end.
    length: usize,
    /// Bytes of memory for them.
    room: usize,
}

impl Guarded {
    const PAGE: usize = 4096;

    fn new(length: usize) -> io::Result<Self> {
        let room = length.next_multiple_of(Self::PAGE);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, where the kernel likes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), room + Self::PAGE, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let guarded = Self { start, length, room };
        // SAFETY: the mapping's own last page.
        let protected = unsafe { libc::mprotect(start.wrapping_byte_add(room), Self::PAGE, libc::PROT_NONE) };
        if protected < 0 { Err(io::Error::last_os_error()) } else { Ok(guarded) }
    }

    fn first(&self) -> *mut libc::c_void {
        self.start.wrapping_byte_add(self.room - self.length)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: it is our mapping, and nobody else knows of it.
        unsafe { libc::munmap(self.start, self.room + Self::PAGE) };
    }
}

/// What comes next, and what is in the control buffer.
fn look(socket: impl AsFd, room: usize, control: &mut [u64]) -> io::Result<Option<(Peeked, Numbers)>> {
    let mut bytes = vec![0_u8; room];
    let mut from = vec![0_u8; size_of::<libc::sockaddr_storage>()];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeroes is a valid `struct msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = from.as_mut_ptr().cast();
    message.msg_namelen = from.len() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !control.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(control);
    }
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer of the message is to memory of ours that is as long as it says.
    let count = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let Ok(count) = usize::try_from(count) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    };
    bytes.truncate(count);
    from.truncate(message.msg_namelen as usize);
    let carries = message.msg_flags & libc::MSG_CTRUNC != 0;
    let length = message.msg_controllen.min(size_of_val(control));
    let control: Vec<u8> = control.iter().flat_map(|word| word.to_le_bytes()).take(length).collect();
    let found = numbers(&control);
    Ok(Some((Peeked { bytes, from, carries, sender: found.sender }, found)))
}

/// Numbers in a control buffer: descriptors, and who sent them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    sent: Vec<RawFd>,
    /// Pidfds of the sender.
    senders: Vec<RawFd>,
    sender: Option<Sender>,
}

/// Takes `struct cmsghdr`s apart: length, level, type, data, each at a multiple of eight.
pub(crate) fn numbers(mut control: &[u8]) -> Numbers {
    const HEADER: usize = 16;
    /// Since Linux 6.5.
    const SCM_PIDFD: i32 = 4;
    let word = |at: usize, bytes: &[u8]| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mut found = Numbers::default();
    while control.len() >= HEADER {
        let length = (word(0, control) as usize).clamp(HEADER, control.len());
        let (level, kind) = (word(8, control), word(12, control));
        let data = control[HEADER..length].chunks_exact(4).map(|bytes| word(0, bytes)).filter(|number| *number >= 0);
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => found.sent.extend(data),
            (libc::SOL_SOCKET, SCM_PIDFD) => found.senders.extend(data),
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= HEADER + 12 => {
                let [process, user, group] = [16, 20, 24].map(|at| word(at, control));
                found.sender = Some(Sender { process, user: user.cast_unsigned(), group: group.cast_unsigned() });
            }
            _ => {}
        }
        control = &control[length.next_multiple_of(8).min(control.len())..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    #[test]
    fn a_stream_is_seen_whole_and_stays() {
        let (one, two) = UnixStream::pair().unwrap();
        assert_eq!(peek(&two, 10, false).unwrap(), None);
        (&one).write_all(b"some").unwrap();
        (&one).write_all(b"thing").unwrap();
        for _ in 0..2 {
            assert_eq!(peek(&two, 100, false).unwrap().unwrap().bytes, b"something");
        }
    }

    #[test]
    fn descriptors_are_noticed_and_not_taken() {
        let (one, two) = crate::socket::packet::pair().unwrap();
        crate::socket::packet::send(&one, b"with", &[one.as_fd()]).unwrap();
        let seen = peek(&two, 100, false).unwrap().unwrap();
        assert_eq!((seen.bytes.as_slice(), seen.carries), (&b"with"[..], true));
    }

    #[test]
    fn copies_of_descriptors_are_the_same_files() {
        let (one, two) = crate::socket::packet::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        crate::socket::packet::send(&one, b"with", &[file.as_fd(), one.as_fd()]).unwrap();
        crate::socket::option::set_number(&two, libc::SOL_SOCKET, libc::SO_PASSCRED, 1).unwrap();
        for _ in 0..2 {
            let (seen, copies) = peek_with_descriptors(&two, 100).unwrap().unwrap();
            assert_eq!((seen.bytes.as_slice(), seen.carries, copies.len()), (&b"with"[..], false, 2));
            let inode = |file: &dyn AsFd| rustix::fs::fstat(file.as_fd()).unwrap().st_ino;
            assert_eq!(inode(&copies[0]), inode(&file));
        }
    }

    #[test]
    fn parts_of_a_stream_are_told_apart() {
        let (one, two) = UnixStream::pair().unwrap();
        for part in [&b"before"[..], &[7; 10_000], b"x"] {
            (&one).write_all(part).unwrap();
        }
        let before = |end: usize| parts_before(&two, end).unwrap();
        assert_eq!([before(1), before(6), before(7), before(10_006), before(10_007)], [0, 0, 6, 6, 10_006]);
    }

    #[test]
    fn control_data_is_taken_apart_with_bounds() {
        let part = |length: u64, kind: i32, data: &[i32]| {
            let head = length.to_le_bytes().into_iter().chain(libc::SOL_SOCKET.to_le_bytes()).chain(kind.to_le_bytes());
            head.chain(data.iter().flat_map(|word| word.to_le_bytes())).collect::<Vec<u8>>()
        };
        let rights = [part(28, libc::SCM_RIGHTS, &[5, 6, 7, 0]), part(20, 4, &[9, 0])].concat();
        assert_eq!(numbers(&rights), Numbers { sent: vec![5, 6, 7], senders: vec![9], sender: None });
        let credentials = part(28, libc::SCM_CREDENTIALS, &[7, 1000, -2, 0]);
        let sender = Sender { process: 7, user: 1000, group: u32::MAX - 1 };
        assert_eq!(numbers(&credentials).sender, Some(sender));
        assert_eq!(numbers(&part(20, libc::SCM_CREDENTIALS, &[7])).sender, None);
        for length in 0..rights.len() {
            let _ = numbers(&rights[..length]);
            let _ = numbers(&part(u64::MAX, libc::SCM_RIGHTS, &[1]));
        }
    }

    #[test]
    fn credentials_are_no_descriptors() {
        let (one, two) = UnixDatagram::pair().unwrap();
        crate::socket::option::set_number(&two, libc::SOL_SOCKET, libc::SO_PASSCRED, 1).unwrap();
        one.send(b"from me").unwrap();
        let seen = peek(&two, 100, true).unwrap().unwrap();
        assert!(!seen.carries && seen.sender.unwrap().process == std::process::id().cast_signed());
        assert!(peek(&two, 100, false).unwrap().unwrap().carries, "there was no room for them");
    }
}

//! What waits in a socket, left where it is: recvmsg(2) with MSG_PEEK. Descriptors that wait with it are not taken.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peeked {
    /// The bytes; of a stream all that follow one another, else one message.
    pub bytes: Vec<u8>,
    /// Who sent it: an address as the kernel has it, empty if the sender has no name.
    pub from: Vec<u8>,
    /// Whether descriptors come with it.
    pub carries: bool,
}

/// Room for the sender's credentials and nothing else.
const CREDENTIALS: usize = 32;

/// What comes next, at most `room` bytes of it. `None` if nothing waits; an empty message is something.
///
/// Descriptors need room in the control buffer, of which there is none: the kernel only says that something did not fit. With `credentials`, which says
/// whether the socket wants those of its senders (SO_PASSCRED), there is room for just them.
pub fn peek(socket: impl AsFd, room: usize, credentials: bool) -> io::Result<Option<Peeked>> {
    let mut bytes = vec![0_u8; room];
    let mut from = vec![0_u8; size_of::<libc::sockaddr_storage>()];
    let mut control = [0_u64; CREDENTIALS / 8];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeroes is a valid `struct msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = from.as_mut_ptr().cast();
    message.msg_namelen = from.len() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if credentials {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CREDENTIALS;
    }
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: every pointer of the message is to memory of ours that is as long as it says.
    let count = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let Ok(count) = usize::try_from(count) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    };
    bytes.truncate(count);
    from.truncate(message.msg_namelen as usize);
    Ok(Some(Peeked { bytes, from, carries: message.msg_flags & libc::MSG_CTRUNC != 0 }))
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
        let (one, two) = crate::packet::pair().unwrap();
        crate::packet::send(&one, b"with", &[one.as_fd()]).unwrap();
        let seen = peek(&two, 100, false).unwrap().unwrap();
        assert_eq!((seen.bytes.as_slice(), seen.carries), (&b"with"[..], true));
    }

    #[test]
    fn credentials_are_no_descriptors() {
        let (one, two) = UnixDatagram::pair().unwrap();
        crate::socket_option::set_number(&two, libc::SOL_SOCKET, libc::SO_PASSCRED, 1).unwrap();
        one.send(b"from me").unwrap();
        assert!(!peek(&two, 100, true).unwrap().unwrap().carries);
        assert!(peek(&two, 100, false).unwrap().unwrap().carries, "there was no room for them");
    }
}

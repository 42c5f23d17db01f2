//! Messages that keep their borders and carry descriptors (unix(7), SOCK_SEQPACKET, SCM_RIGHTS).

use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The most descriptors that a message carries here.
pub const MAX_FDS: usize = 64;

/// Makes two connected sockets that keep messages apart (SOCK_SEQPACKET).
///
/// # Errors
///
/// EMFILE, ENFILE, ENOMEM.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A socket that listens at a path, which must be free.
///
/// # Errors
///
/// EADDRINUSE where something is at the path.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    const BACKLOG: i32 = 8;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    through_short_path(path, |address| rustix::net::bind(&socket, address))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a socket at a path.
///
/// # Errors
///
/// ENOENT where nothing is at the path; ECONNREFUSED where no process listens there.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    // One that stands still takes no more connections than its queue has room for: that is an error (EAGAIN), and
    // nothing to wait for.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    through_short_path(path, |address| rustix::net::connect(&socket, address))?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// A socket's path is at most 107 bytes long; a longer one is reached through a descriptor of its directory.
fn through_short_path(path: &Path, act: impl Fn(&SocketAddrUnix) -> rustix::io::Result<()>) -> io::Result<()> {
    if let Ok(address) = SocketAddrUnix::new(path) {
        return Ok(act(&address)?);
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let directory = std::fs::File::open(directory)?;
    let short = Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&directory).to_string()).join(name);
    Ok(act(&SocketAddrUnix::new(&short)?)?)
}

/// Sends one message and copies of descriptors with it.
///
/// # Errors
///
/// InvalidInput for more than [`MAX_FDS`] descriptors; EMSGSIZE for a message that the socket has no room for; EPIPE
/// where the other end is closed.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Has every message that a socket receives from now on name its sender, for [`receive_from`] (SO_PASSCRED).
///
/// # Errors
///
/// EBADF and ENOTSOCK alone.
pub fn tell_senders(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Receives one message into `bytes`, with the pid of its sender, which the kernel says: 0 for one that cannot be seen
/// from here. A length of 0 is the end.
///
/// # Errors
///
/// EAGAIN where the socket does not wait and nothing has come; ECONNRESET where the other end went with unread words.
pub fn receive_from(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, i32)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let pid = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid.as_raw_nonzero().get()),
        _ => None,
    });
    Ok((message.bytes, pid.unwrap_or(0)))
}

/// Receives one message into `bytes`. A length of 0 is the end.
///
/// # Errors
///
/// EAGAIN where the socket does not block and no message waits; ECONNRESET where the other end was closed with messages
/// unread.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    Ok((message.bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_message_keeps_its_borders_and_its_descriptors() {
        let (a, b) = pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        send(&a, b"one", &[null.as_fd(), null.as_fd()]).unwrap();
        send(&a, b"two", &[]).unwrap();
        let mut bytes = [0; 16];
        let (length, fds) = receive(&b, &mut bytes).unwrap();
        assert_eq!((&bytes[..length], fds.len()), (&b"one"[..], 2));
        assert_eq!(receive(&b, &mut bytes).unwrap().0, 3);
        drop(a);
        assert_eq!(receive(&b, &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn who_sent_a_message_is_told() {
        let (a, b) = pair().unwrap();
        tell_senders(&b).unwrap();
        send(&a, b"one", &[]).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(receive_from(&b, &mut bytes).unwrap(), (3, std::process::id().cast_signed()));
        drop(a);
        assert_eq!(receive_from(&b, &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn a_socket_may_lie_deep() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        let _listener = listen(&deep.join("socket")).unwrap();
        connect(&deep.join("socket")).unwrap();
    }
}

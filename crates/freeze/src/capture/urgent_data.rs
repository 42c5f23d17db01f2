//! Urgent data (MSG_OOB in send(2)) that waits in a connection. Where it stands in the stream can be asked, and not set
//! for another connection: what is made of such a queue would be another stream.

use pando_kernel::socket::tcp_repair;
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Whether urgent data waits in a connection by TCP, or a mark of some that was read stands before what waits.
pub(crate) fn waits_in_tcp(socket: impl AsFd) -> io::Result<bool> {
    let socket = socket.as_fd();
    let inline = Inline::set(socket, false)?;
    if !is_without(socket)? {
        return Ok(true);
    }
    // Who does not want it in the stream is told of no more than stands before it.
    let before = tcp_repair::unread(socket)?;
    sockopt::set_socket_oobinline(socket, true)?;
    let all = tcp_repair::unread(socket)?;
    drop(inline);
    Ok(before != all)
}

/// Whether it waits in a connection of unix sockets (since Linux 5.15).
pub(crate) fn waits_in_unix(socket: impl AsFd) -> io::Result<bool> {
    let socket = socket.as_fd();
    let _inline = Inline::set(socket, false)?;
    Ok(!is_without(socket)?)
}

/// Whether the kernel says that there is none to be received. EINVAL says so; EAGAIN that some was announced.
fn is_without(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = RecvFlags::OOB | RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(socket, &mut [0_u8; 1][..], flags) {
        Err(Errno::INVAL | Errno::NOTCONN | Errno::OPNOTSUPP) => Ok(true),
        Ok(_) | Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether a socket has urgent data in the stream (SO_OOBINLINE). Dropped, that is as it was.
struct Inline<'a> {
    socket: BorrowedFd<'a>,
    before: bool,
}

impl<'a> Inline<'a> {
    fn set(socket: BorrowedFd<'a>, inline: bool) -> io::Result<Self> {
        let before = sockopt::socket_oobinline(socket)?;
        sockopt::set_socket_oobinline(socket, inline)?;
        Ok(Self { socket, before })
    }
}

impl Drop for Inline<'_> {
    fn drop(&mut self) {
        let _ = sockopt::set_socket_oobinline(self.socket, self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn urgently(socket: impl AsFd) -> bool {
        rustix::net::send(socket, b"!", rustix::net::SendFlags::OOB).is_ok()
    }

    fn tcp() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        one.set_nodelay(true).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn urgent_data_is_noticed_wherever_it_stands_and_stays() {
        for inline in [false, true] {
            let (mut one, mut two) = tcp();
            sockopt::set_socket_oobinline(&two, inline).unwrap();
            one.write_all(b"abc").unwrap();
            assert!(!waits_in_tcp(&two).unwrap());
            assert!(urgently(&one));
            one.write_all(b"def").unwrap();
            let mut all = [0; 3];
            assert!(waits_in_tcp(&two).unwrap());
            two.read_exact(&mut all).unwrap();
            assert!(all == *b"abc" && waits_in_tcp(&two).unwrap(), "at the mark");
            assert_eq!(sockopt::socket_oobinline(&two).unwrap(), inline);
            let mut rest = vec![0; if inline { 4 } else { 3 }];
            two.read_exact(&mut rest).unwrap();
            assert!(!waits_in_tcp(&two).unwrap());
        }
    }

    #[test]
    fn the_mark_of_what_was_read_hides_what_is_behind_it() {
        let (mut one, mut two) = tcp();
        one.write_all(b"abc").unwrap();
        assert!(urgently(&one));
        one.write_all(b"def").unwrap();
        let mut urgent = [0; 1];
        rustix::net::recv(&two, &mut urgent[..], RecvFlags::OOB).unwrap();
        assert!(urgent == *b"!" && waits_in_tcp(&two).unwrap());
        let mut all = [0; 6];
        two.read_exact(&mut all).unwrap();
        assert!(!waits_in_tcp(&two).unwrap());
    }

    #[test]
    fn on_unix_sockets_too() {
        let (mut one, two) = UnixStream::pair().unwrap();
        one.write_all(b"abc").unwrap();
        assert!(!waits_in_unix(&two).unwrap());
        // The kernel may have been built without it.
        if urgently(&one) {
            for inline in [false, true] {
                sockopt::set_socket_oobinline(&two, inline).unwrap();
                assert!(waits_in_unix(&two).unwrap());
                assert_eq!(sockopt::socket_oobinline(&two).unwrap(), inline);
            }
        }
    }
}

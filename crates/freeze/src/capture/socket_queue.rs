//! What waits in a unix socket, message after message, and left there: looked at by an offset (SO_PEEK_OFF), with
//! copies of the descriptors that come along.

use crate::image::Sender;
use crate::image::socket::{NOBODY, PASSCRED, PEEK_OFF, RCVBUF};
use pando_kernel::socket::peek::Peeked;
use pando_kernel::{CallError, Context, socket};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

/// A message, or a part of a stream.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// The sender's address, as the kernel has it.
    pub(crate) from: Vec<u8>,
    /// Copies of its descriptors.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Whether it has more of them, which could not be had.
    pub(crate) lacks: bool,
    /// Who sent it, by the numbers and ids that are known here.
    pub(crate) sender: Option<Sender>,
}

impl From<(Peeked, Vec<OwnedFd>)> for Message {
    fn from((seen, descriptors): (Peeked, Vec<OwnedFd>)) -> Self {
        // What was sent when nobody wanted to know says that nobody sent it.
        let is_somebody = |one: &socket::peek::Sender| (one.process, one.user, one.group) != (0, NOBODY, NOBODY);
        let named = |one: socket::peek::Sender| Sender { process: one.process, user: one.user, group: one.group };
        let sender = seen.sender.filter(is_somebody).map(named);
        Self { bytes: seen.bytes, from: seen.from, descriptors, lacks: seen.carries, sender }
    }
}

const MOST: usize = 100_000;
const LARGEST: usize = 1 << 20;

fn what() -> String {
    "looking into a unix socket".into()
}

fn option(socket: &OwnedFd, number: i32) -> Result<i32, CallError> {
    socket::option::number(socket, libc::SOL_SOCKET, number).context(what)
}

fn look(socket: &OwnedFd, room: usize) -> io::Result<Option<Message>> {
    Ok(socket::peek::peek_with_descriptors(socket, room)?.map(Message::from))
}

fn length(socket: &OwnedFd) -> usize {
    rustix::io::ioctl_fionread(socket).unwrap_or(0) as usize
}

/// What comes next. Programs that run notice nothing.
pub(crate) fn next(socket: &OwnedFd) -> Result<Option<Message>, CallError> {
    look(socket, length(socket)).context(what)
}

/// Everything. Nobody may be using the socket.
pub(crate) fn all(socket: &OwnedFd, kind: i32) -> Result<Vec<Message>, CallError> {
    let _named = NamedSenders::of(socket)?;
    if kind == libc::SOCK_STREAM { stream(socket) } else { messages(socket, kind) }
}

/// Looks at a socket say who sent what they see (SO_PASSCRED). Dropped, that is as it was.
struct NamedSenders<'a> {
    socket: &'a OwnedFd,
    before: i32,
}

impl<'a> NamedSenders<'a> {
    fn of(socket: &'a OwnedFd) -> Result<Self, CallError> {
        let before = option(socket, PASSCRED)?;
        if before == 0 {
            socket::option::set_number(socket, libc::SOL_SOCKET, PASSCRED, 1).context(what)?;
        }
        Ok(Self { socket, before })
    }
}

impl Drop for NamedSenders<'_> {
    fn drop(&mut self) {
        if self.before == 0 {
            let _ = socket::option::set_number(self.socket, libc::SOL_SOCKET, PASSCRED, 0);
        }
    }
}

/// Where looks at a socket begin: each goes on behind the last. Dropped, that is as it was.
struct Offset<'a> {
    socket: &'a OwnedFd,
    before: i32,
    is_changed: Cell<bool>,
}

/// Each look begins at what comes next.
const NONE: i32 = -1;

impl<'a> Offset<'a> {
    fn of(socket: &'a OwnedFd) -> Result<Self, CallError> {
        Ok(Self { socket, before: option(socket, PEEK_OFF)?, is_changed: Cell::new(false) })
    }

    fn set(&self, to: i32) -> Result<(), CallError> {
        self.is_changed.set(true);
        socket::option::set_number(self.socket, libc::SOL_SOCKET, PEEK_OFF, to).context(what)
    }
}

impl Drop for Offset<'_> {
    fn drop(&mut self) {
        if self.is_changed.get() {
            let _ = self.set(self.before);
        }
    }
}

/// With an offset the kernel shows an empty message once: whoever looks again does not see it, and the one for whom it
/// is receives it all the same. Without one it shows the first message each time.
fn messages(socket: &OwnedFd, kind: i32) -> Result<Vec<Message>, CallError> {
    let offset = Offset::of(socket)?;
    if offset.before != NONE {
        offset.set(NONE)?;
    }
    let mut messages = match look(socket, 1) {
        Ok(None) => return Ok(Vec::new()),
        Ok(Some(first)) if is_end(socket, kind, &first) && length(socket) == 0 => return Ok(Vec::new()),
        Ok(Some(first)) if first.bytes.is_empty() => vec![first],
        Ok(Some(_)) => Vec::new(),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => return Ok(Vec::new()),
        Err(error) => return Err(error).context(what),
    };
    offset.set(0)?;
    let room = (option(socket, RCVBUF)? as usize).max(LARGEST);
    while messages.len() < MOST {
        match look(socket, room) {
            Ok(Some(message)) if is_end(socket, kind, &message) => break,
            Ok(Some(message)) => messages.push(message),
            Ok(None) => break,
            Err(error) => return Err(error).context(what),
        }
    }
    Ok(messages)
}

/// The end of what is connected looks like an empty message that has no end.
fn is_end(socket: &OwnedFd, kind: i32, message: &Message) -> bool {
    let is_empty = message.bytes.is_empty() && message.descriptors.is_empty() && !message.lacks;
    kind == libc::SOCK_SEQPACKET && is_empty && {
        let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::RDHUP)
    }
}

/// What comes as a stream is one piece as long as nothing comes with it.
fn stream(socket: &OwnedFd) -> Result<Vec<Message>, CallError> {
    let waiting = length(socket);
    if waiting == 0 {
        return Ok(Vec::new());
    }
    let offset = Offset::of(socket)?;
    if offset.before == NONE {
        let all = look(socket, waiting).context(what)?;
        let is_plain = |all: &Message| all.bytes.len() == waiting && all.descriptors.is_empty() && !all.lacks;
        if let Some(all) = all.filter(is_plain) {
            return Ok(vec![all]);
        }
    }
    offset.set(0)?;
    let (mut messages, mut at) = (Vec::new(), 0);
    while at < waiting && messages.len() < MOST {
        let Some(mut message) = look(socket, waiting - at).context(what)?.filter(|one| !one.bytes.is_empty()) else {
            break;
        };
        let end = at + message.bytes.len();
        if !message.descriptors.is_empty() {
            // Descriptors come with the last of the parts that were sent, and are lost to who receives the first byte
            // of that without them.
            offset.set(at as i32)?;
            let border = socket::peek::parts_before(socket, message.bytes.len()).context(what)?;
            let behind = message.bytes.split_off(border.min(message.bytes.len()));
            let plain = std::mem::replace(&mut message.bytes, behind);
            if !plain.is_empty() {
                let from = message.from.clone();
                let sender = message.sender;
                messages.push(Message { bytes: plain, from, descriptors: Vec::new(), lacks: false, sender });
            }
            offset.set(end as i32)?;
        }
        messages.push(message);
        at = end;
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::socket::packet;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    fn shown(socket: &OwnedFd, kind: i32) -> Vec<(String, usize)> {
        let show = |one: Message| (String::from_utf8_lossy(&one.bytes).into_owned(), one.descriptors.len());
        all(socket, kind).unwrap().into_iter().map(show).collect()
    }

    fn some(text: &str, descriptors: usize) -> (String, usize) {
        (text.to_owned(), descriptors)
    }

    #[test]
    fn all_messages_are_seen_and_none_is_taken() {
        let (one, two) = UnixDatagram::pair().unwrap();
        for message in ["one", "", "three"] {
            one.send(message.as_bytes()).unwrap();
        }
        let two = OwnedFd::from(two);
        assert_eq!(shown(&two, libc::SOCK_DGRAM), [some("one", 0), some("", 0), some("three", 0)]);
        assert!(socket::peek::peek(&two, 9, false).unwrap().unwrap().bytes == b"one");
        let (one, two) = UnixStream::pair().unwrap();
        Write::write_all(&mut &one, b"kept").unwrap();
        assert_eq!(shown(&OwnedFd::from(two), libc::SOCK_STREAM), [some("kept", 0)]);
    }

    #[test]
    fn an_empty_message_with_descriptors_is_seen_each_time() {
        let (one, two) = UnixDatagram::pair().unwrap();
        packet::send(&one, b"", &[one.as_fd()]).unwrap();
        let two = OwnedFd::from(two);
        for _ in 0..3 {
            assert_eq!(shown(&two, libc::SOCK_DGRAM), [some("", 1)]);
            assert_eq!(next(&two).unwrap().unwrap().descriptors.len(), 1);
        }
    }

    #[test]
    fn who_sent_a_message_is_known_where_it_came_with_it() {
        let passes =
            |socket: &OwnedFd, yes| socket::option::set_number(socket, libc::SOL_SOCKET, PASSCRED, yes).unwrap();
        let (one, two) = UnixDatagram::pair().unwrap();
        let two = OwnedFd::from(two);
        one.send(b"by nobody").unwrap();
        passes(&two, 1);
        one.send(b"by me").unwrap();
        passes(&two, 0);
        let senders =
            |two| all(two, libc::SOCK_DGRAM).unwrap().into_iter().map(|one| one.sender.map(|one| one.process));
        assert_eq!(senders(&two).collect::<Vec<_>>(), [None, Some(std::process::id().cast_signed())]);
        assert_eq!(option(&two, PASSCRED).unwrap(), 0);
    }

    #[test]
    fn a_stream_is_parted_where_descriptors_belong() {
        let (one, two) = UnixStream::pair().unwrap();
        let send = |text: &str, count: usize| packet::send(&one, text.as_bytes(), &vec![one.as_fd(); count]).unwrap();
        send("before", 0);
        send("with two", 2);
        send("x", 1);
        send("behind", 0);
        let two = OwnedFd::from(two);
        let wanted = [some("before", 0), some("with two", 2), some("x", 1), some("behind", 0)];
        for _ in 0..2 {
            assert_eq!(shown(&two, libc::SOCK_STREAM), wanted);
        }
        assert_eq!(socket::option::number(&two, libc::SOL_SOCKET, PEEK_OFF).unwrap(), -1);
    }

    #[test]
    fn the_end_is_no_message() {
        let (one, two) = packet::pair().unwrap();
        packet::send(&one, b"", &[]).unwrap();
        packet::send(&one, b"last", &[]).unwrap();
        assert_eq!(shown(&two, libc::SOCK_SEQPACKET), [some("", 0), some("last", 0)]);
        drop(one);
        assert_eq!(shown(&two, libc::SOCK_SEQPACKET), [some("", 0), some("last", 0)]);
        packet::receive(&two, &mut []).unwrap();
        packet::receive(&two, &mut []).unwrap();
        assert_eq!(shown(&two, libc::SOCK_SEQPACKET), []);
    }
}

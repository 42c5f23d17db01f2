//! TCP connections of a guest with itself that nobody has accepted. One end is a socket of a process; the other waits
//! at a listener, where no descriptor leads to it. What that end has received is read by a BPF program
//! ([`accept_queue`](crate::bpf::accept_queue)), without touching it; where there is none, a connection in which
//! something was received is lost.

use crate::bpf::accept_queue::{AcceptQueues, Waiting};
use crate::capture::connections::canonical;
use crate::image::connection::{Bytes, Ends};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// Where `struct tcp_info` has how many connections wait at a listener (`tcpi_unacked`).
const INFO_WAITING: usize = 24;

/// A listener at which connections wait.
pub(super) struct Listener {
    /// Its network namespace, see [`PlainSocket`](crate::image::PlainSocket).
    space: Option<usize>,
    at: (IpAddr, u16),
    pub(super) waiting: u32,
    socket: OwnedFd,
}

impl Listener {
    /// None if nothing waits there. `info` is its `struct tcp_info`.
    pub(super) fn of(space: Option<usize>, socket: OwnedFd, info: &[u8]) -> Option<Self> {
        let waiting = info.get(INFO_WAITING..INFO_WAITING + 4)?.try_into().ok().map(u32::from_le_bytes)?;
        let at = SocketAddr::try_from(rustix::net::getsockname(&socket).ok()?).ok()?;
        (waiting > 0).then_some(Self { space, at: canonical(at), waiting, socket })
    }

    /// Whether who connects to an address in a network namespace connects to it.
    pub(super) fn serves(&self, space: Option<usize>, to: SocketAddr) -> bool {
        let (ip, port) = canonical(to);
        self.space == space && self.at.1 == port && (self.at.0 == ip || self.at.0.is_unspecified())
    }
}

/// A connection as the end that has connected sees it: its network namespace, its address, and the other's.
pub(super) type Key = (Option<usize>, (IpAddr, u16), (IpAddr, u16));

/// Where a connection waits: at which listener, and how many are before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    listener: usize,
    number: usize,
}

/// The listeners of processes that stand still.
pub(super) struct Listeners {
    pub(super) all: Vec<Listener>,
    /// What tells of them, once it was needed.
    queues: Option<AcceptQueues>,
}

/// What waits at each listener, by its number.
pub(super) struct Queues<'a> {
    listeners: &'a Listeners,
    waiting: HashMap<usize, Vec<Waiting>>,
}

impl Listeners {
    pub(super) fn of(all: Vec<Listener>) -> Self {
        Self { all, queues: None }
    }

    /// Has itself told by the kernel from here on, where that is possible.
    pub(super) fn ask_the_kernel(&mut self) {
        if self.queues.is_none() {
            self.queues = AcceptQueues::load().ok();
        }
    }

    /// Where connections wait, by their network namespaces and the addresses of the ends that have connected. Empty
    /// where the kernel does not tell.
    pub(super) fn places(&self) -> HashMap<Key, Place> {
        let mut places = HashMap::new();
        for (listener, waiting) in self.waiting().waiting {
            for (number, one) in waiting.iter().enumerate() {
                let (local, remote) = (canonical(one.ends.1), canonical(one.ends.0));
                places.insert((self.all[listener].space, local, remote), Place { listener, number });
            }
        }
        places
    }

    /// What waits at them now.
    pub(super) fn waiting(&self) -> Queues<'_> {
        let told = |listener: &Listener| self.queues.as_ref().and_then(|queues| queues.waiting(&listener.socket).ok());
        let waiting = self.all.iter().enumerate().filter_map(|(number, one)| Some((number, told(one)?))).collect();
        Queues { listeners: self, waiting }
    }
}

impl Queues<'_> {
    /// All that a connection has sent to the end that waits at a place: what that has received, and behind it what was
    /// not acknowledged. `sent` is the number of the next byte that is written to it, and the latter. Of more than is
    /// kept (`room`) nothing is read.
    pub(super) fn all_sent(
        &self,
        (place, ends): (Place, Ends),
        sent: &(u32, Bytes),
        room: usize,
    ) -> io::Result<(u32, Bytes)> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let listener = self.listeners.all.get(place.listener).ok_or_else(gone)?;
        let queues = self.listeners.queues.as_ref().ok_or_else(gone)?;
        let waiting = self.waiting.get(&place.listener).and_then(|all| all.get(place.number)).ok_or_else(gone)?;
        let turned = (canonical(waiting.ends.1), canonical(waiting.ends.0));
        if turned != (canonical(ends.0), canonical(ends.1)) || waiting.bytes() > room {
            return Err(gone());
        }
        let received = queues.received(&listener.socket, place.number, waiting)?;
        let all = joined(received, sent.0.wrapping_sub(waiting.first), &sent.1.0).ok_or_else(gone)?;
        Ok((sent.0, Bytes(all)))
    }
}

/// What was received of so many bytes, and the last of them, which may be the same in part. None if some are in
/// neither.
fn joined(mut received: Vec<u8>, all: u32, last: &[u8]) -> Option<Vec<u8>> {
    let before = (all as usize).checked_sub(last.len())?;
    let known = received.len().checked_sub(before)?;
    received.extend(last.get(known..)?);
    Some(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_and_what_was_not_acknowledged_are_one_stream() {
        let joined = |received: &[u8], all, last: &[u8]| joined(received.to_vec(), all, last);
        assert_eq!(joined(b"abc", 5, b"de").unwrap(), b"abcde");
        assert_eq!(joined(b"abc", 3, b"").unwrap(), b"abc");
        assert_eq!(joined(b"abcd", 5, b"cde").unwrap(), b"abcde", "received, and the word of that was on its way");
        assert_eq!(joined(b"", 2, b"ab").unwrap(), b"ab");
        assert_eq!(joined(b"ab", 5, b"de"), None, "one is with neither");
        assert_eq!(joined(b"abcdef", 5, b"e"), None, "more was received than was sent");
        assert_eq!(joined(b"abc", 1, b"de"), None);
    }
}

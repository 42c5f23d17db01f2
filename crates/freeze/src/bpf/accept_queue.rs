//! What waits at a listener, of TCP or of unix sockets, as a BPF program of ours (`bpf/accept_queue.bpf.c`) finds it:
//! connections that nobody has accepted, in their order, and what each has received. No system call tells that. To
//! accept one would take it off the program that listens.
//!
//! Iterators over one process's files: since Linux 6.1, and what is looked for with them is found in Linux 6.12 and
//! 6.18. Where there are none, or the kernel's memory is arranged in another way, nothing is told.

use crate::bpf::object;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use pando_kernel::bpf;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/accept_queue.bpf.o"));

/// Bytes of the program's `struct waiting`.
const WAITING: usize = 48;

/// What the program is asked for: its `enum wish`.
#[derive(Clone, Copy, Debug)]
enum Wish {
    WherePagesAre = 0,
    WhoWaits = 1,
    WhatCame = 2,
    WhichMessages = 3,
}

/// Bytes of the program's `struct message`.
const MESSAGE: usize = 20;

/// Bytes of the program's `struct unix_waiting`.
const UNIX_WAITING: usize = 12;

/// A connection that waits at a unix listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnixWaiting {
    /// How many messages it has received.
    pub(crate) messages: usize,
    /// The effective user and group of who connected it, by the numbers that are known here.
    pub(crate) connector: (u32, u32),
}

/// A message that a connection of unix sockets has received, or a part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// How many bytes it has.
    pub(crate) length: usize,
    /// Who sent it: process (0 where nobody is named), user and group, by the numbers that are known here.
    pub(crate) sender: (i32, u32, u32),
    /// Whether descriptors come with it.
    pub(crate) carries: bool,
    /// Whether it is one that comes before all others (MSG_OOB).
    pub(crate) is_urgent: bool,
}

/// A connection that waits at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// The address of the end that waits, and of the one that has connected.
    pub(crate) ends: (SocketAddr, SocketAddr),
    /// The number of the first byte that it can receive.
    pub(crate) first: u32,
    /// How many it has received. The end counts as one.
    pub(crate) received: u32,
    /// Whether its other end has said that it sends no more.
    pub(crate) ended: bool,
}

/// The program, loaded: what waits at the TCP listeners that this process has open.
#[derive(Debug)]
pub struct AcceptQueues {
    program: OwnedFd,
    request: MapHandle,
    /// By which number pages are apart from what the kernel describes them by.
    apart: u64,
}

impl AcceptQueues {
    /// Loads it, which takes some tens of milliseconds, and tries it with a connection of this process with itself.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_BPF and CAP_PERFMON; others where the kernel has no such iterators or other structures.
    pub fn load() -> io::Result<Self> {
        let (object, program) = object::load(OBJECT)?;
        let map = object.maps().find(|map| map.name() == "requests").ok_or(io::ErrorKind::NotFound)?;
        let request = MapHandle::try_from(&map).map_err(io::Error::other)?;
        let loaded = Self { program, request, apart: 0 };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let known = nonce()?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        io::Write::write_all(&mut &client, &known)?;
        let listener = OwnedFd::from(listener);
        let apart = loaded.ask(&listener, Wish::WherePagesAre, (0, 0))?;
        let apart = u64::from_ne_bytes(apart.try_into().map_err(|_| unknown("where pages are"))?);
        let loaded = Self { apart, ..loaded };
        // Somebody else may have connected.
        let waiting = loaded.waiting(&listener)?;
        let ours = waiting.iter().position(|one| client.local_addr().is_ok_and(|own| own == one.ends.1));
        let ours = ours.ok_or_else(|| unknown("who waits"))?;
        let heard = loaded.received(&listener, ours, &waiting[ours])?;
        if heard == known { Ok(loaded) } else { Err(unknown("what is received")) }
    }

    /// What waits at a listener, who came first first.
    pub(crate) fn waiting(&self, listener: &OwnedFd) -> io::Result<Vec<Waiting>> {
        let mut all: Vec<Waiting> = Vec::new();
        loop {
            let from = u32::try_from(all.len()).map_err(io::Error::other)?;
            let more = records(&self.ask(listener, Wish::WhoWaits, (from, 0))?)?;
            if more.is_empty() {
                return Ok(all);
            }
            all.extend(more);
        }
    }

    /// What the one of a number has received. Of one that receives more meanwhile it may be less.
    ///
    /// # Errors
    ///
    /// Where it cannot be read to its end.
    pub(crate) fn received(&self, listener: &OwnedFd, number: usize, waiting: &Waiting) -> io::Result<Vec<u8>> {
        let length = waiting.bytes();
        let number = u32::try_from(number).map_err(io::Error::other)?;
        let mut bytes = self.bytes(listener, number, length)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// What waits at a unix listener, who came first first.
    pub(crate) fn unix_waiting(&self, listener: &OwnedFd) -> io::Result<Vec<UnixWaiting>> {
        let mut all: Vec<UnixWaiting> = Vec::new();
        loop {
            let from = u32::try_from(all.len()).map_err(io::Error::other)?;
            let more = self.ask(listener, Wish::WhoWaits, (from, 0))?;
            let (records, []) = more.as_chunks::<UNIX_WAITING>() else { return Err(io::ErrorKind::InvalidData.into()) };
            if records.is_empty() {
                return Ok(all);
            }
            all.extend(records.iter().map(UnixWaiting::from_record));
        }
    }

    /// The messages that the one of a number has received there, `count` of them, each with its bytes.
    ///
    /// # Errors
    ///
    /// Where they cannot be read to their end, or are more than may be.
    pub(crate) fn unix_received(
        &self,
        listener: &OwnedFd,
        number: usize,
        count: usize,
    ) -> io::Result<Vec<(Message, Vec<u8>)>> {
        let number = u32::try_from(number).map_err(io::Error::other)?;
        let mut messages: Vec<Message> = Vec::new();
        while messages.len() < count {
            let from = u32::try_from(messages.len()).map_err(io::Error::other)?;
            let more = self.ask(listener, Wish::WhichMessages, (number, from))?;
            match more.as_chunks::<MESSAGE>() {
                (records, []) if !records.is_empty() => messages.extend(records.iter().map(Message::from_record)),
                _ => return Err(unknown("which messages are received")),
            }
        }
        let length: usize = messages.iter().map(|message| message.length).sum();
        if length > MOST_RECEIVED {
            return Err(unknown("as much as is received"));
        }
        let bytes = self.bytes(listener, number, length)?;
        let mut rest = bytes.as_slice();
        let with_bytes = |message: Message| {
            let (own, behind) = rest.split_at_checked(message.length)?;
            rest = behind;
            Some((message, own.to_vec()))
        };
        messages.into_iter().map(with_bytes).collect::<Option<_>>().ok_or_else(|| unknown("all that is received"))
    }

    /// So many bytes that one of those that wait has received, or more.
    fn bytes(&self, listener: &OwnedFd, number: u32, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let from = u32::try_from(bytes.len()).map_err(io::Error::other)?;
            let piece = self.ask(listener, Wish::WhatCame, (number, from))?;
            if piece.is_empty() {
                return Err(unknown("all that is received"));
            }
            bytes.extend(piece);
        }
        Ok(bytes)
    }

    fn ask(&self, listener: &OwnedFd, wish: Wish, (number, from): (u32, u32)) -> io::Result<Vec<u8>> {
        let listener = listener.as_raw_fd().unsigned_abs();
        let words = [listener, wish as u32, number, from].map(u32::to_ne_bytes);
        let request = [words.concat(), self.apart.to_ne_bytes().to_vec()].concat();
        self.request.update(&[0; 4], &request, MapFlags::ANY).map_err(io::Error::other)?;
        let link = bpf::iterator::over_process(self.program.as_fd(), std::process::id())?;
        let mut bytes = Vec::with_capacity(16 << 10);
        bpf::iterator::run(link.as_fd())?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// More than so many bytes of one connection are not read.
const MOST_RECEIVED: usize = 8 << 20;

impl UnixWaiting {
    fn from_record(record: &[u8; UNIX_WAITING]) -> Self {
        let word = |at: usize| u32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        Self { messages: word(0) as usize, connector: (word(4), word(8)) }
    }
}

impl Message {
    fn from_record(record: &[u8; MESSAGE]) -> Self {
        let word = |at: usize| u32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        Self {
            length: word(0) as usize,
            sender: (word(4).cast_signed(), word(8), word(12)),
            carries: word(16) & 1 != 0,
            is_urgent: word(16) & 2 != 0,
        }
    }
}

impl Waiting {
    /// How many bytes wait to be received.
    pub(crate) fn bytes(&self) -> usize {
        (self.received - u32::from(self.ended && self.received > 0)) as usize
    }

    fn from_record(record: &[u8; WAITING]) -> io::Result<Self> {
        let short = |at: usize| u16::from_ne_bytes([record[at], record[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        let ip = |at: usize| -> io::Result<IpAddr> {
            let bytes: [u8; 16] = record[at..at + 16].try_into().map_err(io::Error::other)?;
            match i32::from(short(32)) {
                libc::AF_INET => Ok(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
                libc::AF_INET6 => Ok(Ipv6Addr::from(bytes).into()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        const TCP_CLOSE_WAIT: u16 = 8;
        let ends = ((ip(0)?, short(34)).into(), (ip(16)?, short(36)).into());
        let (first, next) = (word(40), word(44));
        Ok(Self { ends, first, received: next.wrapping_sub(first), ended: short(38) == TCP_CLOSE_WAIT })
    }
}

/// That the kernel keeps something elsewhere than is known of it here.
fn unknown(what: &str) -> io::Error {
    io::Error::other(format!("this kernel does not tell {what}"))
}

/// Bytes that nobody knows.
fn nonce() -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64];
    let length = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Takes apart what the program wrote.
fn records(bytes: &[u8]) -> io::Result<Vec<Waiting>> {
    let (records, []) = bytes.as_chunks::<WAITING>() else { return Err(io::ErrorKind::InvalidData.into()) };
    records.iter().map(Waiting::from_record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn records_are_taken_apart() {
        let mut record = [0; WAITING];
        record[..4].copy_from_slice(&[127, 0, 0, 1]);
        record[16..20].copy_from_slice(&[127, 0, 0, 2]);
        for (at, value) in [(32, 2_u16), (34, 80), (36, 4000), (38, 8)] {
            record[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        record[40..44].copy_from_slice(&u32::MAX.to_ne_bytes());
        record[44..].copy_from_slice(&3_u32.to_ne_bytes());
        let found = records(&record).unwrap();
        assert_eq!(found[0].ends, ("127.0.0.1:80".parse().unwrap(), "127.0.0.2:4000".parse().unwrap()));
        assert_eq!((found[0].received, found[0].ended, found[0].bytes()), (4, true, 3));
        assert!(records(&record[1..]).is_err());
    }

    /// Where they can be had; it is said where not.
    fn queues() -> Option<AcceptQueues> {
        if !pando_kernel::process::counts_as_the_kernel() {
            eprintln!("skipped: the kernel counts other processes than this one does");
            return None;
        }
        let why = |error| eprintln!("skipped: this kernel does not tell what waits at a listener: {error}");
        AcceptQueues::load().map_err(why).ok()
    }

    #[test]
    fn what_waits_at_a_unix_listener_is_read_where_it_lies() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
        let Some(queues) = queues() else { return };
        let name = format!("pando-accept-queue-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let clients: Vec<_> = (0..100).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
        let large: Vec<u8> = (0..30_000_u32).flat_map(|number| number.to_le_bytes()).collect();
        (&clients[1]).write_all(&large).unwrap();
        (&clients[1]).write_all(b"behind it").unwrap();
        (&clients[99]).write_all(b"last").unwrap();
        pando_kernel::socket::packet::send(&clients[5], b"x", &[listener.as_fd()]).unwrap();
        let listener = OwnedFd::from(listener);
        let waiting = queues.unix_waiting(&listener).unwrap();
        assert_eq!((waiting.len(), waiting[0].messages, waiting[99].messages), (100, 0, 1));
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(waiting[0].connector, (user, group));
        let of = |number: usize| queues.unix_received(&listener, number, waiting[number].messages).unwrap();
        let all: Vec<u8> = of(1).into_iter().flat_map(|(_, bytes)| bytes).collect();
        assert!(all == [large.as_slice(), b"behind it"].concat());
        let own = std::process::id().cast_signed();
        let (last, bytes) = of(99).remove(0);
        assert_eq!((bytes.as_slice(), last.sender.0, last.carries), (b"last".as_slice(), own, false));
        assert!(of(5)[0].0.carries && of(0).is_empty());
    }

    #[test]
    fn what_nobody_has_accepted_is_read_where_it_lies() {
        let Some(queues) = queues() else { return };
        let listener = TcpListener::bind("[::]:0").unwrap();
        rustix::net::listen(&listener, 400).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut clients: Vec<_> = (0..200).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
        clients.push(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap());
        let large: Vec<u8> = (0..300_000_u32).flat_map(|number| number.to_le_bytes()).collect();
        clients[0].set_nonblocking(true).unwrap();
        let mut sent = 0;
        while sent < large.len()
            && let Ok(more) = clients[0].write(&large[sent..])
        {
            sent += more;
        }
        clients[200].set_nodelay(true).unwrap();
        for number in 0..100 {
            clients[200].write_all(&[number]).unwrap();
        }
        clients[7].write_all(b"last words").unwrap();
        clients[7].shutdown(std::net::Shutdown::Write).unwrap();
        let listener = OwnedFd::from(listener);
        let waiting = queues.waiting(&listener).unwrap();
        let canonical = |one: SocketAddr| SocketAddr::new(one.ip().to_canonical(), one.port());
        let ends: Vec<_> = waiting.iter().map(|one| canonical(one.ends.1)).collect();
        assert_eq!(ends, clients.iter().map(|one| one.local_addr().unwrap()).collect::<Vec<_>>(), "in their order");
        let of = |number: usize| queues.received(&listener, number, &waiting[number]).unwrap();
        assert!(waiting[0].bytes() > 32 << 10, "{:?}", waiting[0]);
        assert!(of(0) == large[..waiting[0].bytes()]);
        assert!(!of(200).is_empty() && of(200) == (0..100).collect::<Vec<u8>>()[..waiting[200].bytes()]);
        assert_eq!((of(7), waiting[7].ended, of(8)), (b"last words".to_vec(), true, Vec::new()));
    }
}

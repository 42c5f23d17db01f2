//! TCP connections of an image: they are given back to the processes that had them, and are no part of the image
//! itself.

use crate::image::Image;
use pando_kernel::socket::tcp_repair;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::SocketAddr;

/// More than so many unread and unacknowledged bytes of all connections together are not kept: what has more is reset.
pub(crate) const MOST_QUEUED: usize = 4 << 20;

/// A connection that was established, and that has not ended in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Its open file, an index into [`Image::files`](super::Image::files).
    pub file: usize,
    /// The address of the process's own end.
    pub local: SocketAddr,
    /// The address of the other end.
    pub remote: SocketAddr,
    /// The number of the next byte that is to come, and what came before it and was not read.
    pub received: (u32, Bytes),
    /// The number of the next byte that is to be written, and what was written before it and not acknowledged.
    pub sent: (u32, Bytes),
    /// How many of those have never left.
    pub unsent: u32,
    /// The largest segment that may be sent.
    pub segment: u32,
    /// What was agreed on: timestamps 1, selective acknowledgements 2, window scales 4.
    pub agreed: u8,
    /// Window scales, the other's in the lower half.
    pub scales: u8,
    /// The clock of its timestamps.
    pub clock: u32,
    /// What either end may send.
    pub window: Bytes,
    /// Whether its address may be bound again (SO_REUSEADDR), which being repaired undoes.
    pub reuse: bool,
    /// Where its other end is.
    pub peer: Peer,
    /// Which of its directions have ended.
    pub ended: Ended,
}

/// Where the other end of a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// With somebody else; or it was closed.
    #[default]
    Outside,
    /// It is another socket of the image.
    Inside,
    /// It waits at a listener of the image, and nobody has accepted it. All that it was sent counts as not
    /// acknowledged, also what it has received.
    Unaccepted,
}

/// Which directions of a connection have ended, by shutdown(2) or close(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// This end will send nothing more.
    pub sent: bool,
    /// The other end has sent all that it will.
    pub received: bool,
}

/// Bytes that are written in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("these are no hexadecimal digits"))
    }
}

/// The two ends of a connection, its own first.
pub type Ends = (SocketAddr, SocketAddr);

impl Connection {
    /// The two ends of the connection: local, remote.
    pub fn ends(&self) -> Ends {
        (self.local, self.remote)
    }

    /// Whether a clone has it, too, where addresses of the loopback device are or are not each guest's own. Of one that
    /// the other end has closed there is nothing but what was not read.
    pub fn is_of_clones(&self, own_loopback: bool) -> bool {
        self.peer != Peer::Outside || own_loopback && self.ended.received && is_loopback(self.remote)
    }

    /// Whether a stranger may have written it: what he has put into it is no more than what is kept of a guest here.
    pub fn is_sound(all: &[Self]) -> bool {
        let sound =
            |one: &Self| one.window.0.len() == tcp_repair::WINDOW_LENGTH && one.unsent as usize <= one.sent.1.0.len();
        all.iter().all(sound) && all.iter().map(Self::queued).sum::<usize>() <= MOST_QUEUED
    }

    /// How many bytes wait in it.
    pub(crate) fn queued(&self) -> usize {
        self.received.1.0.len() + self.sent.1.0.len()
    }
}

/// Whether an address is one of the loopback device.
pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Of each open file of an image that a process has, the process and its descriptor.
pub(crate) fn owners(image: &Image) -> HashMap<usize, (i32, i32)> {
    let mut owners = HashMap::new();
    for process in &image.processes {
        for descriptor in &process.descriptors {
            owners.entry(descriptor.file).or_insert((process.pid, descriptor.number));
        }
    }
    owners
}

impl Connection {
    /// One of which nothing but its ends is known.
    pub(crate) fn between((local, remote): Ends) -> Self {
        Self {
            file: 0,
            local,
            remote,
            received: Default::default(),
            sent: Default::default(),
            unsent: 0,
            segment: 0,
            agreed: 0,
            scales: 0,
            clock: 0,
            window: Bytes::default(),
            reuse: false,
            peer: Peer::default(),
            ended: Ended::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Connection {
        Connection {
            file: 3,
            local: "10.9.0.5:80".parse().unwrap(),
            remote: "[fd00::1]:4000".parse().unwrap(),
            received: (7, Bytes(b"in".to_vec())),
            sent: (9, Bytes(vec![0, 255])),
            unsent: 1,
            segment: 1448,
            agreed: 7,
            scales: 0xa7,
            clock: 5,
            window: Bytes(vec![1; 20]),
            reuse: true,
            peer: Peer::Inside,
            ended: Ended { sent: true, received: false },
        }
    }

    #[test]
    fn what_is_kept_can_be_read() {
        let text = serde_json::to_string(&connection()).unwrap();
        assert!(text.contains("\"00ff\""), "{text}");
        assert_eq!(serde_json::from_str::<Connection>(&text).unwrap(), connection());
        let wrong = text.replace("00ff", "0x0");
        assert!(serde_json::from_str::<Connection>(&wrong).is_err());
    }
}

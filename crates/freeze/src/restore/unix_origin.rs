//! How each unix socket of a clone comes to be: by itself, in a pair, accepted, or with a peer that is gone.

use crate::image::{Image, UnixSocket};

/// How a socket comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// By itself.
    Alone,
    /// Together with the one that it is connected to, which comes later.
    Pair { other: usize },
    /// Together with one that came before.
    Paired,
    /// By accepting a client.
    Accepted { listener: usize, client: usize },
    /// By accepting a client from a listener that goes again.
    AcceptedLate { client: usize },
    /// With another end that goes again.
    Widow,
}

/// The sockets whose other ends go only when they are filled.
pub(crate) fn late_widows(all: &[UnixSocket]) -> impl Iterator<Item = usize> {
    let carries = |socket: &UnixSocket| socket.queue.iter().any(|message| !message.files.is_empty());
    (0..all.len()).filter(move |number| origin(all, *number) == Origin::Widow && carries(&all[*number]))
}

/// How many of them there are.
pub(crate) fn count_late_widows(image: &Image) -> usize {
    late_widows(&image.unix).count()
}

pub(crate) fn origin(all: &[UnixSocket], number: usize) -> Origin {
    let socket = &all[number];
    let stream = socket.kind != libc::SOCK_DGRAM;
    let listener_of = |one: &UnixSocket| {
        let is_it = |other: &UnixSocket| other.backlog.is_some() && has_name(other, one, &one.name);
        // Most have no name, and then none of very many is looked at.
        if stream && one.is_named() { all.iter().position(is_it) } else { None }
    };
    match socket.peer {
        None if socket.connected => Origin::Widow,
        Some(peer) if all[peer].peer == Some(number) && peer != number => match listener_of(socket) {
            Some(listener) => Origin::Accepted { listener, client: peer },
            None if listener_of(&all[peer]).is_some() => Origin::Alone,
            None if accepts_late(all, number, peer) => Origin::AcceptedLate { client: peer },
            None if accepts_late(all, peer, number) => Origin::Alone,
            None if number < peer => Origin::Pair { other: peer },
            None => Origin::Paired,
        },
        _ => Origin::Alone,
    }
}

/// Whether one of two that are connected has been accepted from a listener that is gone. The kernel says that each has
/// another at its other end, as it never does of a pair. Whoever was accepted has a name. Where both have, either will
/// do.
fn accepts_late(all: &[UnixSocket], number: usize, peer: usize) -> bool {
    let (one, other) = (&all[number], &all[peer]);
    one.kind != libc::SOCK_DGRAM
        && one.peer_credentials != other.peer_credentials
        && one.is_named()
        && (number < peer || !other.is_named())
}

/// Whether a socket has a name that another one knows: each network namespace has abstract names of its own.
pub(crate) fn has_name(one: &UnixSocket, for_whom: &UnixSocket, name: &[u8]) -> bool {
    one.name == name && (one.path().is_some() || one.net_space == for_whom.net_space)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::PeerCredentials;

    #[test]
    fn what_was_accepted_comes_through_its_listener() {
        let name = b"\x01\x00/run/a\0".to_vec();
        let socket = |peer: Option<usize>, backlog, name: &[u8]| UnixSocket {
            kind: libc::SOCK_STREAM,
            connected: peer.is_some(),
            peer,
            backlog,
            name: name.to_vec(),
            ..UnixSocket::default()
        };
        let plain = b"\x01\x00";
        let all = [
            socket(None, Some(5), &name),
            socket(Some(2), None, &name),
            socket(Some(1), None, plain),
            socket(Some(4), None, plain),
            socket(Some(3), None, plain),
            UnixSocket { connected: true, ..socket(None, None, plain) },
            UnixSocket { peer_credentials: Some(PeerCredentials::default()), ..socket(Some(7), None, b"\x01\x00gone") },
            UnixSocket { peer_credentials: Some(PeerCredentials::nobody()), ..socket(Some(6), None, plain) },
        ];
        let origins: Vec<_> = (0..all.len()).map(|number| origin(&all, number)).collect();
        let wanted = [
            Origin::Alone,
            Origin::Accepted { listener: 0, client: 2 },
            Origin::Alone,
            Origin::Pair { other: 4 },
            Origin::Paired,
            Origin::Widow,
            Origin::AcceptedLate { client: 7 },
            Origin::Alone,
        ];
        assert_eq!(origins, wanted);
    }
}

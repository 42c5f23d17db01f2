//! Connections by unix sockets that nobody has accepted. One end is a socket of a process, or was closed; the other
//! waits at a listener, where no descriptor leads to it. What that end has received is read by a BPF program
//! ([`accept_queue`](crate::bpf::accept_queue)), without touching it. Where there is none, or descriptors come with it,
//! the listener is refused by name.

use crate::bpf::accept_queue::{AcceptQueues, Message, UnixWaiting};
use crate::capture::unix_socket::inside;
use crate::image::socket::{MOST_GONE, NOBODY};
use crate::image::{GoneClient, Image, PeerCredentials, Sender, Waiting};
use crate::inspect::credentials::IdMaps;
use crate::inspect::open_files::Place;
use crate::inspect::socket_table::borrow;
use pando_kernel::CallError;
use pando_kernel::socket::unix_diag::UnixEntry;
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// Captures what was sent to those that wait, and those that wait though their other ends were closed. `places` are
/// where each open file was found. The kernel is asked where there is any such thing: that takes some tens of
/// milliseconds the first time.
pub(super) fn capture(
    image: &mut Image,
    places: &[Place],
    table: &HashMap<u32, &UnixEntry>,
    maps: &IdMaps,
) -> Result<(), CallError> {
    let mut queues = None;
    for number in 0..image.unix.len() {
        let place = places[image.unix[number].file];
        let Some(entry) = table.get(&(place.inode as u32)) else { continue };
        let has_sent = |inode: &u32| *inode == 0 || table.get(inode).is_some_and(|client| client.queues.1 > 0);
        if !entry.waiting.iter().any(has_sent) {
            continue;
        }
        let queues = queues.get_or_insert_with(|| AcceptQueues::load().ok());
        let listener = borrow(place)?;
        let told = queues.as_ref().and_then(|queues| received(queues, &listener, entry.waiting.len(), maps));
        let Some(told) = told else {
            image.unix[number].is_untold = true;
            continue;
        };
        let mut behind = 0;
        for (inode, (connector, sent)) in entry.waiting.iter().zip(told) {
            if *inode == 0 {
                image.unix[number].gone.push(GoneClient { behind, sent, connector });
            } else if let Some(client) = image.unix[number].waiting.get(behind).copied() {
                image.unix[client].sent = sent;
                behind += 1;
            }
        }
        image.unix[number].is_untold = image.unix[number].gone.len() > MOST_GONE;
    }
    Ok(())
}

/// Who connected each of those that wait, and what it has received. None if that cannot be had, or is more than data.
fn received(
    queues: &AcceptQueues,
    listener: &OwnedFd,
    count: usize,
    maps: &IdMaps,
) -> Option<Vec<(PeerCredentials, Vec<Waiting>)>> {
    let waiting = queues.unix_waiting(listener).ok().filter(|waiting| waiting.len() == count)?;
    let of = |(number, one): (usize, &UnixWaiting)| {
        let all = queues.unix_received(listener, number, one.messages).ok()?;
        let (user, group) = one.connector;
        let (user, group) = (maps.user(user).unwrap_or(NOBODY), maps.group(group).unwrap_or(NOBODY));
        let sent = all.into_iter().map(|one| plain(one, maps)).collect::<Option<Vec<_>>>()?;
        Some((PeerCredentials { user, group, further: Vec::new() }, sent))
    };
    waiting.iter().enumerate().map(of).collect()
}

fn plain((message, bytes): (Message, Vec<u8>), maps: &IdMaps) -> Option<Waiting> {
    let (process, user, group) = message.sender;
    let sender = (process != 0).then(|| inside(Sender { process, user, group }, maps));
    let is_plain = !message.carries && !message.is_urgent;
    is_plain.then(|| Waiting { bytes, from: Vec::new(), files: Vec::new(), sender })
}

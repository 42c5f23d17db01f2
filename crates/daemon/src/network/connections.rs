//! TCP connections of guests that are frozen. Those that a guest has with itself each clone has, too; the others are of
//! a guest that is frozen to end there, and restored: what comes to them is withheld meanwhile, so that nobody tells
//! the other end that they are gone.
//!
//! What is withheld says which connections are good still: one that was restored, or whose guest has been started
//! since, is let go of, and one that the host has answered for itself, as after a reboot, is none any more.
//!
//! On the host's network the host drops it, connection by connection. On a private network it is kept from the guest's
//! port, all of it: at the end of the guest that goes, and again until the one that comes back has its connections.
//! Between the two the address is nobody's, and kept for it.

use crate::network::private_network;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::image::{HeldImage, ImageRecord};
use crate::state::processes;
use pando_api::{Link, Network, Spec};
use pando_freeze::image::Image;
use pando_freeze::{Connection, Ends, Peer, is_loopback, revive};
use pando_kernel::CallError;
use pando_net::withhold::Withholding;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How a guest that is frozen to end keeps its connections with others.
pub(crate) enum Keeping {
    /// It is on the host's network, which is there meanwhile, with the host's loopback addresses or with some of its
    /// own.
    ByHost(Arc<Withholding>, Loopback),
    /// It is behind the host, in this slot, and goes into the image of this name.
    ByPort(private_network::Work, u32, String),
    /// It keeps none of them.
    Not,
}

/// Whose the loopback addresses of a guest are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loopback {
    Hosts,
    Own,
}

impl Loopback {
    fn of(network: Network) -> Self {
        if network == Network::Host { Self::Hosts } else { Self::Own }
    }
}

impl Keeping {
    pub(crate) fn of(daemon: &Daemon, spec: &Spec, (slot, image): (u32, &str)) -> Self {
        match (spec.network, spec.link) {
            (network, _) if network.is_the_hosts() => {
                Self::ByHost(Arc::clone(&daemon.withholding), Loopback::of(network))
            }
            (Network::Private, Link::Veth | Link::Netkit) => daemon
                .private
                .holding(slot)
                .map_or(Self::Not, |network| Self::ByPort(network.work(), slot, image.to_owned())),
            _ => Self::Not,
        }
    }

    /// Withholds what comes to a guest's connections with others. Blocking.
    pub(crate) fn begin(&self, outward: &[Ends]) -> Result<(), CallError> {
        let begun = match self {
            Self::ByHost(withholding, loopback) => {
                withholding.add(&with_others(outward, *loopback)).map_err(|error| error.to_string())
            }
            Self::ByPort(network, slot, image) if !outward.is_empty() => {
                network.hold(*slot, image).map_err(|error| error.to_string())
            }
            Self::ByPort(..) | Self::Not => Ok(()),
        };
        crate::crash::point("freeze.withheld");
        begun.map_err(|error| CallError {
            what: "withholding what comes to the guest's connections".into(),
            source: io::Error::other(error),
        })
    }

    /// Lets through what was withheld for a freeze that came to nothing.
    pub(crate) fn give_up(&self, outward: &[Ends]) {
        match self {
            Self::ByHost(withholding, _) => let_go(withholding, outward),
            Self::ByPort(network, slot, _) if !outward.is_empty() => let_through(network, *slot),
            Self::ByPort(..) | Self::Not => {}
        }
    }

    /// Those that can be had again: the guest's with itself, and with others where those are kept.
    pub(crate) fn good(&self, all: &[Connection]) -> Vec<Connection> {
        let good = |one: &&Connection| !matches!(self, Self::Not) || one.is_of_clones(true);
        all.iter().filter(good).cloned().collect()
    }
}

/// Those whose other end can be reached from outside of the guest.
fn with_others(outward: &[Ends], loopback: Loopback) -> Vec<Ends> {
    outward.iter().filter(|ends| loopback == Loopback::Hosts || !is_loopback(ends.1)).copied().collect()
}

/// The ends of those that others have, too.
fn outward(connections: &[Connection]) -> Vec<Ends> {
    connections.iter().filter(|one| one.peer == Peer::Outside).map(Connection::ends).collect()
}

fn let_go(withholding: &Withholding, all: &[Ends]) {
    if let Err(error) = withholding.release(all) {
        tracing::warn!(%error, "what came to connections of a frozen guest stays withheld");
    }
}

fn let_through(network: &private_network::Work, slot: u32) {
    if let Err(error) = network.let_through(slot) {
        tracing::warn!(%error, slot, "what comes to a guest of the private network stays withheld");
    }
}

/// The connections of an image that are good still, for the guest that was frozen.
pub(crate) fn still_good(daemon: &Daemon, held: &HeldImage) -> Vec<Connection> {
    let record = &held.record;
    let kept = daemon.private.keeps(&held.name);
    if kept && outward(&record.connections).is_empty() {
        // None of those that it had could be read.
        daemon.private.give_up(&held.name);
    }
    let own = Loopback::of(record.spec.network) == Loopback::Own;
    let good = |one: &&Connection| kept || one.is_of_clones(own) || daemon.withholding.holds(one.ends());
    record.connections.iter().filter(good).cloned().collect()
}

/// Those that each clone of an image has: the frozen guest's with itself.
pub(crate) fn of_clones(record: &ImageRecord) -> Vec<Connection> {
    let own = Loopback::of(record.spec.network) == Loopback::Own;
    record.connections.iter().filter(|one| one.is_of_clones(own)).cloned().collect()
}

/// A guest that was told to end when the daemon was killed has ended after so long.
const ENDING: Duration = Duration::from_secs(1);

/// Lets go of what an earlier daemon withheld and was killed: of a freeze that came to nothing, of a guest that runs.
/// Those are kept whose guest is away, or in the middle of its end: to whoever looks now that one runs still.
pub(crate) fn adopt(daemon: &Rc<Daemon>) {
    let all: Vec<_> = daemon.images.borrow().values().cloned().collect();
    let kept: Vec<Ends> = all.iter().flat_map(|held| outward(&held.record.connections)).collect();
    if let Err(error) = daemon.withholding.keep_only(&kept) {
        tracing::warn!(%error, "what came to connections of a guest that was being frozen may stay withheld");
    }
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(ENDING).await;
        for held in all.iter().filter(|held| !held.record.connections.is_empty()) {
            let guest = daemon.guests.borrow().values().find(|guest| guest.name.as_ref() == held.record.guest).cloned();
            // One that is being frozen again, or restored, has them withheld for that.
            if guest.is_some_and(|guest| guest.running.borrow().is_some() && !guest.is_busy()) {
                let_go(&daemon.withholding, &outward(&held.record.connections));
            }
        }
    });
}

/// Lets go of the connections of an image, if it has any: who sends to one is told that it is gone.
pub(crate) fn give_up(daemon: &Daemon, image: &str) {
    daemon.private.give_up(image);
    let held = daemon.images.borrow().get(image).cloned();
    if let Some(held) = held.filter(|held| !held.record.connections.is_empty()) {
        let_go(&daemon.withholding, &outward(&held.record.connections));
    }
}

/// Lets go of those of a guest that ended where it was frozen: it starts otherwise, or is gone for good.
pub(crate) fn give_up_of(daemon: &Daemon, guest: &Guest) {
    // A daemon that was killed at that moment has not noted which it is. There is one at most that has any still.
    let own = |held: &Arc<HeldImage>| (held.record.guest == guest.name.as_ref()).then(|| held.name.clone());
    let images: Vec<String> = daemon.images.borrow().values().filter_map(own).collect();
    images.iter().for_each(|image| give_up(daemon, image));
}

/// Gives the processes of a clone or a restored guest, which wait to run, their connections.
pub(crate) async fn restore(daemon: &Rc<Daemon>, guest: &Rc<Guest>, image: &Image, connections: &[Connection]) {
    let outer: HashMap<i32, i32> =
        processes::of_guest(&daemon.field, guest).iter().map(|process| (process.pid, process.host_pid)).collect();
    let (withholding, all) = (Arc::clone(&daemon.withholding), connections.to_vec());
    let image = image.clone();
    let held = guest.returning.take().and_then(|_| {
        let slot = guest.life().ok()?.slot;
        Some((daemon.private.holding(slot)?.work(), slot))
    });
    let work = move || {
        let revived = revive(&image, &all, |pid| outer.get(&pid).copied());
        // They are there: what comes finds them.
        match held {
            Some((network, slot)) => let_through(&network, slot),
            None => let_go(&withholding, &outward(&all)),
        }
        revived.wake()
    };
    let lost = tokio::task::spawn_blocking(work).await.unwrap_or_default();
    if let Some((_, error)) = lost.first() {
        let message = format!("{} of {} are lost; the first: {error}", lost.len(), connections.len());
        daemon.events.tell(guest.name.as_ref(), "connections-lost", Some(message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_connections_with_itself_are_told_from_others() {
        let end = |ip: [u8; 4]| std::net::SocketAddr::from((ip, 80));
        let all = [(end([10, 9, 0, 5]), end([10, 9, 0, 1])), (end([127, 0, 0, 1]), end([127, 0, 0, 1]))];
        assert_eq!(with_others(&all, Loopback::Own), [all[0]]);
        assert_eq!(with_others(&all, Loopback::Hosts), all);
    }
}

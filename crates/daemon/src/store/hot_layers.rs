//! Noting what guests use of their layers, for the daemon to have it in memory before the next guest would be charged
//! for it.

use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use crate::store::{collect, layers};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// After how long a guest has read what it reads when it starts.
const SETTLED: Duration = Duration::from_secs(60);

/// How long a note is good.
const YOUNG: Duration = Duration::from_secs(600);

/// Notes it once the guest has settled, if it still runs then.
pub(crate) fn note_when_settled(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Rc<Running>) {
    let (daemon, guest, life) = (Rc::clone(daemon), Rc::clone(guest), Rc::downgrade(running));
    tokio::task::spawn_local(async move {
        tokio::time::sleep(SETTLED).await;
        if life.upgrade().is_some_and(|running| running.over.borrow().is_none()) {
            note(&daemon, &guest);
        }
    });
}

/// Notes it in the background, unless that was done a moment ago for another guest on the same layer.
pub(crate) fn note(daemon: &Rc<Daemon>, guest: &Guest) {
    let stored: Vec<_> = guest.record.borrow().layers.iter().filter_map(|layer| layers::stored(layer)).collect();
    for layer in stored {
        if !daemon.noting.borrow_mut().insert(layer) {
            continue;
        }
        let (daemon, store) = (Rc::clone(daemon), Arc::clone(&daemon.store));
        tokio::task::spawn_local(async move {
            daemon.idle.come().await;
            let noted = collect::blocking(move || {
                let mounts = store.open()?;
                if mounts.store().is_hot_noted(&layer, YOUNG) { Ok(0) } else { mounts.store().note_hot(&layer) }
            });
            match noted.await {
                Ok(Ok(bytes)) => tracing::debug!(%layer, bytes, "noted what guests use of a layer"),
                // The layer may have gone with its last guest, or the kernel does not tell what is in memory.
                Ok(Err(error)) => tracing::debug!(%layer, %error, "what guests use of a layer is not known"),
                Err(fault) => tracing::debug!(%layer, %fault, "what guests use of a layer is not known"),
            }
            daemon.noting.borrow_mut().remove(&layer);
        });
    }
}

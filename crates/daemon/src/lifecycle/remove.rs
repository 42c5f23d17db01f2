//! Removing guests, and what only they needed.

use crate::failure;
use crate::lifecycle::{stop, takeover};
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use pando_api::{Fault, GuestState};
use pando_guest::Places;
use pando_kernel::tree_removal::{RemovalError, nothing_is_mounted_in, remove_tree};
use std::path::Path;
use std::rc::Rc;

/// Removes a guest at rest; with `force`, a running one too.
pub(crate) async fn remove(daemon: &Rc<Daemon>, guest: &Rc<Guest>, force: bool) -> Result<(), Fault> {
    let _doing = guest.begin_in_trouble("removed")?;
    if guest.unreached.borrow().is_some() {
        if !force {
            return Err(failure::running(
                &guest.name,
                "'pando stop' or 'pando rm --force' ends it although it cannot be reached",
            ));
        }
        takeover::end(daemon, guest, None).await?;
        if guest.ephemeral {
            return Ok(());
        }
    } else if let Ok(running) = guest.life() {
        if !force {
            return Err(failure::running(&guest.name, "stop it first, or use 'pando rm --force'"));
        }
        stop::force(guest, &running).await?;
    }
    if !matches!(guest.state.get(), GuestState::Stopped | GuestState::Unreadable) {
        return Err(failure::busy(&guest.name, "changed"));
    }
    if !guest.ephemeral {
        nothing_is_mounted_in(&guest.directory(&daemon.places), &[])
            .map_err(|error| failure::io("removing the guest", guest.name.as_ref(), &error.into()))?;
        crate::crash::point("remove.begun");
        if guest.bound().is_some() {
            crate::state::record::room(&guest.directory(&daemon.places)).give_up();
        }
        let directory = guest.directory(&daemon.places);
        set_aside(&daemon.places, &directory)
            .map_err(|error| failure::io("removing the guest", guest.name.as_ref(), &error))?;
        crate::crash::point("remove.aside");
        forget(daemon, guest);
    }
    Ok(())
}

/// Forgets a guest that lasts and did not come to anything.
pub(crate) fn throw_away(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    discard(&daemon.places, &guest.directory(&daemon.places));
    forget(daemon, guest);
}

/// Forgets a guest, and throws away its files and the layers that only it stood on.
pub(crate) fn forget(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    daemon.guests.borrow_mut().remove(&guest.name);
    if guest.ephemeral {
        discard(&daemon.places, &guest.directory(&daemon.places));
    }
    discard_unused(daemon, &guest.record.borrow().layers);
    daemon.events.tell(guest.name.as_ref(), "remove", None);
    empty_trash(daemon.places.clone());
}

/// Throws away those layers that neither a guest nor an image stands on.
pub(crate) fn discard_unused(daemon: &Rc<Daemon>, layers: &[String]) {
    let (guests, images) = (daemon.guests.borrow(), daemon.images.borrow());
    for layer in layers.iter().filter(|layer| is_own(layer)) {
        let used = guests.values().any(|other| other.record.borrow().layers.contains(layer))
            || images.values().any(|image| image.record.layers.contains(layer));
        if !used {
            discard_layer(daemon, layer);
        }
    }
}

/// Whether a layer was made for guests, and is no tree of the host's.
pub(crate) fn is_own(layer: &str) -> bool {
    !layer.starts_with('/')
}

/// Throws away a layer that no guest stands on.
pub(crate) fn discard_layer(daemon: &Rc<Daemon>, layer: &str) {
    match crate::store::layers::stored(layer) {
        Some(_) => crate::store::collect::soon(daemon),
        None => discard(&daemon.places, &daemon.places.layers().join(layer)),
    }
}

/// Puts a directory where it is deleted later: gone by one rename.
fn set_aside(places: &Places, path: &Path) -> std::io::Result<()> {
    std::fs::rename(path, places.trash().join(crate::store::layers::unique()))
}

/// The same, for what nobody waits for.
pub(crate) fn discard(places: &Places, path: &Path) {
    if let Err(error) = set_aside(places, path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "throwing it away failed");
    }
}

/// Deletes what was set aside, in the background.
pub(crate) fn empty_trash(places: Places) {
    tokio::task::spawn_blocking(move || {
        let Ok(entries) = std::fs::read_dir(places.trash()) else { return };
        for entry in entries.flatten() {
            // What cannot be deleted, or what another thread deletes at the same time, is found next time.
            if let Err(error @ RemovalError::Mounted { .. }) = remove_tree(&entry.path()) {
                tracing::warn!("what was thrown away is kept: {error}");
            }
        }
    });
}

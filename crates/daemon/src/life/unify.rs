//! Sharing what guests have in common: those at rest at once, those that run when they are next started.
//!
//! The files of a running guest are only read. A change of them from outside would be seen by the guest or, worse, be undone by the overlay that it
//! runs on; so there is a mark, and the next start begins with it.

use super::{collect, fold, layers};
use crate::daemon::Daemon;
use crate::failure;
use crate::guest::Guest;
use crate::record::{DISK, FILES};
use pando_api::{Fault, GuestState, GuestUnification, Unification};
use pando_store::Worth;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// Says in a guest's directory that it is to be unified when it is next started.
const DUE: &str = "unify-at-start";

/// What an image costs that is not known yet, in bytes of disk.
const IMAGE: u64 = 3 << 20;

/// What a guest must save beyond the image that it gets, in bytes of disk.
const WORTHWHILE: u64 = 1 << 20;

/// Looks at all guests that last, and unifies those that are worth it.
pub(crate) async fn unify(daemon: &Rc<Daemon>, dry_run: bool) -> Result<Unification, Fault> {
    let guests: Vec<Rc<Guest>> = daemon.guests.borrow().values().filter(|guest| !guest.ephemeral).cloned().collect();
    let trees: Vec<PathBuf> =
        guests.iter().map(|guest| guest.directory(&daemon.places).join(FILES).join("upper")).collect();
    let store = Arc::clone(&daemon.store);
    let survey = collect::blocking(move || {
        let mounts = store.open()?;
        let survey = mounts.store().survey(&trees)?;
        let worth = survey.worth(mounts.store());
        Ok((survey.files, survey.read, worth))
    });
    let (files, read, worth) =
        survey.await?.map_err(|error| failure::store("looking through the guests", "store", &error))?;
    let mut told = Vec::new();
    for (guest, worth) in guests.iter().zip(worth).filter(|(_, worth)| worth.files > 0) {
        let outcome = if is_worth_it(daemon, guest, &worth) { act(daemon, guest, dry_run).await } else { "left" };
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        told.push(GuestUnification {
            name: guest.name.to_string(),
            files: number(worth.files),
            saves: number(worth.saves),
            outcome: outcome.to_owned(),
        });
    }
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Ok(Unification { files: number(files), read: number(read), guests: told })
}

/// Whether a guest saves more than the image costs that would be its own.
fn is_worth_it(daemon: &Daemon, guest: &Guest, worth: &Worth) -> bool {
    // Files on a disk of their own cannot be exchanged for others by a name.
    if guest.directory(&daemon.places).join(DISK).exists() {
        return false;
    }
    let record = guest.record.borrow();
    let sizes = record.layers.iter().map(|layer| layers::path(&daemon.places, layer).metadata());
    let image = sizes.map(|found| found.ok().filter(std::fs::Metadata::is_file).map_or(IMAGE, |image| image.len()));
    worth.saves > image.sum::<u64>() + WORTHWHILE
}

/// Unifies a guest if it is at rest.
async fn act(daemon: &Rc<Daemon>, guest: &Rc<Guest>, dry_run: bool) -> &'static str {
    let at_rest = guest.state.get() == GuestState::Stopped;
    if dry_run {
        return if at_rest { "shared" } else { "at next start" };
    }
    let doing = if at_rest { guest.begin("unified").ok() } else { None };
    if doing.is_none() || guest.state.get() != GuestState::Stopped {
        let due = guest.directory(&daemon.places).join(DUE);
        return if std::fs::write(due, "").is_ok() { "at next start" } else { "left" };
    }
    match fold::fold(daemon, guest).await {
        Ok(()) => {
            daemon.events.tell(guest.name.as_ref(), "unify", None);
            "shared"
        }
        Err(fault) => {
            tracing::warn!(%fault, guest = %guest.name, "it is left as it is");
            "left"
        }
    }
}

/// Does what was put off until the guest is started. It starts all the same if that fails.
pub(crate) async fn before_start(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    let due = guest.directory(&daemon.places).join(DUE);
    if guest.ephemeral || std::fs::remove_file(&due).is_err() {
        return;
    }
    match fold::fold(daemon, guest).await {
        Ok(()) => daemon.events.tell(guest.name.as_ref(), "unify", None),
        Err(fault) => tracing::warn!(%fault, guest = %guest.name, "it is started as it is"),
    }
}

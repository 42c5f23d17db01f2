//! Sharing what guests have in common: those at rest at once, those that run when they are next started.
//!
//! The files of a running guest are only read. A change of them from outside would be seen by the guest or, worse, be
//! undone by the overlay that it runs on; so there is a mark, and the next start begins with it. Where the file system
//! shares blocks, the kernel itself has running guests share them.

use crate::failure;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::record::FILES;
use crate::store::flatten::Pace;
use crate::store::{collect, flatten, layers};
use pando_api::{Fault, GuestState, GuestUnification, Progress, Unification};
use pando_guest::Places;
use pando_guest::root::LayerStore;
use pando_store::{LivelyShared, Survey, Worth};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, mpsc};

/// Says in a guest's directory that it is to be unified when it is next started.
const DUE: &str = "unify-at-start";

/// What an image costs that is not known yet, in bytes of disk.
const IMAGE: u64 = 3 << 20;

/// What a guest must save beyond the image that it gets, in bytes of disk.
const WORTHWHILE: u64 = 1 << 20;

/// Looks at all guests that last, and unifies those that are worth it.
pub(crate) async fn unify(
    daemon: &Rc<Daemon>,
    dry_run: bool,
    progress: &mpsc::Sender<Progress>,
) -> Result<Unification, Fault> {
    let guests: Vec<Rc<Guest>> = daemon.guests.borrow().values().filter(|guest| !guest.ephemeral).cloned().collect();
    let trees: Vec<PathBuf> =
        guests.iter().map(|guest| guest.directory(&daemon.places).join(FILES).join("upper")).collect();
    let (survey, worth) = look(&daemon.store, trees.clone(), progress.clone()).await?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let (mut told, mut live) = (Vec::new(), vec![false; guests.len()]);
    for (at, (guest, worth)) in guests.iter().zip(worth).enumerate().filter(|(_, (_, worth))| worth.files > 0) {
        let (stage, total) =
            (format!("sharing the files of guest '{}'", guest.name), Some(number(guests.len() as u64)));
        let _ = progress.send(Progress { stage, done: number(at as u64), total });
        let outcome =
            if is_worth_it(&daemon.places, guest, &worth) { act(daemon, guest, dry_run).await } else { "left" };
        // What was flattened has no files of its own any more.
        live[at] = outcome != "shared";
        let name = guest.name.to_string();
        let (files, saves) = (number(worth.files), number(worth.saves));
        told.push((at, GuestUnification { name, files, saves, outcome: outcome.to_owned(), live: 0 }));
    }
    let (files, read) = (number(survey.files), number(survey.read));
    if !dry_run {
        let _ = progress.send(Progress { stage: "sharing blocks".to_owned(), done: 0, total: None });
        let shared = share_live(&daemon.store, survey, trees, live).await?;
        for (at, guest) in &mut told {
            guest.live = number(shared.get(*at).map_or(0, |shared| shared.bytes));
        }
    }
    Ok(Unification { files, read, guests: told.into_iter().map(|(_, guest)| guest).collect() })
}

/// Looks at all files of the guests.
async fn look(
    store: &Arc<LayerStore>,
    trees: Vec<PathBuf>,
    progress: mpsc::Sender<Progress>,
) -> Result<(Survey, Vec<Worth>), Fault> {
    let store = Arc::clone(store);
    let survey = collect::blocking(move || {
        let mounts = store.open()?;
        let tell = |files: u64| {
            let done = i64::try_from(files).unwrap_or(i64::MAX);
            // A client that has gone does not want to know.
            let _ = progress.send(Progress { stage: "looking through the guests".to_owned(), done, total: None });
        };
        let survey = mounts.store().survey(&trees, &tell)?;
        let worth = survey.worth(mounts.store());
        Ok((survey, worth))
    });
    survey.await?.map_err(|error| failure::store("looking through the guests", "store", &error))
}

/// Has the files of chosen guests share blocks with what others have too, where their file system can do that.
async fn share_live(
    store: &Arc<LayerStore>,
    survey: Survey,
    trees: Vec<PathBuf>,
    chosen: Vec<bool>,
) -> Result<Vec<LivelyShared>, Fault> {
    let store = Arc::clone(store);
    let shared = collect::blocking(move || {
        let mounts = store.open()?;
        flatten::at_pace(Pace::Idle, || survey.share_live(mounts.store(), &trees, &chosen))
    });
    shared.await?.map_err(|error| failure::store("sharing blocks", "store", &error))
}

/// Whether a guest saves more than the image costs that would be its own.
fn is_worth_it(places: &Places, guest: &Guest, worth: &Worth) -> bool {
    // Files whose room is bounded cannot be exchanged for others by a name.
    if guest.bound().is_some() {
        return false;
    }
    let record = guest.record.borrow();
    let sizes = record.layers.iter().map(|layer| layers::path(places, layer).metadata());
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
    match flatten::flatten(daemon, guest, Pace::Idle).await {
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
    match flatten::flatten(daemon, guest, Pace::Awaited).await {
        Ok(()) => daemon.events.tell(guest.name.as_ref(), "unify", None),
        Err(fault) => tracing::warn!(%fault, guest = %guest.name, "it is started as it is"),
    }
}

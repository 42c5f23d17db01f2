//! What a new daemon does first: finds the guests that run, finishes or undoes what a crash left half done.

use crate::daemon::Daemon;
use crate::guest::{Guest, Running};
use crate::life::{connections, end, fold, image, remove};
use crate::link::{Link, TrunkStatus};
use crate::record::{self, GuestRecord, RECORD, RunRecord, SPEC};
use crate::unsettled;
use pando_api::{GuestState, Spec};
use pando_guest::seed::SeedLink;
use pando_guest::{GuestName, slot};
use pando_kernel::trusted_directory::TrustedDirectory;
use pando_kernel::{CallError, Context, id_map, pidfd};
use pando_seed::Request;
use rustix::fs::Mode;
use std::cell::RefCell;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;

/// Makes the directories that everything lies in.
pub(crate) fn directories(daemon: &Daemon) -> Result<(), CallError> {
    let places = &daemon.places;
    let make = |path: &Path, mode| {
        let made = TrustedDirectory::make(path, Mode::from_raw_mode(mode));
        made.map(drop).context(|| format!("making {}", path.display()))
    };
    // What is below holds setuid files of guests, and sockets: for root alone.
    for path in [
        places.state(),
        places.run(),
        places.seeds(),
        places.running(),
        places.guests(),
        places.layers(),
        places.images(),
        places.ephemeral(),
        places.trash(),
    ] {
        make(&path, 0o700)?;
    }
    make(&places.empty(), 0o555)?;
    for name in pando_guest::plan::STAGE {
        make(&places.stage().join(name), 0o555)?;
    }
    Ok(())
}

/// Loads the guests that last, and the images.
pub(crate) fn load(daemon: &Rc<Daemon>) -> Result<(), CallError> {
    let path = daemon.places.guests();
    let entries = std::fs::read_dir(&path).context(|| format!("reading {}", path.display()))?;
    for entry in entries.flatten() {
        let Some(name) = entry.file_name().to_str().and_then(|name| name.parse::<GuestName>().ok()) else {
            // Half made when the power went: it never was a guest.
            remove::discard(&daemon.places, &entry.path());
            continue;
        };
        let read = || -> Result<(GuestRecord, Spec), CallError> {
            let mut record: GuestRecord = record::read_toml(&entry.path().join(RECORD))?;
            fold::finish(&daemon.places, &entry.path(), &mut record)?;
            Ok((record, record::read_toml(&entry.path().join(SPEC))?))
        };
        match read() {
            Ok((record, spec)) => drop(daemon.guests.borrow_mut().insert(name.clone(), Guest::new(name, record, spec))),
            Err(_) if unsettled::is_marked(&entry.path()) => remove::discard(&daemon.places, &entry.path()),
            // Its files are left alone: a person can mend what was edited by hand.
            Err(error) => {
                tracing::error!(%error, guest = %name, "it cannot be read and is passed over; mend the file and restart the daemon")
            }
        }
    }
    image::load(daemon);
    Ok(())
}

/// Finds the guests that run, by their notes and their seeds.
pub(crate) async fn adopt(daemon: &Rc<Daemon>) {
    for (name, run) in record::all_runs(&daemon.places) {
        let known = daemon.guests.borrow().get(&name).cloned();
        let guest = match (known, &run.ephemeral) {
            (Some(guest), _) => guest,
            (None, Some(own)) => {
                let guest = Guest::passing(name.clone(), own.home.clone(), own.record.clone(), own.spec.clone());
                daemon.guests.borrow_mut().insert(name.clone(), Rc::clone(&guest));
                guest
            }
            (None, None) => {
                undo(daemon, &name, &run).await;
                continue;
            }
        };
        if run.boot != daemon.boot || !take_over(daemon, &guest, &run).await {
            undo(daemon, &name, &run).await;
            if guest.ephemeral {
                remove::forget(daemon, &guest);
            }
        }
    }
    halves(daemon);
    connections::adopt(daemon);
    if let Err(error) = daemon.networks.adopt(|slot| daemon.uses(slot)).await {
        tracing::warn!(%error, "what guests own of the host's network cannot be read; 'pando address' will fail");
    }
    let slot = |guest: &Rc<Guest>| Some((guest.running.borrow().as_ref()?.slot, guest.spec.borrow().clone()));
    let running: Vec<(u32, Spec)> = daemon.guests.borrow().values().filter_map(slot).collect();
    let images = daemon.images.borrow().keys().cloned().collect();
    if let Err(error) = daemon.private.adopt(running.iter().map(|(slot, _)| *slot).collect(), images).await {
        tracing::warn!(%error, "what guests have of the private network cannot be taken over");
    }
    let groups = |(slot, spec)| Some((slot, crate::bandwidth::group(&daemon.field, slot)?, spec));
    if let Err(error) = daemon.bandwidth.adopt(running.into_iter().filter_map(groups).collect()) {
        tracing::warn!(%error, "what guests have of bandwidth cannot be taken over");
    }
}

/// Clones that may have been made by halves: those that run are whole, the others go.
fn halves(daemon: &Rc<Daemon>) {
    let guests: Vec<_> = daemon.guests.borrow().values().filter(|guest| !guest.ephemeral).cloned().collect();
    for guest in guests {
        let directory = guest.directory(&daemon.places);
        if !unsettled::is_marked(&directory) {
            continue;
        }
        if guest.running.borrow().is_some() {
            unsettled::settle(daemon, directory);
        } else {
            tracing::info!(guest = %guest.name, "the clone was made by halves: it is undone");
            remove::throw_away(daemon, &guest);
        }
    }
}

/// Takes over a guest whose first process was made; `false` if it never was, or if its seed has gone and with it the guest.
async fn take_over(daemon: &Rc<Daemon>, guest: &Rc<Guest>, run: &RunRecord) -> bool {
    let path = daemon.places.seed(run.slot);
    let Ok(link) = SeedLink::connect(&path).and_then(Link::new) else { return false };
    let Some(TrunkStatus { seed, pid, ended }) = link.status().await else { return false };
    let processes = pidfd::open(seed).and_then(|seed| Ok((first_process(pid, ended, &seed)?, seed)));
    let (Ok((trunk, seed_process)), true) = (processes, pid != 0) else {
        link.quit();
        return false;
    };
    let namespace = guest.spec.borrow().user_namespace.then(|| id_map::open(seed)).and_then(Result::ok);
    let running = Rc::new(Running {
        slot: run.slot,
        link,
        seed: seed_process,
        pid,
        mounts: RefCell::new(crate::life::boot::mounts(pid)),
        trunk,
        namespace,
        started: run.started,
        errand: run.errand,
        started_by_clients: RefCell::new(HashSet::from([pid])),
        word: RefCell::default(),
        over: watch::Sender::new(None),
    });
    daemon.resources.adopt(guest, run);
    *guest.running.borrow_mut() = Some(Rc::clone(&running));
    guest.state.set(GuestState::Running);
    match ended {
        Some(status) => end::finish(daemon, guest, &running, Some(status)).await,
        None => {
            daemon.events.tell(guest.name.as_ref(), "adopt", None);
            end::watch(daemon, guest, &running);
            if !run.log_is_kept {
                daemon.logs.mind(guest.log(&daemon.places));
            } else if let Err(error) = running.link.seed().send(Request::Log { bound: daemon.logs.bound() }, &[]) {
                tracing::warn!(%error, guest = %guest.name, "its seed did not hear how large its log may be now");
            }
        }
    }
    true
}

/// The first process's descriptor. One that has ended was reaped by its seed, whose own descriptor then stands in: all that is still asked of it is
/// to be let go.
fn first_process(pid: i32, ended: Option<i32>, seed: &OwnedFd) -> std::io::Result<OwnedFd> {
    match ended {
        Some(_) => seed.try_clone(),
        None => pidfd::open(pid),
    }
}

/// A start that did not come to anything.
async fn undo(daemon: &Rc<Daemon>, name: &GuestName, run: &RunRecord) {
    const MOMENT: Duration = Duration::from_millis(2);
    const MOMENTS: u32 = 250;
    tracing::info!(guest = %name, slot = run.slot, "its start is undone");
    if run.boot == daemon.boot {
        // A seed that was not told that its guest stays dies with the daemon, but not at once; the guest's files are in use until then.
        for _ in 0..MOMENTS {
            if !slot::is_held(run.slot) {
                daemon.clear_slot(run.slot).await;
                break;
            }
            tokio::time::sleep(MOMENT).await;
        }
    }
    record::remove_run(&daemon.places, name);
}

/// Removes what nothing refers to: layers and files half made, cgroups of slots that nobody holds.
pub(crate) async fn sweep(daemon: &Rc<Daemon>) {
    let mut used: HashSet<String> =
        daemon.guests.borrow().values().flat_map(|guest| guest.record.borrow().layers.clone()).collect();
    used.extend(daemon.images.borrow().values().flat_map(|image| image.record.layers.clone()));
    // What an image that cannot be read stands on is not known.
    let all_known = image::unreadable(daemon).is_none();
    let names = |path: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    for layer in names(&daemon.places.layers()) {
        if all_known && remove::is_own(&layer) && !used.contains(&layer) {
            remove::discard(&daemon.places, &daemon.places.layers().join(layer));
        }
    }
    if daemon.store.exists() {
        // A crash between making a layer and its guest leaves one that nobody stands on.
        crate::life::collect::soon(daemon);
    }
    let passing = |guest: &Rc<Guest>| guest.ephemeral.then(|| guest.home.clone());
    let homes: HashSet<String> = daemon.guests.borrow().values().filter_map(passing).collect();
    for name in names(&daemon.places.ephemeral()) {
        // Files made ahead by an earlier daemon go as well: they are no guest's.
        if !homes.contains(&name) {
            remove::discard(&daemon.places, &daemon.places.ephemeral().join(name));
        }
    }
    remove::empty_trash(daemon.places.clone());
    sweep_slots(daemon).await;
}

/// Removes the cgroups of slots that nobody holds.
async fn sweep_slots(daemon: &Daemon) {
    for number in daemon.field.slots() {
        if !slot::is_held(number) {
            daemon.clear_slot(number).await;
        }
    }
}

/// Removes what groups are left of a daemon that was killed, when this one ends and makes no more. Who holds the slot does not tell: a Pando with
/// another root may have taken it since. Groups with a process in them stay; the seeds of a killed daemon die a moment after it.
pub(crate) async fn sweep_empty_slots(daemon: &Daemon) {
    const MOMENT: Duration = Duration::from_millis(5);
    const LOOKS: u32 = 20;
    for _ in 0..LOOKS {
        let left: Vec<u32> = daemon.field.slots().into_iter().filter(|number| !daemon.uses(*number)).collect();
        if left.is_empty() {
            return;
        }
        for number in left {
            if daemon.field.plot(number).remove().is_ok() {
                let _ = std::fs::remove_file(daemon.places.seed(number));
            }
        }
        tokio::time::sleep(MOMENT).await;
    }
}

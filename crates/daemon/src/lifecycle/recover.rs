//! What a new daemon does first: finds the guests that run, finishes or undoes what a crash left half done.

use crate::lifecycle::quarantine::Read;
use crate::lifecycle::takeover::Outcome;
use crate::lifecycle::{forget, quarantine, takeover};
use crate::network::connections;
use crate::state::daemon::Daemon;
use crate::state::damage::Damage;
use crate::state::guest::Guest;
use crate::state::record::RunRecord;
use crate::state::{record, unsettled};
use crate::store::{images, trash, unused_layers};
use pando_api::Spec;
use pando_guest::Places;
use pando_guest::{GuestName, slot};
use pando_kernel::file::trusted_directory::TrustedDirectory;
use pando_kernel::{CallError, Context};
use rustix::fs::Mode;
use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Makes the directories that everything lies in.
pub(crate) fn directories(places: &Places) -> Result<(), CallError> {
    let make = |path: &Path, mode| {
        let made = TrustedDirectory::make(path, Mode::from_raw_mode(mode));
        made.map(drop).context(|| format!("making {}", path.display()))
    };
    // What is below holds setuid files of guests, and sockets: for root alone.
    for path in [
        places.state(),
        places.run(),
        places.shims(),
        places.running(),
        places.guests(),
        places.layers(),
        places.images(),
        places.pulled(),
        places.arrived(),
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
            trash::discard(&daemon.places, &entry.path());
            continue;
        };
        let guest = match quarantine::read(&daemon.places, &entry.path()) {
            Ok(Read { record, spec, trouble }) => {
                let guest = Guest::new(name.clone(), record, spec);
                *guest.damage.borrow_mut() = trouble.map(|what| Damage { what, known: true });
                guest
            }
            Err(error) if quarantine::is_lasting(&error) && unsettled::is_marked(&entry.path()) => {
                trash::discard(&daemon.places, &entry.path());
                continue;
            }
            Err(error) => quarantine::unreadable(name.clone(), &error),
        };
        if let Some(trouble) = guest.trouble() {
            tracing::error!(guest = %name, "{trouble}");
        }
        daemon.guests.borrow_mut().insert(name, guest);
    }
    images::load(daemon);
    crate::store::pulled_images::load(daemon);
    images::forget_lost(daemon);
    Ok(())
}

/// Finds the guests that run, by their notes and their shims. An error means that the notes cannot be read: no guest is
/// touched then.
pub(crate) async fn adopt(daemon: &Rc<Daemon>) -> Result<(), CallError> {
    let until = takeover::deadline();
    let mut taken_over = Vec::new();
    for (name, run) in record::all_runs(&daemon.places)? {
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
        let outcome = if run.boot != daemon.boot {
            Outcome::Gone
        } else if guest.is_unreadable() {
            // Without its spec nobody knows how to work with it.
            Outcome::Unconnected(std::io::Error::other("what it is cannot be read"))
        } else {
            takeover::take_over(daemon, &guest, &run, None, until).await
        };
        match outcome {
            Outcome::TakenOver(running) => taken_over.push((guest, running)),
            Outcome::Unreached(link, error) => takeover::keep(daemon, &guest, run, (Some(link), &error)),
            Outcome::Unconnected(error) => takeover::keep(daemon, &guest, run, (None, &error)),
            Outcome::Gone => {
                undo(daemon, &name, &run).await;
                if guest.ephemeral {
                    forget::forget(daemon, &guest);
                }
            }
        }
    }
    halves(daemon);
    connections::adopt(daemon);
    if let Err(error) = daemon.networks.adopt(|slot| daemon.uses(slot)).await {
        tracing::warn!(%error, "what guests own of the host's network cannot be read; 'pando address' will fail");
    }
    let slot = |guest: &Rc<Guest>| Some((guest.slot()?, guest.spec.borrow().clone()));
    let running: Vec<(u32, Spec)> = daemon.guests.borrow().values().filter_map(slot).collect();
    let images = daemon.images.borrow().keys().cloned().collect();
    if let Err(error) = daemon.private.adopt(&running.iter().map(|(slot, _)| *slot).collect(), &images).await {
        tracing::warn!(%error, "what guests have of a private network cannot be taken over");
    }
    let groups = |(slot, spec)| Some((slot, crate::network::bandwidth::group(&daemon.field, slot)?, spec));
    if let Err(error) = daemon.bandwidth.adopt(running.into_iter().filter_map(groups).collect()) {
        tracing::warn!(%error, "what guests have of bandwidth cannot be taken over");
    }
    taken_over.iter().for_each(|(guest, running)| takeover::attend(&daemon.lives, guest, running.as_ref()));
    Ok(())
}

/// Clones that may have been made by halves: those that run are whole, the others go.
fn halves(daemon: &Rc<Daemon>) {
    let guests: Vec<_> = daemon.guests.borrow().values().filter(|guest| !guest.ephemeral).cloned().collect();
    for guest in guests {
        let directory = guest.directory(&daemon.places);
        if !unsettled::is_marked(&directory) {
            continue;
        }
        if guest.slot().is_some() {
            daemon.unsettled.settle(directory);
        } else {
            tracing::info!(guest = %guest.name, "the clone was made by halves: it is undone");
            forget::throw_away(daemon, &guest);
        }
    }
}

/// A start that did not come to anything.
async fn undo(daemon: &Rc<Daemon>, name: &GuestName, run: &RunRecord) {
    const MOMENT: Duration = Duration::from_millis(2);
    const MOMENTS: u32 = 250;
    tracing::info!(guest = %name, slot = run.slot, "its start is undone");
    if run.boot == daemon.boot {
        // A seed that was not told that its guest stays dies with the daemon, but not at once; the guest's files are in
        // use until then.
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
    used.extend(daemon.pulled.layers());
    // What an image or a guest that cannot be read stands on is not known.
    let all_known =
        daemon.unreadable_image().is_none() && !daemon.guests.borrow().values().any(|guest| guest.is_unreadable());
    let names = |path: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    for layer in names(&daemon.places.layers()) {
        if all_known && unused_layers::is_own(&layer) && !used.contains(&layer) {
            trash::discard(&daemon.places, &daemon.places.layers().join(layer));
        }
    }
    if daemon.store.exists() {
        // A crash between making a layer and its guest leaves one that nobody stands on.
        crate::store::collect::soon(daemon);
    }
    let passing = |guest: &Rc<Guest>| guest.ephemeral.then(|| guest.home.clone());
    let homes: HashSet<String> = daemon.guests.borrow().values().filter_map(passing).collect();
    for name in names(&daemon.places.ephemeral()) {
        // Files made ahead by an earlier daemon go as well: they are no guest's.
        if !homes.contains(&name) {
            trash::discard(&daemon.places, &daemon.places.ephemeral().join(name));
        }
    }
    trash::empty_trash(daemon.places.clone());
    crate::store::pulled_images::recover_arrivals(daemon);
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

/// Removes what groups are left of a daemon that was killed, when this one ends and makes no more. Who holds the slot
/// does not tell: a Pando with another root may have taken it since. Groups with a process in them stay; the shims of a
/// killed daemon die a moment after it.
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
                let _ = std::fs::remove_file(daemon.places.shim(number));
            }
        }
        tokio::time::sleep(MOMENT).await;
    }
}

//! Changing a guest's spec.

use crate::failure;
use crate::lifecycle::settings_key::{Outcome, assign};
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::record;
use crate::state::record::SPEC;
use pando_api::{Fault, FaultKind, Spec};
use pando_guest::Places;
use pando_guest::policy::{grants, profile};
use pando_limit::disk::Means;
use pando_limit::limits::Disk;
use std::rc::Rc;

/// Applies assignments: all of them, or none.
pub(crate) async fn set(daemon: &Daemon, guest: &Rc<Guest>, assignments: &[String]) -> Result<Outcome, Fault> {
    let _doing = guest.begin("changed")?;
    guest.is_sound()?;
    if guest.ephemeral {
        return Err(failure::bad(
            guest.name.as_ref(),
            format!("guest '{}' goes away with its command; there is nothing to set on it", guest.name),
        ));
    }
    let (spec, outcome) = assign(&guest.spec.borrow(), assignments)?;
    crate::lifecycle::create::check(&guest.name, &spec)?;
    crate::network::free_port::are_chosen(&spec)?;
    crate::network::named_networks::check(daemon, &spec)?;
    crate::launch::host_devices::check(daemon, &spec)?;
    daemon.resources.borne(&spec)?;
    let resized = resized(&daemon.places, guest, &spec)?;
    let running = guest.running.borrow().clone();
    if let Some(running) = running {
        daemon.resources.change(&guest.name, &profile::completed(&spec), &running)?;
    }
    let slot = guest.running.borrow().as_ref().map(|running| running.slot);
    if let Some(slot) = slot.filter(|_| spec.net != guest.spec.borrow().net) {
        crate::network::address::grant(daemon, &guest.name, &spec, slot).await?;
    }
    if let Some(disk) = resized {
        let done = resize(&daemon.places, guest, disk).await;
        if done.is_err()
            && let Some(running) = guest.running.borrow().as_ref()
        {
            // What was before could be had before.
            let _ = daemon.resources.change(&guest.name, &profile::completed(&guest.spec.borrow()), running);
        }
        done?;
    }
    let path = guest.directory(&daemon.places).join(SPEC);
    record::write_kept(&path, &spec)
        .map_err(|error| failure::call("changing the guest's spec", guest.name.as_ref(), &error))?;
    if spec.health != guest.spec.borrow().health {
        guest.is_asked_otherwise.notify_one();
    }
    let policy_changed = spec.restart != guest.spec.borrow().restart;
    *guest.spec.borrow_mut() = spec;
    if policy_changed && (guest.life().is_ok() || guest.spec.borrow().restart.is_no()) {
        guest.is_wanted(&daemon.places, guest.life().is_ok());
    }
    daemon.events.tell(guest.name.as_ref(), "set", Some(assignments.join(" ")));
    Ok(outcome)
}

/// The room that the guest's own files are to have, if it is other than it was.
fn resized(places: &Places, guest: &Guest, spec: &Spec) -> Result<Option<Disk>, Fault> {
    let own = guest.spec.borrow();
    if spec.disk == own.disk {
        return Ok(None);
    }
    let read = |spec: &Spec| grants::read(spec).map_err(|refusal| failure::bad("disk.size", refusal.to_string()));
    let (before, after) = (read(&own)?.disk, read(spec)?.disk);
    let by_project = matches!(record::room(&guest.directory(places)).means(), Some(Means::Project(_)));
    if before.size.is_some() != after.size.is_some() || before.inodes != after.inodes && !by_project {
        let message = "whether a guest has a disk, and disk.inodes where no project quota holds them, are settled when it is created: 'pando create NEW --from guest:NAME --disk SIZE --inodes N' makes a copy with others";
        return Err(failure::bad("disk", message));
    }
    let smaller = after.size < before.size;
    if smaller && !by_project && guest.running.borrow().is_some() {
        let message = format!("disk.size of guest '{}' cannot become less while it runs; stop it first", guest.name);
        return Err(failure::bad("disk.size", message));
    }
    Ok(Some(after).filter(|after| *after != before))
}

/// Gives the guest's own files other room: with an image a larger one while it runs, any while it does not.
async fn resize(places: &Places, guest: &Guest, disk: Disk) -> Result<(), Fault> {
    let room = record::room(&guest.directory(places));
    let runs = guest.running.borrow().is_some();
    let done = tokio::task::spawn_blocking(move || room.change(&disk, runs)).await;
    let done =
        done.map_err(|error| failure::bad("disk.size", format!("changing the disk failed inside Pando: {error}")))?;
    done.map_err(|error| match error.source.raw_os_error() {
        Some(libc::EPERM) if runs => {
            let message = format!("the disk of guest '{}' cannot grow while it runs: this host's root may not make a file system larger that is in use (CAP_SYS_RESOURCE); stop it first", guest.name);
            Fault::new(FaultKind::Unavailable, guest.name.as_ref(), message)
        }
        _ => failure::call("changing the guest's disk", guest.name.as_ref(), &error),
    })
}

//! Having a guest's processes stand still, and go on (cgroup.freeze, since Linux 5.2).

use crate::failure;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::record;
use pando_api::{Fault, FaultKind};
use pando_kernel::Context;
use pando_kernel::cgroup::Field;
use std::path::PathBuf;
use std::rc::Rc;

/// Has a guest that runs stand still.
pub(crate) fn pause(daemon: &Daemon, guest: &Rc<Guest>) -> Result<(), Fault> {
    let _doing = guest.begin("paused")?;
    guest.life()?;
    if guest.paused.get() {
        return Err(failure::paused(&guest.name));
    }
    // The next daemon has to know it before it is so: what stands still unknown to it nobody lets go on.
    note(daemon, guest, true)?;
    if let Err(error) = stand_still(&daemon.field, guest, true) {
        let _ = note(daemon, guest, false);
        return Err(unable(guest, "pausing", &error));
    }
    guest.paused.set(true);
    daemon.events.tell(guest.name.as_ref(), "pause", None);
    Ok(())
}

/// Has it go on.
pub(crate) fn unpause(daemon: &Daemon, guest: &Rc<Guest>) -> Result<(), Fault> {
    let _doing = guest.begin("unpaused")?;
    guest.life()?;
    if !guest.paused.get() {
        let message = format!("guest '{}' is not paused", guest.name);
        return Err(Fault::new(FaultKind::BadRequest, guest.name.as_ref(), message));
    }
    go_on(daemon, guest)
}

/// Has a guest go on if it is paused: it is to hear something.
pub(crate) fn go_on(daemon: &Daemon, guest: &Guest) -> Result<(), Fault> {
    if !guest.paused.get() {
        return Ok(());
    }
    stand_still(&daemon.field, guest, false).map_err(|error| unable(guest, "unpausing", &error))?;
    guest.paused.set(false);
    note(daemon, guest, false)?;
    daemon.events.tell(guest.name.as_ref(), "unpause", None);
    Ok(())
}

/// Has a guest's processes stand still, or go on.
pub(crate) fn stand_still(field: &Field, guest: &Guest, still: bool) -> Result<(), String> {
    let Some(slot) = guest.running.borrow().as_ref().map(|running| running.slot) else { return Ok(()) };
    let group: Option<PathBuf> = field.plot(slot).guest();
    let file = group.map(|group| group.join("cgroup.freeze")).ok_or("this host has no version 2 of control groups")?;
    let written = std::fs::write(&file, if still { "1" } else { "0" });
    written.context(|| format!("writing {}", file.display())).map_err(|error| error.to_string())
}

/// Writes down whether it is paused, for the next daemon.
fn note(daemon: &Daemon, guest: &Guest, paused: bool) -> Result<(), Fault> {
    record::change_run(&daemon.places, &guest.name, |run| run.paused = paused)
        .map_err(|error| failure::call("noting that the guest is paused", guest.name.as_ref(), &error))
}

fn unable(guest: &Guest, doing: &str, error: &str) -> Fault {
    Fault::new(FaultKind::Unavailable, guest.name.as_ref(), format!("{doing} guest '{}' failed: {error}", guest.name))
}

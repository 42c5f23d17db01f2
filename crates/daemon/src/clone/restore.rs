//! The frozen guest itself, out of its image: a clone that has its name, its addresses and its machine id, once it is
//! at rest.

use crate::clone::clone_guest;
use crate::clone::identity::Identity;
use crate::failure;
use crate::lifecycle::remove;
use crate::network::{address, connections, named_networks};
use crate::state::daemon::Daemon;
use crate::state::image::HeldImage;
use crate::store::images;
use pando_api::{Fault, GuestState};
use pando_guest::GuestName;
use std::rc::Rc;

/// Makes the guest that was frozen; its name. If that fails, the image is as good as before.
pub(crate) async fn restore(daemon: &Rc<Daemon>, name: &str, replace: bool) -> Result<String, Fault> {
    let held = images::find(daemon, name)?;
    let guest: GuestName = held.record.guest.parse().map_err(|error| failure::bad_name(&held.record.guest, &error))?;
    address::check(&held.record.spec)?;
    named_networks::check(daemon, &held.record.spec)?;
    check(daemon, &held, &guest, replace)?;
    let frozen = images::wake(daemon, &held).await?;
    make_way(daemon, &held, &guest, replace).await?;
    let identity = Identity::Same(connections::still_good(daemon, &held));
    clone_guest::clone(daemon, &held, &frozen, (guest.as_ref(), &identity)).await?;
    daemon.events.tell(guest.as_ref(), "restore", Some(held.name.clone()));
    Ok(guest.to_string())
}

/// Whether the guest of that name, if there is one, may be replaced by what it was.
fn check(daemon: &Daemon, held: &HeldImage, name: &GuestName, replace: bool) -> Result<(), Fault> {
    let Some(guest) = daemon.guests.borrow().get(name).cloned() else { return Ok(()) };
    if guest.state.get() != GuestState::Stopped {
        return Err(failure::running(name, "stop it first; what it was frozen as would take its name and addresses"));
    }
    let unchanged = guest.record.borrow().frozen_into.as_ref() == Some(&held.name);
    if unchanged || replace {
        return Ok(());
    }
    let message = format!(
        "guest '{name}' was not ended by being frozen into image '{0}', or has been started since: its files may be newer. \
         'pando restore --replace {0}' gives them up",
        held.name
    );
    Err(failure::bad(name.as_ref(), message))
}

/// Removes the guest of that name.
async fn make_way(daemon: &Rc<Daemon>, held: &HeldImage, name: &GuestName, replace: bool) -> Result<(), Fault> {
    // It may have been started while the image was read from the disk.
    check(daemon, held, name, replace)?;
    let guest = daemon.guests.borrow().get(name).cloned();
    match guest {
        Some(guest) => remove::remove(daemon, &guest, false).await,
        None => Ok(()),
    }
}

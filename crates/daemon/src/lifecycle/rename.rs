//! Giving a guest another name.

use crate::failure;
use crate::network::connections;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::unsettled;
use pando_api::{Fault, GuestState};
use pando_guest::GuestName;
use std::fs::File;
use std::rc::Rc;

/// Renames a guest at rest: its directory, which is the guest. A running one is known by its name in too many places:
/// its network, its note, the names that others look it up by.
pub(crate) fn rename(daemon: &Rc<Daemon>, guest: &Rc<Guest>, to: &str) -> Result<(), Fault> {
    let _doing = guest.begin("renamed")?;
    guest.is_sound()?;
    let name: GuestName = to.parse().map_err(|error| failure::bad_name(to, &error))?;
    if guest.state.get() != GuestState::Stopped || guest.ephemeral {
        return Err(failure::running(
            &guest.name,
            "stop it first: its name is that of its network and of its processes too",
        ));
    }
    if let Some(image) = guest.record.borrow().frozen_into.as_deref() {
        let why = format!(
            "guest '{}' was ended by being frozen into image '{image}', which knows it by its name: rename it when it was restored ('pando restore {image}') and stopped, or make it anew ('pando clone {image} {name}')",
            guest.name
        );
        return Err(failure::bad(guest.name.as_ref(), why));
    }
    if daemon.guests.borrow().contains_key(&name) || daemon.making.borrow().contains(&name) {
        return Err(failure::exists(&name));
    }
    let (from, new) = (guest.directory(&daemon.places), daemon.places.guest(&name));
    if unsettled::is_marked(&from) {
        // It is being written to the disk under its name.
        return Err(failure::busy(&guest.name, "written to the disk"));
    }
    connections::give_up_of(daemon, guest);
    guest.restarts.give_up();
    let moved = std::fs::rename(&from, &new).and_then(|()| File::open(daemon.places.guests())?.sync_all());
    moved.map_err(|error| failure::io("renaming the guest", guest.name.as_ref(), &error))?;
    let renamed = Guest::new(name.clone(), guest.record.borrow().clone(), guest.spec.borrow().clone());
    let mut guests = daemon.guests.borrow_mut();
    guests.remove(&guest.name);
    guests.insert(name, renamed);
    drop(guests);
    daemon.events.tell(guest.name.as_ref(), "rename", Some(to.to_owned()));
    Ok(())
}

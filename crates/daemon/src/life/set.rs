//! Changing a guest's spec.

use crate::daemon::Daemon;
use crate::failure;
use crate::guest::Guest;
use crate::record::{self, SPEC};
use crate::settings_key::{Outcome, assign};
use pando_api::Fault;
use pando_guest::policy::profile;
use std::rc::Rc;

/// Applies assignments: all of them, or none.
pub(crate) async fn set(daemon: &Daemon, guest: &Rc<Guest>, assignments: &[String]) -> Result<Outcome, Fault> {
    let _doing = guest.begin("changed")?;
    if guest.ephemeral {
        return Err(failure::bad(
            guest.name.as_ref(),
            format!("guest '{}' goes away with its command; there is nothing to set on it", guest.name),
        ));
    }
    let (spec, outcome) = assign(&guest.spec.borrow(), assignments)?;
    super::create::check(&guest.name, &spec)?;
    daemon.resources.borne(&spec)?;
    if spec.disk != guest.spec.borrow().disk {
        let message = "disk.size and disk.inodes are given when a guest is created: 'pando create NEW --from guest:NAME --disk SIZE' makes a copy with another";
        return Err(failure::bad("disk", message));
    }
    let running = guest.running.borrow().clone();
    if let Some(running) = running {
        daemon.resources.change(&guest.name, &profile::completed(&spec), &running)?;
    }
    let slot = guest.running.borrow().as_ref().map(|running| running.slot);
    if let Some(slot) = slot.filter(|_| spec.net != guest.spec.borrow().net) {
        super::address::grant(daemon, &guest.name, &spec, slot).await?;
    }
    let path = guest.directory(&daemon.places).join(SPEC);
    record::write_toml(&path, &spec)
        .map_err(|error| failure::call("changing the guest's spec", guest.name.as_ref(), &error))?;
    *guest.spec.borrow_mut() = spec;
    daemon.events.tell(guest.name.as_ref(), "set", Some(assignments.join(" ")));
    Ok(outcome)
}

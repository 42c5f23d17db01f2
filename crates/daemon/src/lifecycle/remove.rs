//! Removing guests, and what only they needed.

use crate::failure;
use crate::lifecycle::forget::forget;
use crate::lifecycle::preempt::preempt;
use crate::lifecycle::{kill, takeover};
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::store::trash::set_aside;
use pando_api::{Fault, GuestState};
use pando_kernel::file::tree_removal::nothing_is_mounted_in;
use std::rc::Rc;
use std::time::Duration;

/// Removes a guest at rest; with `force`, a running one too, whatever else is being done to it.
pub(crate) async fn remove(daemon: &Rc<Daemon>, guest: &Rc<Guest>, force: bool) -> Result<(), Fault> {
    let doing = "removed";
    // What follows may fail, and it is to be gone all the same.
    if force {
        guest.is_wanted(&daemon.places, false);
    }
    let _doing = match force {
        false => guest.begin_in_trouble(doing)?,
        true => match preempt(daemon, guest, doing, Duration::ZERO).await? {
            Some(doing) => doing,
            None => return Ok(()),
        },
    };
    if guest.life().is_err() {
        guest.is_wanted(&daemon.places, false);
    }
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
        kill::force(guest, &running).await?;
    } else if force {
        kill::between_lives(guest).await?;
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

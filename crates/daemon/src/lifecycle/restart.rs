//! Stopping a guest and starting it again.

use crate::failure;
use crate::lifecycle::{quarantine, start, stop};
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::store::unify;
use pando_api::Fault;
use std::rc::Rc;

/// Stops it if it runs, and starts it again.
pub(crate) async fn restart(daemon: &Rc<Daemon>, guest: &Rc<Guest>, grace: Option<u32>) -> Result<(), Fault> {
    let _doing = guest.begin("restarted")?;
    quarantine::look_again(daemon, guest);
    guest.is_sound()?;
    if guest.ephemeral {
        return Err(failure::bad(
            guest.name.as_ref(),
            format!("guest '{}' goes away with its command and cannot be restarted", guest.name),
        ));
    }
    if let Ok(running) = guest.life() {
        // Its policy has nothing to do with this end.
        guest.is_wanted(&daemon.places, false);
        let halted = stop::halt(daemon, guest, &running, None, grace).await;
        if halted.is_err() {
            guest.is_wanted(&daemon.places, true);
        }
        halted?;
    }
    unify::before_start(daemon, guest).await;
    start::anew(daemon, guest).await
}

//! Starting what is to run when the machine boots, or when a daemon takes another's place.

use crate::lifecycle::start;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::record;
use crate::supervision::boot_plan::{AtRest, order};
use crate::supervision::restarts;
use pando_api::GuestState;
use std::rc::Rc;
use std::time::Duration;

/// The file with the boot in which guests were started last.
const LAST_BOOT: &str = "boot";

/// Starts them, one after another.
pub(crate) async fn start_wanted(daemon: Rc<Daemon>) {
    let path = daemon.places.state().join(LAST_BOOT);
    let machine_boots = std::fs::read_to_string(&path).map_or(true, |last| last.trim() != daemon.boot);
    let at_rest: Vec<_> = daemon.guests.borrow().values().filter_map(found).collect();
    let (wanted, others) = order(at_rest, machine_boots);
    for other in others.iter().filter_map(|other| daemon.guest(&other.name).ok()) {
        // The next daemon of this boot is not to start it either.
        other.is_wanted(&daemon.places, false);
    }
    for wanted in wanted {
        let Ok(guest) = daemon.guest(&wanted.name) else { continue };
        let started = match machine_boots {
            true => start::at_boot(&daemon, &guest).await,
            false => start::by_policy(&daemon, &guest).await,
        };
        match started {
            Ok(()) if machine_boots => {
                tokio::time::sleep(Duration::from_secs(wanted.boot.delay.into())).await;
            }
            Ok(()) => {}
            Err(fault) => restarts::failed(&daemon, &guest, &fault),
        }
    }
    // One that ends before this does the rest of it.
    if machine_boots && let Err(error) = record::replace(&path, daemon.boot.as_bytes(), true) {
        tracing::warn!(%error, "the next daemon will start guests as if the machine had just booted");
    }
}

fn found(guest: &Rc<Guest>) -> Option<AtRest> {
    let (spec, record) = (guest.spec.borrow(), guest.record.borrow());
    let at_rest = guest.state.get() == GuestState::Stopped && !guest.ephemeral;
    at_rest.then(|| AtRest {
        name: guest.name.to_string(),
        restart: spec.restart,
        boot: spec.boot.clone(),
        up: record.up,
        was_run: record.exit_code.is_some(),
    })
}

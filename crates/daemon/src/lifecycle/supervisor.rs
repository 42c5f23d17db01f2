//! The supervisor: what happens beside a guest's life, and what comes after it.
//!
//! It alone starts a guest again that has asked for that (reboot(2)), or whose restart policy has it so. Nothing below
//! it knows of it: lives come to it by [`Lives`](crate::state::lives::Lives).

use crate::freeze::self_freeze;
use crate::lifecycle::end::{self, Next};
use crate::lifecycle::start;
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use crate::state::lives::Life;
use crate::supervision::restarts;
use std::rc::Rc;

/// Watches over every life that begins, for as long as the daemon runs.
pub(crate) async fn supervise(daemon: Rc<Daemon>) {
    let Some(mut lives) = daemon.lives.listen() else { return };
    while let Some(Life { guest, running }) = lives.recv().await {
        self_freeze::serve_while_it_runs(&daemon, &guest, &running);
        let daemon = Rc::clone(&daemon);
        tokio::task::spawn_local(async move {
            let status = end::comes(&daemon, &guest, &running).await;
            finish(&daemon, &guest, &running, status).await;
        });
    }
}

/// Clears away what a life leaves, and starts the guest again if it asked for that or its policy does.
pub(crate) async fn finish(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Rc<Running>, status: Option<i32>) {
    let next = end::clear_away(daemon, guest, running, status).await;
    if next == Next::StartAgain {
        daemon.events.tell(guest.name.as_ref(), "reboot", None);
        match start::again(daemon, guest).await {
            Ok(()) => return,
            Err(fault) => tracing::warn!(%fault, guest = %guest.name, "starting it again failed"),
        }
    }
    end::rest(daemon, guest);
    if let Next::StartAfter(pause) = next {
        restarts::tell(daemon, guest, pause);
        restarts::arrange(daemon, guest, pause);
    }
}

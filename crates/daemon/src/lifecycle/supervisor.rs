//! The supervisor: what happens beside a guest's life, and what comes after it.
//!
//! It alone starts a guest again that has asked for that (reboot(2)), or whose restart policy has it so. Nothing below
//! it knows of it: lives come to it by [`Lives`](crate::state::lives::Lives).

use crate::freeze::self_freeze;
use crate::lifecycle::end::{self, Next};
use crate::lifecycle::kill::PATIENCE;
use crate::lifecycle::start;
use crate::state::daemon::Daemon;
use crate::state::guest::{Doing, Guest, Running};
use crate::state::lives::Life;
use crate::supervision::{health, restarts};
use std::rc::Rc;
use std::time::Duration;

/// Watches over every life that begins, for as long as the daemon runs.
pub(crate) async fn supervise(daemon: Rc<Daemon>) {
    let Some(mut lives) = daemon.lives.listen() else { return };
    while let Some(Life { guest, running }) = lives.recv().await {
        self_freeze::serve_while_it_runs(&daemon, &guest, &running);
        health::watch(&daemon, &guest, &running);
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
    if let Next::StartAgain(pause) = next
        && let Some(_doing) = comes_again(guest, pause).await
    {
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

/// Waits until a guest that has asked for it may be started again. Nothing where somebody wants it to be at rest, or
/// something else is being done to it all the time.
async fn comes_again(guest: &Rc<Guest>, pause: Duration) -> Option<Doing> {
    // Somebody may have asked for that while the last life was cleared away, and waits for it now.
    if guest.restarts.is_down() {
        return None;
    }
    // It is neither at rest nor due by a policy, so that nobody is told of a moment.
    let turn = guest.restarts.arrange(0);
    let begun = async {
        tokio::time::sleep(pause).await;
        guest.begin_within("started", PATIENCE).await.ok()
    };
    let begun = tokio::select! {
        begun = begun => begun,
        () = guest.restarts.until_given_up(turn) => None,
    };
    let is_wanted = guest.restarts.is_wanted(turn) && !guest.restarts.is_down();
    guest.restarts.give_up();
    begun.filter(|_| is_wanted)
}

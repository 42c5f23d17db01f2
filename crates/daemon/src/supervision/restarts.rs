//! Starting guests again, as their policies have it.

use crate::lifecycle::start;
use crate::state::daemon::Daemon;
use crate::state::ending::Ending;
use crate::state::events::now_ms;
use crate::state::guest::Guest;
use crate::supervision::restart_plan::{PastLife, pause};
use pando_api::{Fault, FaultKind};
use std::rc::Rc;
use std::time::Duration;

/// How long is waited for a guest that something else is being done to.
const BUSY: Duration = Duration::from_secs(1);

/// Starts a guest at rest after a pause, unless somebody starts, stops or removes it before.
pub(crate) fn arrange(daemon: &Rc<Daemon>, guest: &Rc<Guest>, pause: Duration) {
    let due_ms = now_ms().saturating_add(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX));
    let turn = guest.restarts.arrange(due_ms);
    let (daemon, guest) = (Rc::clone(daemon), Rc::clone(guest));
    tokio::task::spawn_local(async move {
        tokio::time::sleep(pause).await;
        start_if_wanted(&daemon, &guest, turn).await;
    });
}

async fn start_if_wanted(daemon: &Rc<Daemon>, guest: &Rc<Guest>, turn: u64) {
    while guest.restarts.is_wanted(turn) {
        match start::by_policy(daemon, guest).await {
            Ok(()) => return,
            Err(Fault { kind: FaultKind::Busy | FaultKind::GuestRunning, .. }) => tokio::time::sleep(BUSY).await,
            Err(fault) => return failed(daemon, guest, &fault),
        }
    }
}

/// A start that fails is a life that failed at once.
pub(crate) fn failed(daemon: &Rc<Daemon>, guest: &Rc<Guest>, fault: &Fault) {
    tracing::warn!(%fault, guest = %guest.name, "starting it again failed");
    daemon.events.tell(guest.name.as_ref(), "restart", Some(format!("failed: {}", fault.message)));
    after_unseen_end(daemon, guest);
}

/// What follows a life of which nobody saw how it ended.
pub(crate) fn after_unseen_end(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    if !guest.record.borrow().up {
        return;
    }
    let next = follow(guest, past_life(guest, Ending::Unknown, Duration::ZERO));
    if let Err(fault) = guest.remember(&daemon.places) {
        tracing::warn!(%fault, guest = %guest.name, "how often it was started again is not written down");
    }
    match next {
        Some(pause) => {
            tell(daemon, guest, pause);
            arrange(daemon, guest, pause);
        }
        None => guest.restarts.give_up(),
    }
}

/// The life of a guest that is over.
pub(crate) fn past_life(guest: &Guest, ending: Ending, lasted: Duration) -> PastLife {
    let restarts = guest.record.borrow().restarts;
    PastLife { ending, lasted, short_before: guest.restarts.short_lives.get(), restarts }
}

/// What follows a life, noted in the guest's record, which is yet to be written: the pause until the next one.
pub(crate) fn follow(guest: &Guest, life: PastLife) -> Option<Duration> {
    let mut record = guest.record.borrow_mut();
    let pause = pause(guest.spec.borrow().restart, life).filter(|_| record.up);
    guest.restarts.short_lives.set(life.short_lives());
    match pause {
        Some(_) => record.restarts = record.restarts.saturating_add(1),
        None => record.up = false,
    }
    pause
}

/// Tells that a guest will be started again.
pub(crate) fn tell(daemon: &Daemon, guest: &Guest, pause: Duration) {
    let detail = format!("in {} ms, by its policy {}", pause.as_millis(), guest.spec.borrow().restart);
    daemon.events.tell(guest.name.as_ref(), "restart", Some(detail));
}

//! Ending a guest without asking it, and waiting until it is at rest.

use crate::state::guest::{Guest, Running};
use pando_api::{Fault, FaultKind, GuestState};
use std::rc::Rc;
use std::time::Duration;

/// Stops it without asking, whatever it is doing.
pub(crate) async fn force(guest: &Rc<Guest>, running: &Running) -> Result<(), Fault> {
    guest.state.set(GuestState::Stopping);
    kill_all(running);
    gone(guest, PATIENCE).await
}

/// The kernel ends everything in the guest's pid namespace with its first process. That it may have ended is what was
/// wanted.
pub(crate) fn kill_all(running: &Running) {
    let _ = running.first.signal(libc::SIGKILL);
}

/// Waits until the guest is at rest.
pub(crate) async fn gone(guest: &Rc<Guest>, limit: Duration) -> Result<(), Fault> {
    let mut ends = guest.ends.subscribe();
    let at_rest = async {
        while guest.state.get() != GuestState::Stopped {
            if ends.changed().await.is_err() {
                break;
            }
        }
    };
    tokio::time::timeout(limit, at_rest).await.map_err(|_| {
        let message = format!(
            "guest '{}' did not end within {} s, although it was killed; a process of it may be stuck in the kernel: see 'pando ps {}'",
            guest.name,
            limit.as_secs(),
            guest.name
        );
        Fault::new(FaultKind::Failed, guest.name.as_ref(), message)
    })
}

/// Waits until a guest is at rest that is in no life. One that has asked to be started again is about to be: nobody may
/// believe that it has ended.
pub(crate) async fn between_lives(guest: &Rc<Guest>) -> Result<(), Fault> {
    match guest.state.get() {
        GuestState::Stopping | GuestState::Starting => gone(guest, PATIENCE).await,
        _ => Ok(()),
    }
}

/// Waits for the end of a guest that is about to end.
pub(crate) async fn has_ended(guest: &Rc<Guest>) -> Result<(), Fault> {
    gone(guest, PATIENCE).await
}

/// How long a killed guest may take to go: its processes may be deep in the kernel.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

//! Ending a guest that something else is being done to: a freeze, a start, a copy.
//!
//! Whoever wants a guest to end is not refused for that. What is being done may finish first, for as long as a guest
//! may take that is asked to stop. Then the guest is killed, and everything that waits for a process of it fails.

use crate::lifecycle::kill::PATIENCE;
use crate::state::daemon::Daemon;
use crate::state::guest::{Doing, Guest};
use pando_api::Fault;
use std::rc::Rc;
use std::time::Duration;

/// Begins to end a guest, `grace` after which whatever else is being done to it is cut off. There is nothing left to
/// do where the guest has gone by then.
///
/// # Errors
///
/// Busy where that is still being done a minute after the guest was killed.
pub(crate) async fn preempt(
    daemon: &Daemon,
    guest: &Rc<Guest>,
    doing: &'static str,
    grace: Duration,
) -> Result<Option<Doing>, Fault> {
    let begun = match guest.begin_within(doing, grace).await {
        Ok(begun) => begun,
        Err(_) => {
            tracing::info!(guest = %guest.name, "it is killed: what is being done to it is cut off");
            // One that has ended meanwhile is as dead.
            let _ = guest.signal(libc::SIGKILL);
            guest.begin_within(doing, PATIENCE).await?
        }
    };
    let is_there = daemon.guests.borrow().get(&guest.name).is_some_and(|there| Rc::ptr_eq(there, guest));
    Ok(is_there.then_some(begun))
}

//! The loop that keeps processor time fair while guests compete.

use crate::resources::Resources;
use pando_kernel::process::real_time::RealTime;
use std::rc::Rc;

/// Looks at the guests for as long as it matters who of them is busy, and otherwise sleeps until somebody comes, goes
/// or changes.
///
/// While it matters, the daemon's thread comes before all others: beside guests that keep every processor busy with
/// hundreds of processes a thread of the usual kind was seen to wait for seconds, whatever its niceness, and so long
/// nobody saw to it that a reservation is had.
pub(crate) async fn govern(resources: Rc<Resources>) {
    let mut punctual = None;
    let mut told = false;
    loop {
        let next = resources.governor.borrow().next_look();
        match next {
            None => {
                punctual = None;
                resources.stirred.notified().await;
            }
            Some(pause) => {
                if punctual.is_none() {
                    punctual = RealTime::begin().inspect_err(|error| warn_once(&mut told, error)).ok();
                }
                tokio::time::sleep(pause).await;
                resources.look();
            }
        }
    }
}

fn warn_once(told: &mut bool, error: &std::io::Error) {
    if !std::mem::replace(told, true) {
        tracing::warn!(%error, "the daemon may be late in keeping reservations: it cannot come before other threads");
    }
}

//! The loop that keeps processor time fair while guests compete.

use crate::daemon::Daemon;
use std::rc::Rc;

/// Looks at the guests for as long as it matters who of them is busy, and otherwise sleeps until somebody comes, goes or changes.
pub(crate) async fn govern(daemon: Rc<Daemon>) {
    loop {
        let next = daemon.resources.governor.borrow().next_look();
        match next {
            None => daemon.resources.stirred.notified().await,
            Some(pause) => {
                tokio::time::sleep(pause).await;
                daemon.resources.look();
            }
        }
    }
}

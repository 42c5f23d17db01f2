//! What the daemon gives back when it has nothing to do.
//!
//! Hundreds of guests started at once leave a heap several times as large as what is kept of them. Whoever hosts them pays for it for as long as the
//! daemon lives.

use crate::daemon::Daemon;
use std::rc::Rc;
use std::time::Duration;

/// How long nothing must have been started until the daemon counts as resting.
const REST: Duration = Duration::from_secs(2);

/// Gives memory back whenever a rest begins, for as long as the daemon runs.
pub(crate) async fn give_back(daemon: Rc<Daemon>) {
    loop {
        daemon.lull.end().await;
        daemon.lull.of(REST).await;
        // Not on this thread: it has calls to answer, and the heap may be large.
        if let Err(error) = tokio::task::spawn_blocking(pando_kernel::heap::give_back).await {
            tracing::debug!(%error, "memory was not given back");
        }
    }
}

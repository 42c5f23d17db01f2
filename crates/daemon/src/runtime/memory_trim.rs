//! What the daemon gives back when it has nothing to do.
//!
//! Hundreds of guests started at once leave a heap several times as large as what is kept of them, and most of its
//! program mapped, of which it needs little again. Whoever hosts them pays for it for as long as the daemon lives.

use crate::runtime::idle::Idle;
use futures_util::FutureExt;
use std::time::Duration;

/// How long nothing must have been started until the daemon counts as resting.
const REST: Duration = Duration::from_secs(2);

/// How long until it counts as asleep: waking up costs the next start a tenth of a millisecond.
const SLEEP: Duration = Duration::from_secs(30);

/// Gives memory back whenever a rest begins, for as long as the daemon runs.
pub(crate) async fn give_back(idle: Idle) {
    loop {
        idle.end().await;
        while !falls_asleep(&idle).await {}
        pando_kernel::process::own_program::let_go_of_code();
    }
}

/// Gives back what a rest allows, as soon as it is one. Whether nothing was started until it became sleep.
async fn falls_asleep(idle: &Idle) -> bool {
    idle.of(REST).await;
    // What was started before the rest is past.
    let _ = idle.end().now_or_never();
    // Not on this thread: it has calls to answer, and the heap may be large.
    if let Err(error) = tokio::task::spawn_blocking(pando_kernel::memory::heap::give_back).await {
        tracing::debug!(%error, "memory was not given back");
    }
    tokio::select! {
        () = idle.end() => false,
        () = idle.of(SLEEP) => true,
    }
}

//! When to do what can wait.
//!
//! Making a shim takes a processor for a good part of a millisecond. Done while a guest starts, on a machine with few
//! of them, that is time added to the start. So work that is done ahead waits until the daemon idles.

use pando_kernel::mount::Tree;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long nothing must have been started.
const QUIET: Duration = Duration::from_millis(40);

/// Knows when something was last started.
#[derive(Clone, Debug)]
pub(crate) struct Idle(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    last: Cell<Instant>,
    disturbed: Notify,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self(Rc::new(Inner { last: Cell::new(Instant::now()), disturbed: Notify::new() }))
    }

    /// Something is being started now.
    pub(crate) fn disturb(&self) {
        self.0.last.set(Instant::now());
        self.0.disturbed.notify_one();
    }

    /// Waits until the daemon idles.
    pub(crate) async fn come(&self) {
        self.of(QUIET).await;
    }

    /// Waits until the daemon idles or for this notice, whichever comes first: starts that go on and on have no idle
    /// moment between them. Whether it was idleness.
    pub(crate) async fn comes_before(&self, notice: &Notify) -> bool {
        tokio::select! {
            () = self.come() => true,
            () = notice.notified() => false,
        }
    }

    /// Waits until nothing was started for so long.
    pub(crate) async fn of(&self, long: Duration) {
        loop {
            let due = self.0.last.get() + long;
            if Instant::now() >= due {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }

    /// Waits until something is started. One waits for this.
    pub(crate) async fn end(&self) {
        self.0.disturbed.notified().await;
    }

    /// Closes trees later. Closing one that was never attached waits for a grace period, which on a machine with few
    /// processors is time taken from the guest that just began. The daemon may be long in falling idle where guests
    /// start all the time.
    pub(crate) fn close_later(&self, trees: Vec<Tree>) {
        const LATEST: Duration = Duration::from_millis(500);
        let idle = self.clone();
        tokio::task::spawn_local(async move {
            let _ = tokio::time::timeout(LATEST, idle.come()).await;
            drop(tokio::task::spawn_blocking(move || drop(trees)));
        });
    }
}

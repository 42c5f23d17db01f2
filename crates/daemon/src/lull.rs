//! When to do what can wait.
//!
//! Making a seed takes a processor for a good part of a millisecond. Done while a guest starts, on a machine with few of them, that is time added to
//! the start. So work that is done ahead waits for a lull.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// How long nothing must have been started.
const LULL: Duration = Duration::from_millis(40);

/// Knows when something was last started.
#[derive(Clone, Debug)]
pub(crate) struct Lull(Rc<Cell<Instant>>);

impl Lull {
    pub(crate) fn new() -> Self {
        Self(Rc::new(Cell::new(Instant::now())))
    }

    /// Something is being started now.
    pub(crate) fn disturb(&self) {
        self.0.set(Instant::now());
    }

    /// Waits for a lull.
    pub(crate) async fn come(&self) {
        loop {
            let due = self.0.get() + LULL;
            if Instant::now() >= due {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }
}

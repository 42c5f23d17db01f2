//! How many images are moved at once, so that silence takes no thread that creating and starting need.
//!
//! A registry, or a client that does not read, keeps a thread for as long as it likes. Who finds all turns of a kind
//! taken waits without a thread.

use pando_api::{Fault, FaultKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many of each kind are at it at once.
pub(crate) const MOST_AT_ONCE: usize = 8;

/// How many kinds there are: pulls, pushes, commits, imports and exports.
pub(crate) const KINDS: usize = 5;

/// How often it is asked whether anybody waits for the turn still.
const BEAT: Duration = Duration::from_millis(200);

/// The turns of one kind.
#[derive(Clone, Debug)]
pub(crate) struct ImageTurns(Arc<Semaphore>);

impl Default for ImageTurns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_AT_ONCE)))
    }
}

impl ImageTurns {
    /// Waits for a turn, which ends with the value; given up when it is `wanted` no more.
    pub(crate) async fn one(&self, image: &str, wanted: impl Fn() -> bool) -> Result<OwnedSemaphorePermit, Fault> {
        let unwanted = || Fault::new(FaultKind::Failed, image, format!("nobody waits for image '{image}' any more"));
        let mut turn = std::pin::pin!(Arc::clone(&self.0).acquire_owned());
        loop {
            match tokio::time::timeout(BEAT, &mut turn).await {
                Ok(turn) => return turn.map_err(|_| unwanted()),
                Err(_) if !wanted() => return Err(unwanted()),
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_and_is_heard_by_nobody_gives_up() {
        let turns = ImageTurns::default();
        let mut held = Vec::new();
        for _ in 0..MOST_AT_ONCE {
            held.push(turns.one("a", || true).await.unwrap());
        }
        assert!(turns.one("a", || false).await.is_err());
        held.pop();
        assert!(turns.one("a", || false).await.is_ok());
    }
}

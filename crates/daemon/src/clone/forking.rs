//! The frozen processes on their way into a clone: being forked by another thread, or forked before anybody asked; then
//! at the gate; then running.

use crate::crash;
use crate::init::clone_slot::CloneSlot;
use crate::runtime::readable::readable;
use crate::runtime::spin_wait::spin;
use pando_freeze::{CloneError, Frozen, Ready as Forked};
use pando_kernel::process::held::HeldProcess;
use pando_kernel::{Context, namespace::uts};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long a clone may take to pass the gate.
const LATEST: Duration = Duration::from_secs(30);

/// The processes of a clone that is not known to stand yet. Dropped, they never run.
pub(crate) enum Forking {
    /// Another thread forks them, once it is told to or at once.
    Beside { thread: JoinHandle<Result<Option<Forked>, CloneError>>, begin: Option<mpsc::Sender<()>> },
    /// The processes stand at the gate.
    Before(Forked),
}

impl Forking {
    /// Has them forked, once [`Self::may_begin`] says so or at once.
    pub(crate) fn begin(
        clone_slot: CloneSlot,
        (first, host_name): (HeldProcess, String),
        frozen: Arc<Frozen>,
        at_once: bool,
    ) -> Self {
        let (begin, begun) = mpsc::channel();
        let thread = tokio::task::spawn_blocking(move || {
            // Nobody is there to say so where the clone has come to nothing meanwhile.
            if !at_once && begun.recv().is_err() {
                return Ok(None);
            }
            uts::set_host_name(&first, &host_name)?;
            let forked = clone_slot.fork(&frozen)?;
            crash::point("clone.waits");
            Ok(Some(forked))
        });
        Self::Beside { thread, begin: (!at_once).then_some(begin) }
    }

    /// The guest has its root file system and its network.
    pub(crate) fn may_begin(&mut self) {
        if let Self::Beside { begin, .. } = self
            && let Some(begin) = begin.take()
        {
            let _ = begin.send(());
        }
    }

    /// Waits until all of them stand at the gate. One clone alone is worth spinning for.
    pub(crate) async fn stand(self, alone: bool) -> Result<Forked, Failure> {
        let thread = match self {
            Self::Before(forked) => return Ok(forked),
            Self::Beside { thread, .. } => thread,
        };
        if alone {
            spin(|| thread.is_finished().then_some(()));
        }
        thread.await?.map_err(Failure::from)?.ok_or(Failure::Cloning(CloneError::Ended))
    }
}

/// Lets a clone run; it does when this returns.
pub(crate) async fn let_go(forked: Forked, alone: bool) -> Result<(), Failure> {
    let going = forked.open()?;
    if alone && let Some(gone) = spin(|| going.gone()) {
        return gone.map_err(Failure::from);
    }
    let wait = async {
        let going = readable(going).context(|| "waiting for a clone".into()).map_err(CloneError::from)?;
        loop {
            let mut ready =
                going.readable().await.context(|| "waiting for a clone".into()).map_err(CloneError::from)?;
            match going.get_ref().gone() {
                Some(gone) => return gone,
                None => ready.clear_ready(),
            }
        }
    };
    tokio::time::timeout(LATEST, wait).await.unwrap_or(Err(CloneError::Late)).map_err(Failure::from)
}

/// Why a clone was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Cloning(#[from] CloneError),
    #[error("it failed inside Pando: {0}")]
    Inside(#[from] tokio::task::JoinError),
}

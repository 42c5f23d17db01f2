//! A trial before a guest is ended for good: a clone of it is made, compared with what was frozen, and thrown away.
//! Where none can be made, or another one comes of it, the guest runs on: an image that it could never come back from
//! would be all that is left.
//!
//! The thread that freezes asks for a place when it has the image; the daemon makes that as for any clone, but on no
//! network: what the guest listens at is its own until it ends.
//!
//! ```text
//!   thread   hold ─▶ ask ──────────▶ fork, compare ─▶ keep on the disk ─▶ end the guest
//!   daemon            └─▶ clone slot ─┘        └─▶ discard the slot
//! ```

use crate::failure;
use crate::init::clone_slot::CloneSlot;
use crate::state::daemon::Daemon;
use crate::state::image::{HeldImage, ImageRecord};
use crate::state::record::LOG;
use crate::warm::ready_roots::ReadyRoot;
use pando_api::{Fault, FaultKind, Network, Spec};
use pando_freeze::{FreezeError, Frozen};
use std::rc::Rc;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// The side of the thread that freezes.
#[derive(Debug)]
pub(crate) struct Trial {
    ask: oneshot::Sender<ImageRecord>,
    place: mpsc::Receiver<Result<CloneSlot, Fault>>,
    /// Dropped when the place is not needed any more.
    _over: oneshot::Sender<()>,
}

/// The side of the daemon, which makes the clone slot.
#[derive(Debug)]
pub(crate) struct TrialServer {
    asked: oneshot::Receiver<ImageRecord>,
    place: mpsc::Sender<Result<CloneSlot, Fault>>,
    over: oneshot::Receiver<()>,
}

/// Makes both sides of a trial.
pub(crate) fn trial() -> (Trial, TrialServer) {
    let ((ask, asked), (give, place), (end, over)) = (oneshot::channel(), mpsc::channel(), oneshot::channel());
    (Trial { ask, place, _over: end }, TrialServer { asked, place: give, over })
}

impl Trial {
    /// Makes a clone and compares it. Blocking.
    pub(crate) fn make(self, frozen: &Frozen, record: &ImageRecord) -> Result<(), FreezeError> {
        let targets: Vec<_> = record.spec.volumes.iter().map(|volume| volume.target.clone()).collect();
        // It would take from the guest what both have there, or wait for it in vain.
        if frozen.image.holds_in(&targets) {
            return Ok(());
        }
        let failed = |why: String| FreezeError::Trial(why);
        let inside = || failed("the daemon does not make a place for it".into());
        self.ask.send(record.clone()).map_err(|_| inside())?;
        let clone_slot = self.place.recv().map_err(|_| inside())?.map_err(|fault| failed(fault.message))?;
        // It never runs: whoever drops it lets it end.
        clone_slot.fork(frozen).map(drop).map_err(|error| failed(error.to_string()))
    }
}

impl TrialServer {
    /// Makes a place if one is asked for, and takes it back.
    pub(crate) async fn serve(self, daemon: &Rc<Daemon>) {
        let Ok(record) = self.asked.await else { return };
        match make(daemon, record).await {
            Ok((root, clone_slot)) => {
                let given = self.place.send(Ok(clone_slot)).is_ok();
                if given {
                    let _ = self.over.await;
                }
                daemon.roots.discard(root);
            }
            Err(fault) => drop(self.place.send(Err(fault))),
        }
    }
}

async fn make(daemon: &Rc<Daemon>, record: ImageRecord) -> Result<(ReadyRoot, CloneSlot), Fault> {
    let spec = Spec { network: Network::None, ..record.spec.clone() };
    let held = HeldImage::kept("trial".into(), ImageRecord { spec: spec.clone(), ..record });
    let root = daemon.roots.make(&held.roots()).await?;
    let clone_slot = CloneSlot::new((&daemon.logs, &daemon.field), &root.ready, &root.files.path().join(LOG), &spec);
    match clone_slot {
        Ok(clone_slot) if root.ready.tree.is_none() => Ok((root, clone_slot)),
        made => {
            daemon.roots.discard(root);
            let incomplete = || Fault::new(FaultKind::Failed, &held.name, "its place is not complete");
            Err(made.map_or_else(|error| failure::call("making a trial clone", &held.name, &error), |_| incomplete()))
        }
    }
}

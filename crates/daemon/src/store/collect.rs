//! Removing the layers of the store that no guest stands on any more, with what only they needed.

use crate::failure;
use crate::state::daemon::Daemon;
use crate::store::layers;
use pando_api::{Collection, Fault, FaultKind};
use pando_store::{Collected, LayerId};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long a collection that nobody waits for waits, so that many removals make one, and for those who work with the
/// store.
const MOMENT: Duration = Duration::from_secs(2);

/// How often it tries again. What stays is found at the next removal, or by the next daemon.
const TRIES: u32 = 30;

/// Collects in a moment, in the background.
pub(crate) fn soon(daemon: &Rc<Daemon>) {
    if daemon.collecting.replace(true) {
        return;
    }
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        for _ in 0..TRIES {
            tokio::time::sleep(MOMENT).await;
            daemon.collecting.set(false);
            match collect(&daemon).await {
                Err(fault) if fault.kind == FaultKind::Busy => daemon.collecting.set(true),
                Err(fault) => return tracing::warn!(%fault, "collecting what no guest stands on failed"),
                Ok(collected) => return tracing::info!(?collected, "collected what no guest stands on"),
            }
        }
        daemon.collecting.set(false);
    });
}

/// Collects at once; a fault of the kind `Busy` where a guest is being made.
pub(crate) async fn collect(daemon: &Rc<Daemon>) -> Result<Collected, Fault> {
    let fault = |error| failure::store("collecting", "store", &error);
    let store = Arc::clone(&daemon.store);
    let shut = move || store.open().and_then(|mounts| Ok((mounts.store().exclusive()?, mounts)));
    let (exclusive, mounts) = blocking(shut).await?.map_err(fault)?;
    // Asked now that no layer can be added: a guest that was being made is known by now, or has come to nothing.
    let used = used(daemon)?;
    mounts.forget_all_but(&used);
    blocking(move || exclusive.collect(&used)).await?.map_err(fault)
}

/// Collects at once, and says what went.
pub(crate) async fn told(daemon: &Rc<Daemon>) -> Result<Collection, Fault> {
    let Collected { layers, objects, bytes } = collect(daemon).await?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Ok(Collection { layers: number(layers), objects: number(objects), bytes: number(bytes) })
}

/// The layers that guests stand on, and those of frozen ones, that clones will.
///
/// A guest whose record cannot be read is none that we know, but a person may mend it: then nothing may be collected.
pub(crate) fn used(daemon: &Daemon) -> Result<HashSet<LayerId>, Fault> {
    let guests = daemon.guests.borrow();
    if let Some(guest) = guests.values().find(|guest| guest.is_unreadable()) {
        let message = format!(
            "nothing is collected: what guest '{0}' stands on is not known, since its record cannot be read; 'pando repair {0}' may mend it, 'pando rm {0}' removes it",
            guest.name
        );
        return Err(Fault::new(FaultKind::Failed, guest.name.as_ref(), message));
    }
    if let Some(image) = daemon.unreadable_image() {
        let message = format!(
            "nothing is collected: what image '{image}' stands on is not known, since it cannot be read; remove it with 'pando image rm {image}'"
        );
        return Err(Fault::new(FaultKind::Failed, image, message));
    }
    let layers = guests.values().flat_map(|guest| guest.record.borrow().layers.clone());
    let frozen: Vec<String> = daemon.images.borrow().values().flat_map(|held| held.record.layers.clone()).collect();
    let pulled = daemon.pulled.layers();
    Ok(layers.chain(frozen).chain(pulled).filter_map(|layer| layers::stored(&layer)).collect())
}

/// Does what may take long on another thread.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        Fault::new(FaultKind::Failed, "store", format!("working with the store failed inside Pando: {error}"))
    })
}

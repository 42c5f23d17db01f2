//! Layers that neither a guest nor an image stands on any more.

use crate::state::daemon::Daemon;
use crate::store::trash::discard;
use crate::store::{collect, layers};
use std::rc::Rc;

/// Throws away those layers that neither a guest nor an image stands on.
pub(crate) fn discard_unused(daemon: &Rc<Daemon>, layers: &[String]) {
    let (guests, images) = (daemon.guests.borrow(), daemon.images.borrow());
    let pulled = daemon.pulled.layers();
    for layer in layers.iter().filter(|layer| is_own(layer)) {
        let used = guests.values().any(|other| other.record.borrow().layers.contains(layer))
            || images.values().any(|image| image.record.layers.contains(layer))
            || pulled.contains(layer);
        if !used {
            discard_layer(daemon, layer);
        }
    }
}

/// Whether a layer was made for guests, and is no tree of the host's.
pub(crate) fn is_own(layer: &str) -> bool {
    !layer.starts_with('/')
}

/// Throws away a layer that no guest stands on.
pub(crate) fn discard_layer(daemon: &Rc<Daemon>, layer: &str) {
    match layers::stored(layer) {
        Some(_) => collect::soon(daemon),
        None => discard(&daemon.places, &daemon.places.layers().join(layer)),
    }
}

//! What is known of the images of registries that are here.

use crate::runtime::image_turns::ImageTurns;
use crate::state::events::now;
use pando_guest::source::Suggested;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What is known of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PulledRecord {
    pub(crate) reference: String,
    /// What the registry named it by when it was pulled.
    pub(crate) digest: String,
    pub(crate) layers: i64,
    /// Bytes of its blobs.
    pub(crate) size: i64,
    /// The word for its layer, as a guest's record has it.
    pub(crate) layer: String,
    pub(crate) suggested: Suggested,
    /// Seconds since the epoch.
    pub(crate) pulled: i64,
    pub(crate) used: i64,
}

impl PulledRecord {
    /// That of an image that is new: its digest, its layers and their bytes, the layer in the store and how it is run.
    pub(crate) fn new(
        reference: String,
        digest: &str,
        (layers, size): (i64, i64),
        (layer, suggested): (String, Suggested),
    ) -> Self {
        let pulled = now();
        Self { reference, digest: digest.to_owned(), layers, size, layer, suggested, pulled, used: pulled }
    }

    /// That of the same image under another name.
    pub(crate) fn named(self, reference: String) -> Self {
        Self { reference, ..self }
    }
}

/// The images that are here, by name.
#[derive(Debug, Default)]
pub(crate) struct PulledImages {
    pub(crate) records: RefCell<BTreeMap<String, PulledRecord>>,
    /// Those of pulls, pushes and commits.
    pub(crate) pulls: ImageTurns,
    pub(crate) pushes: ImageTurns,
    pub(crate) commits: ImageTurns,
    /// One a name: who pulls an image that is being pulled waits for that.
    turns: RefCell<BTreeMap<String, Rc<tokio::sync::Mutex<()>>>>,
}

impl PulledImages {
    /// The layers of all of them.
    pub(crate) fn layers(&self) -> Vec<String> {
        self.records.borrow().values().map(|record| record.layer.clone()).collect()
    }

    /// Held by who pulls an image, or sends it.
    pub(crate) fn turn(&self, reference: &str) -> Rc<tokio::sync::Mutex<()>> {
        Rc::clone(self.turns.borrow_mut().entry(reference.to_owned()).or_default())
    }

    pub(crate) fn get(&self, reference: &str) -> Option<PulledRecord> {
        self.records.borrow().get(reference).cloned()
    }
}

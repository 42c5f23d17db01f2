//! The image that a guest came from, whose layers an image of the guest has again.
//!
//! A guest stands on one layer of the store, which is all of an image's layers together. So what it has changed is
//! found by looking at both: whichever image is taken, an image of its layers and of what differs shows what the guest
//! does.

use crate::failure;
use crate::state::daemon::Daemon;
use crate::state::pulled_images::PulledRecord;
use crate::state::record::GuestRecord;
use crate::store::{layers, pulled_images};
use pando_api::Fault;
use pando_guest::Places;
use pando_guest::root::{self, LayerStore, Mounted, Root};
use pando_guest::source::Source;
use pando_guest::source::registry::{KeptLayer, kept_layers};
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_store::Lease;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Engines that put one overlay layer over the other stop at 128.
const MOST_LAYERS: usize = 126;

/// An image that is here.
#[derive(Debug)]
pub(crate) struct ImageBase {
    record: PulledRecord,
    layout: PathBuf,
    /// That its layer stays meanwhile.
    _lease: Option<Lease>,
}

impl ImageBase {
    /// The image that a guest came from, if it is here: one that has the layer that the guest stands on, and where that
    /// is another one by now the image that its source names.
    pub(crate) async fn of(daemon: &Rc<Daemon>, guest: &GuestRecord) -> Result<Option<Self>, Fault> {
        let named = match guest.source.parse() {
            Ok(Source::Docker(reference)) => daemon.pulled.get(&reference.whole()),
            _ => None,
        };
        let stands = |record: &PulledRecord| guest.layers.contains(&record.layer);
        let same = || daemon.pulled.records.borrow().values().find(|record| stands(record)).cloned();
        let found = named.clone().filter(stands).or_else(same).or(named);
        let Some(record) = found else { return Ok(None) };
        let (lease, is_there) = pulled_images::held(daemon, &record).await?;
        let layout = pulled_images::directory(&daemon.places, &record.reference);
        Ok(is_there.then_some(Self { record, layout, _lease: lease }))
    }

    /// Opens it. `None` where an image of one layer more would be too tall, or where it is damaged: then a guest's
    /// image is one layer, which is as good.
    pub(crate) fn open(&self, places: &Places, store: &LayerStore) -> Result<Option<OpenedBase>, Fault> {
        let name = &self.record.reference;
        let layers = match kept_layers(&self.layout, name) {
            Ok(layers) if layers.len() <= MOST_LAYERS => layers,
            Ok(_) => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, image = name, "an image of a guest does not share its layers");
                return Ok(None);
            }
        };
        let made = tempfile::Builder::new().prefix(".new-").tempdir_in(places.pulled());
        let made = made.map_err(|error| failure::io("looking at the image", name, &error))?;
        let files = TemporaryDirectory::of(made.keep());
        root::prepare(files.path()).map_err(|error| failure::call("looking at the image", name, &error))?;
        // As the guest sees its own: through an overlay.
        let root = Root {
            name: "base".to_owned(),
            layers: vec![layers::standing(places, &self.record.layer)],
            files: files.path().to_owned(),
            disk: None,
            bounded: None,
            passing: false,
        };
        let mounted = root.mount(None, store).map_err(|error| failure::store("looking at the image", name, &error))?;
        Ok(Some(OpenedBase { layers, layout: self.layout.clone(), mounted, _files: files }))
    }

    /// The ports that it says it listens on.
    pub(crate) fn exposed(&self) -> &[String] {
        &self.record.suggested.exposed
    }
}

/// An image whose tree can be looked at.
#[derive(Debug)]
pub(crate) struct OpenedBase {
    pub(crate) layers: Vec<KeptLayer>,
    layout: PathBuf,
    pub(crate) mounted: Mounted,
    /// What lies over the image: nothing. It goes after the mount.
    _files: TemporaryDirectory,
}

impl OpenedBase {
    /// Gives another layout the blobs of its layers: the same files under one more name.
    pub(crate) fn lend(&self, layout: &Path) -> io::Result<()> {
        for member in self.layers.iter().map(KeptLayer::member) {
            let to = layout.join(&member);
            fs::create_dir_all(to.parent().unwrap_or(layout))?;
            // An image may have a layer twice.
            if !to.exists() {
                fs::hard_link(self.layout.join(&member), to)?;
            }
        }
        Ok(())
    }
}

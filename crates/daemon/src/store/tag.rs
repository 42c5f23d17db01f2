//! Another name for an image of a registry: a layout of its own, whose blobs are the same files.

use crate::failure;
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::pulled_images::PulledRecord;
use crate::store::collect::blocking;
use crate::store::pulled_images::{self, Made, Order};
use pando_api::{Fault, PulledImage};
use pando_guest::Places;
use pando_kernel::file::tree_removal::TemporaryDirectory;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;

const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Gives an image that is here another name besides. Tells whether that changed anything.
pub(crate) async fn tag(daemon: &Rc<Daemon>, image: &str, to: &str) -> Result<(PulledImage, bool), Fault> {
    let name = pulled_images::named(daemon, image).ok_or_else(|| pulled_images::missing(image))?;
    let reference = Order::read(to, false, Vec::new())?.reference;
    if reference.digest().is_some() {
        return Err(failure::bad(to, format!("'{to}' names an image by its digest; give it a tag")));
    }
    let new = reference.whole();
    // Whoever pulls or pushes an image of that name is done first.
    let turn = daemon.pulled.turn(&new);
    let _turn = turn.lock().await;
    let record = daemon.pulled.get(&name).ok_or_else(|| pulled_images::missing(image))?;
    let is_so = daemon.pulled.get(&new).is_some_and(|known| known.digest == record.digest);
    if new == name || is_so {
        return Ok((pulled_images::status(daemon, &record.named(new)), false));
    }
    let (lease, _) = pulled_images::held(daemon, &record).await?;
    let (places, tagged) = (daemon.places.clone(), PulledRecord { used: now(), ..record.named(new) });
    let settled = tagged.clone();
    let work = move || -> Result<(), Fault> {
        let fault = |error: io::Error| failure::io("naming the image", &name, &error);
        let from = pulled_images::directory(&places, &name);
        let layout = linked(&places, &from, &settled.reference).map_err(fault)?;
        pulled_images::settle(&places, layout, &settled)
    };
    blocking(work).await??;
    Ok((pulled_images::add(daemon, Made { record: tagged, lease }, "tag"), true))
}

/// A layout that has the blobs of another one, and the image's new name.
fn linked(places: &Places, from: &Path, name: &str) -> io::Result<TemporaryDirectory> {
    let made = tempfile::Builder::new().prefix(".new-").tempdir_in(places.pulled())?;
    let layout = TemporaryDirectory::of(made.keep());
    for algorithm in fs::read_dir(from.join("blobs"))? {
        let algorithm = algorithm?;
        let to = layout.path().join("blobs").join(algorithm.file_name());
        fs::create_dir_all(&to)?;
        for blob in fs::read_dir(algorithm.path())? {
            let blob = blob?;
            fs::hard_link(blob.path(), to.join(blob.file_name()))?;
        }
    }
    fs::copy(from.join("oci-layout"), layout.path().join("oci-layout"))?;
    // Root's own, written when the image was kept.
    let mut index: Value = serde_json::from_slice(&fs::read(from.join("index.json"))?)?;
    if let Some(manifest) = index.pointer_mut("/manifests/0").filter(|manifest| manifest.is_object()) {
        manifest["annotations"] = serde_json::json!({ REF_NAME: name });
    }
    fs::write(layout.path().join("index.json"), index.to_string())?;
    Ok(layout)
}

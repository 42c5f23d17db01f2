//! Images of registries that are here: what is known of each, how one is pulled, and when it goes.
//!
//! ```text
//!   pulled/DIGEST/      one image, named by the digest of its name
//!     pulled.json       its record: what the registry calls it, its layer in the store, when it was used last
//!     index.json, blobs an OCI layout; a blob that several images have is one file
//! ```
//!
//! An image's layer is in the store for as long as the image is here, as if a guest stood on it. So what is made of it
//! waits for nothing but the name of that layer.

use crate::failure;
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::pulled_images::PulledRecord;
use crate::state::record;
use crate::store::collect::blocking;
use crate::store::layers::{self, Attended, MadeLayer, Maker, Teller};
use crate::store::trash;
use pando_api::{Fault, FaultKind, Progress, PulledImage, Spec};
use pando_guest::Places;
use pando_guest::root::LayerStore;
use pando_guest::source::registry::{
    self, Arrivals, NewImage, PullOrder, Pulled, PushOrder, Reference, RegistryError, RegistrySettings,
};
use pando_guest::source::{self, Source};
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_store::Lease;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

const RECORD: &str = "pulled.json";

/// More than any file of credentials has.
const LONGEST_CREDENTIALS: u64 = 1 << 20;

/// An image that has its place, and the promise that its layer stays until it is known.
pub(crate) struct Made {
    pub(crate) record: PulledRecord,
    pub(crate) lease: Option<Lease>,
}

/// Where an image lies.
pub(crate) fn directory(places: &Places, reference: &str) -> PathBuf {
    let digest = pando_reader::sha256(reference.as_bytes());
    places.pulled().join(digest.trim_start_matches("sha256:"))
}

/// Finds the images that are here, and throws away what was not finished.
pub(crate) fn load(daemon: &Daemon) {
    for entry in std::fs::read_dir(daemon.places.pulled()).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            let is_clients = entry.file_name().as_encoded_bytes().starts_with(b".client-");
            let arrived = daemon.places.arrived();
            if !is_clients || Arrivals::of(&arrived).abandoned(&entry.path()).is_err() {
                trash::discard(&daemon.places, &entry.path());
            }
            continue;
        }
        let read = || -> std::io::Result<PulledRecord> {
            Ok(serde_json::from_slice(&std::fs::read(entry.path().join(RECORD))?)?)
        };
        match read() {
            Ok(record) if directory(&daemon.places, &record.reference) == entry.path() => {
                daemon.pulled.records.borrow_mut().insert(record.reference.clone(), record);
            }
            Ok(record) => tracing::error!(image = record.reference, "it lies where another image should; ignored"),
            Err(error) => {
                tracing::error!(%error, path = %entry.path().display(), "a pulled image cannot be read; it can be pulled again");
            }
        }
    }
}

/// Takes what arrived of pulls that the daemon before this one was at, in the background.
pub(crate) fn recover_arrivals(daemon: &Daemon) {
    let arrived = daemon.places.arrived();
    tokio::task::spawn_blocking(move || Arrivals::of(&arrived).recover());
}

/// How an image is to be pulled.
pub(crate) struct Order {
    pub(crate) reference: Reference,
    /// A file of credentials.
    pub(crate) credentials: Option<OwnedFd>,
    /// Whether one that is here is good enough, whatever the registry has.
    pub(crate) missing: bool,
    /// Whether it is for the client alone who asks for it, and given up when he goes.
    pub(crate) attended: bool,
}

impl Order {
    /// What a call says.
    pub(crate) fn read(reference: &str, missing: bool, mut fds: Vec<OwnedFd>) -> Result<Self, Fault> {
        let text = reference.strip_prefix("docker:").map_or(reference, |rest| rest.trim_start_matches("//"));
        match layers::parse(Some(&format!("docker://{text}")))? {
            Source::Docker(reference) => Ok(Self { reference, credentials: fds.pop(), missing, attended: true }),
            _ => Err(failure::bad(reference, format!("'{reference}' names no image of a registry"))),
        }
    }
}

/// Pulls an image unless what is here is what the registry has. Tells whether it did, and with the image promises that
/// its layer stays.
async fn pull(
    daemon: &Rc<Daemon>,
    order: Order,
    progress: mpsc::Sender<Progress>,
) -> Result<(PulledRecord, Option<Lease>, bool), Fault> {
    let name = order.reference.whole();
    let turn = daemon.pulled.turn(&name);
    let _turn = turn.lock().await;
    let known = daemon.pulled.get(&name);
    if let Some(known) = known.clone().filter(|_| order.missing) {
        let (lease, is_there) = held(daemon, &known).await?;
        if is_there {
            return Ok((known, lease, false));
        }
    }
    let whole = match &known {
        Some(known) => held(daemon, known).await?.1,
        None => false,
    };
    let _at_it = daemon.pulled.pulls.one(&name, || !order.attended || layers::is_heard(&progress)).await?;
    let work = Work {
        places: daemon.places.clone(),
        reference: order.reference,
        credentials: order.credentials,
        known: known.as_ref().filter(|_| whole).map(|known| known.digest.clone()),
        kept: daemon.pulled.records.borrow().keys().map(|name| directory(&daemon.places, name)).collect(),
        attended: order.attended,
        store: Arc::clone(&daemon.store),
        progress,
    };
    let made = blocking(move || work.run()).await??;
    let Some((record, lease)) = made else {
        let known = known.ok_or_else(|| failure::bad(&name, "an image that is not here is called up to date"))?;
        return Ok((known, None, false));
    };
    add(daemon, Made { record: record.clone(), lease: None }, "pull");
    Ok((record, lease, true))
}

/// Makes a new image known: it is used from now on.
pub(crate) fn add(daemon: &Rc<Daemon>, made: Made, event: &str) -> PulledImage {
    let Made { record, lease } = made;
    let name = record.reference.clone();
    let before = daemon.pulled.records.borrow_mut().insert(name.clone(), record.clone());
    drop(lease);
    if let Some(before) = before {
        crate::store::unused_layers::discard_unused(daemon, &[before.layer]);
    }
    trash::empty_trash(daemon.places.clone());
    daemon.events.tell(&name, event, Some(record.digest.clone()));
    status(daemon, &record)
}

/// Pushes an image that is here to a registry, under its own name or another one.
pub(crate) async fn push(
    daemon: &Rc<Daemon>,
    image: &str,
    to: Option<&str>,
    fds: Vec<OwnedFd>,
    progress: mpsc::Sender<Progress>,
) -> Result<PulledImage, Fault> {
    let name = named(daemon, image).ok_or_else(|| missing(image))?;
    let Order { reference, credentials, .. } = Order::read(to.unwrap_or(&name), false, fds)?;
    let record = daemon.pulled.get(&name).ok_or_else(|| missing(image))?;
    let turn = daemon.pulled.turn(&name);
    let _turn = turn.lock().await;
    let _at_it = daemon.pulled.pushes.one(&name, || layers::is_heard(&progress)).await?;
    let places = daemon.places.clone();
    let work = move || -> Result<(), Fault> {
        let to = reference.whole();
        let credentials = credentials.as_ref().map(read_credentials).transpose();
        let credentials = credentials.map_err(|error| failure::io("reading the credentials", &to, &error))?;
        let order = PushOrder {
            image: &name,
            layout: &directory(&places, &name),
            to: &reference,
            credentials: credentials.as_deref(),
            settings: &RegistrySettings::below(places.root()),
            beside: &places.pulled(),
        };
        registry::push(&order, &Attended(&progress)).map_err(|error| refused("push", &to, &error))
    };
    blocking(work).await??;
    Ok(status(daemon, &record))
}

/// Keeps the layer of an image in the store, and says whether it is there: somebody may have thrown the store away.
pub(crate) async fn held(daemon: &Rc<Daemon>, record: &PulledRecord) -> Result<(Option<Lease>, bool), Fault> {
    let (layer, store) = (record.layer.clone(), Arc::clone(&daemon.store));
    let places = daemon.places.clone();
    let look = move || match layers::stored(&layer) {
        None => Ok((None, layers::path(&places, &layer).is_dir())),
        Some(layer) => {
            let opened = store.open()?;
            let lease = opened.store().lease()?;
            let is_there = opened.store().has(&layer);
            Ok((Some(lease), is_there))
        }
    };
    blocking(look).await?.map_err(|error| failure::store("looking for the image's layer", &record.reference, &error))
}

/// What the pulling thread needs of the daemon.
struct Work {
    places: Places,
    reference: Reference,
    credentials: Option<OwnedFd>,
    known: Option<String>,
    kept: Vec<PathBuf>,
    attended: bool,
    store: Arc<LayerStore>,
    progress: mpsc::Sender<Progress>,
}

impl Work {
    /// Nothing where the registry has what is known.
    fn run(self) -> Result<Option<(PulledRecord, Option<Lease>)>, Fault> {
        let name = self.reference.whole();
        let credentials = self.credentials.as_ref().map(read_credentials).transpose();
        let credentials = credentials.map_err(|error| failure::io("reading the credentials", &name, &error))?;
        let order = PullOrder {
            reference: &self.reference,
            credentials: credentials.as_deref(),
            settings: &RegistrySettings::below(self.places.root()),
            beside: &self.places.pulled(),
            kept: &self.kept,
            arrived: &self.places.arrived(),
            known: self.known.as_deref(),
        };
        let (teller, attended) = (Teller(&self.progress), Attended(&self.progress));
        let progress: &dyn source::Progress = if self.attended { &attended } else { &teller };
        match registry::pull(&order, progress).map_err(|error| refused("pull", &name, &error))? {
            Pulled::UpToDate => Ok(None),
            Pulled::New(image) => self.keep(image).map(Some),
        }
    }

    /// Makes a layer of the image, and gives it its place.
    fn keep(self, image: NewImage) -> Result<(PulledRecord, Option<Lease>), Fault> {
        let reference = self.reference.whole();
        let maker = Maker {
            places: self.places.clone(),
            source: Source::Docker(self.reference),
            spec: Spec::default(),
            name: "pulled".to_owned(),
            owner: format!("image '{reference}'"),
            guest_tree: None,
            layout: Some(image.layout.path().to_owned()),
            store: self.store,
            progress: self.progress,
        };
        let MadeLayer { name: layer, suggested, lease, .. } = maker.make()?;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let amounts = (number(image.layers), number(image.size));
        let record = PulledRecord::new(reference, &image.digest, amounts, (layer, suggested));
        settle(&self.places, image.layout, &record)?;
        Ok((record, lease))
    }
}

/// Gives a new image its place, and its record: from here on a crash finds it whole.
pub(crate) fn settle(places: &Places, mut layout: TemporaryDirectory, record: &PulledRecord) -> Result<(), Fault> {
    let place = directory(places, &record.reference);
    write(layout.path(), record, true)?;
    let settle = || -> std::io::Result<()> {
        rustix::fs::syncfs(File::open(layout.path())?)?;
        if place.exists() {
            trash::set_aside(places, &place)?;
        }
        std::fs::rename(layout.path(), &place)?;
        File::open(places.pulled())?.sync_all()
    };
    settle().map_err(|error| failure::io("keeping the image", &record.reference, &error))?;
    let _renamed = layout.keep();
    Ok(())
}

fn write(directory: &Path, record: &PulledRecord, durable: bool) -> Result<(), Fault> {
    let fault = |error: std::io::Error| failure::io("writing the image's record", &record.reference, &error);
    let content = serde_json::to_vec_pretty(record).map_err(|error| fault(error.into()))?;
    record::replace(&directory.join(RECORD), &content, durable)
        .map_err(|error| failure::call("keeping the image", &record.reference, &error))
}

fn read_credentials(file: &OwnedFd) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::from(file.try_clone()?).take(LONGEST_CREDENTIALS).read_to_end(&mut content)?;
    Ok(content)
}

fn refused(doing: &str, name: &str, error: &RegistryError) -> Fault {
    let kind = match error {
        RegistryError::NoTool(_) | RegistryError::NoPolicy(_) | RegistryError::NoRoom { .. } => FaultKind::Unavailable,
        _ => FaultKind::Failed,
    };
    Fault::new(kind, name, format!("cannot {doing} '{name}': {error}"))
}

/// Pulls an image for somebody who asked for that alone.
pub(crate) async fn pull_told(
    daemon: &Rc<Daemon>,
    order: Order,
    progress: mpsc::Sender<Progress>,
) -> Result<(PulledImage, bool), Fault> {
    let (record, _lease, is_new) = pull(daemon, order, progress).await?;
    Ok((status(daemon, &record), is_new))
}

/// The layer of an image, which is pulled if it is not here. Counts as a use of it.
pub(crate) async fn layer(
    daemon: &Rc<Daemon>,
    reference: Reference,
    progress: mpsc::Sender<Progress>,
) -> Result<MadeLayer, Fault> {
    let order = Order { reference, credentials: None, missing: true, attended: false };
    let (mut record, lease, _) = pull(daemon, order, progress).await?;
    record.used = now();
    // A use that is not noted is a use that is not known of, and nothing worse.
    if let Err(fault) = write(&directory(&daemon.places, &record.reference), &record, false) {
        tracing::warn!(%fault, "when the image was used is not noted");
    }
    daemon.pulled.records.borrow_mut().insert(record.reference.clone(), record.clone());
    Ok(MadeLayer { name: record.layer, suggested: record.suggested, lease, warnings: Vec::new() })
}

/// All of them.
pub(crate) fn list(daemon: &Daemon) -> Vec<PulledImage> {
    daemon.pulled.records.borrow().values().map(|record| status(daemon, record)).collect()
}

pub(crate) fn status(daemon: &Daemon, record: &PulledRecord) -> PulledImage {
    let PulledRecord { reference, digest, layers, size, pulled, used, .. } = record.clone();
    PulledImage { reference, digest, layers, size, pulled, used, guests: standing_on(daemon, record) }
}

pub(crate) fn standing_on(daemon: &Daemon, record: &PulledRecord) -> Vec<String> {
    let guests = daemon.guests.borrow();
    let stands = guests.values().filter(|guest| guest.record.borrow().layers.contains(&record.layer));
    stands.map(|guest| guest.name.to_string()).collect()
}

/// Whether a word names one of them, in full or as one writes it: its full name then.
pub(crate) fn named(daemon: &Daemon, word: &str) -> Option<String> {
    let text = word.strip_prefix("docker:").map_or(word, |rest| rest.trim_start_matches("//"));
    let full = text.parse::<Reference>().ok()?.whole();
    daemon.pulled.records.borrow().contains_key(&full).then_some(full)
}

/// Removes one. Guests that were made of it keep what they stand on.
pub(crate) fn remove(daemon: &Rc<Daemon>, reference: &str) -> Result<(), Fault> {
    let removed = daemon.pulled.records.borrow_mut().remove(reference);
    let Some(record) = removed else { return Err(failure::no_such_image(reference)) };
    trash::set_aside(&daemon.places, &directory(&daemon.places, reference))
        .or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
        .map_err(|error| failure::io("removing the image", reference, &error))?;
    crate::store::unused_layers::discard_unused(daemon, &[record.layer]);
    trash::empty_trash(daemon.places.clone());
    daemon.events.tell(reference, "image-remove", None);
    Ok(())
}

/// Removes those that no guest stands on and that nothing was made of for so many seconds.
pub(crate) fn prune(daemon: &Rc<Daemon>, unused_for: i64) -> Result<Vec<String>, Fault> {
    let before = now().saturating_sub(unused_for.max(0));
    let is_idle = |record: &&PulledRecord| record.used <= before && standing_on(daemon, record).is_empty();
    let names: Vec<String> =
        daemon.pulled.records.borrow().values().filter(is_idle).map(|record| record.reference.clone()).collect();
    for name in &names {
        remove(daemon, name)?;
    }
    // What arrived of pulls that broke off; not here, since another thread may be reading it.
    let arrived = daemon.places.arrived();
    tokio::task::spawn_blocking(move || Arrivals::of(&arrived).clear());
    Ok(names)
}

/// A fault for who asks for an image that is not here.
pub(crate) fn missing(image: &str) -> Fault {
    let message = format!("there is no image '{image}' here; 'pando images --sources' lists those there are");
    Fault::new(FaultKind::NoSuchGuest, image, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_may_name_an_image_in_every_usual_way() {
        for word in ["nginx", "docker.io/library/nginx:latest", "docker://nginx", "docker:library/nginx"] {
            let order = Order::read(word, false, Vec::new()).unwrap();
            assert_eq!(order.reference.whole(), "docker.io/library/nginx:latest", "{word}");
        }
        assert!(Order::read("A B", false, Vec::new()).is_err());
    }

    #[test]
    fn an_image_lies_in_one_directory_whatever_its_name() {
        let places = Places::new("/x");
        let path = directory(&places, "docker.io/library/nginx:latest");
        assert_eq!(path.parent(), Some(&*places.pulled()));
        assert_eq!(path.file_name().unwrap().len(), 64);
    }
}

//! Images beyond the one holder that made them: on the disk, and between machines.

use crate::runtime::image_turns::MOST_AT_ONCE;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::image::{Bed, Checkpoint, HeldImage, ImageRecord, unusable};
use crate::state::image_records;
use crate::store::image_stream::{Packed, Unpacked};
use crate::store::image_wants::Wants;
use crate::store::layers::{MadeLayer, Maker};
use crate::store::signature_trust::SignatureTrust;
use crate::store::{image_wants, layers, trash};
use crate::{crash, failure};
use pando_api::{Boot, Fault, FaultKind, ImageInspection, Restart, Spec};
use pando_freeze::{Connection, Frozen};
use pando_guest::GuestName;
use pando_guest::Places;
use pando_guest::root::{self, Root};
use pando_guest::source::Source;
use pando_kernel::file::tree_removal::{nothing_is_mounted_in, remove_tree};
use pando_reader::signature::Signed;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

/// Finds the images that are on the disk.
pub(crate) fn load(daemon: &Daemon) {
    for entry in std::fs::read_dir(daemon.places.images()).into_iter().flatten().flatten() {
        let Some(name) = entry.file_name().to_str().and_then(|name| name.parse::<GuestName>().ok()) else {
            // Half written when the daemon or the power went.
            crate::store::trash::discard(&daemon.places, &entry.path());
            continue;
        };
        match ImageRecord::read(&entry.path()) {
            Ok(record) => {
                let held = HeldImage::kept(name.to_string(), record);
                daemon.images.borrow_mut().insert(name.to_string(), held);
            }
            Err(error) => {
                tracing::error!(%error, image = %name, "it cannot be read; 'pando image rm' removes it");
            }
        }
    }
}

/// An image by its name.
pub(crate) fn find(daemon: &Daemon, name: &str) -> Result<Arc<HeldImage>, Fault> {
    if let Some(held) = daemon.images.borrow().get(name).cloned() {
        return Ok(held);
    }
    let directory = daemon.places.images().join(name);
    if name.parse::<GuestName>().is_ok() && directory.exists() {
        // It could not be read when the daemon started.
        return match ImageRecord::read(&directory) {
            Ok(record) => {
                let held = HeldImage::kept(name.to_owned(), record);
                daemon.images.borrow_mut().insert(name.to_owned(), Arc::clone(&held));
                Ok(held)
            }
            Err(error) => Err(unusable(name, &error.into())),
        };
    }
    Err(crate::failure::no_such_image(name))
}

/// Whether a name can be that of a new image.
pub(crate) fn free_name(daemon: &Daemon, name: &str) -> Result<GuestName, Fault> {
    let parsed: GuestName = name.parse().map_err(|error| failure::bad_name(name, &error))?;
    if daemon.images.borrow().contains_key(name) || daemon.places.images().join(name).exists() {
        let message = format!(
            "there is an image '{name}' already; choose another name, or remove it with 'pando image rm {name}'"
        );
        return Err(Fault::new(FaultKind::GuestExists, name, message));
    }
    Ok(parsed)
}

/// Writes an image to the disk, behind whoever froze it.
pub(crate) fn keep(daemon: &Rc<Daemon>, held: &Arc<HeldImage>) -> tokio::task::JoinHandle<Result<(), Fault>> {
    let (daemon, held) = (Rc::clone(daemon), Arc::clone(held));
    daemon.keeping.set(daemon.keeping.get() + 1);
    held.set_being_kept(true);
    tokio::task::spawn_local(async move {
        let outcome = write(&daemon, &held).await;
        held.set_being_kept(false);
        daemon.keeping.set(daemon.keeping.get() - 1);
        if let Err(fault) = &outcome {
            tracing::error!(%fault, image = held.name, "it is held in memory alone");
            daemon.events.tell(&held.name, "image-not-kept", Some(fault.message.clone()));
        }
        outcome
    })
}

async fn write(daemon: &Rc<Daemon>, held: &Arc<HeldImage>) -> Result<(), Fault> {
    let new = new_directory(&daemon.places);
    let (writer, directory) = (Arc::clone(held), new.clone());
    let parent = match held.parent() {
        Some(parent) => written_parent(daemon, parent, held).await,
        None => None,
    };
    let written = blocking(move || writer.keep(&directory, parent.as_deref())).await?;
    crash::point("image.written");
    let settled = written
        .map_err(|error| failure::call(&format!("writing image '{}' to the disk", held.name), &held.name, &error))
        .and_then(|()| settle(daemon, held, &new));
    if settled.is_err() || !held.is_kept() {
        crate::store::trash::discard(&daemon.places, &new);
        crate::store::trash::empty_trash(daemon.places.clone());
    }
    settled?;
    crash::point("image.kept");
    let images = daemon.places.images();
    // The name, too.
    blocking(move || drop(File::open(images).and_then(|directory| directory.sync_all()))).await
}

/// Where the image lies that another's memory is compared with, once it is on the disk.
async fn written_parent(daemon: &Daemon, parent: &Checkpoint, child: &Arc<HeldImage>) -> Option<PathBuf> {
    let held = daemon.images.borrow().get(&parent.image).cloned();
    // Another may have its name by now: the child itself, which would wait for itself.
    let held = held.filter(|held| held.checkpoint() == *parent && !Arc::ptr_eq(held, child))?;
    held.is_no_longer_being_kept().await;
    directory_of(daemon, parent)
}

/// Where an image lies that is on the disk, if it is there still. Should another get its name meanwhile, what is
/// written with it is right all the same: contents are compared.
pub(crate) fn directory_of(daemon: &Daemon, checkpoint: &Checkpoint) -> Option<PathBuf> {
    let held = daemon.images.borrow().get(&checkpoint.image).cloned();
    let is_it = held.is_some_and(|held| held.is_kept() && held.checkpoint() == *checkpoint);
    is_it.then(|| daemon.places.images().join(&checkpoint.image))
}

pub(crate) fn new_directory(places: &Places) -> PathBuf {
    places.images().join(format!(".new-{}", trash::unique()))
}

/// Gives an image's directory its name, unless the image was removed meanwhile, or is there already.
fn settle(daemon: &Daemon, held: &Arc<HeldImage>, new: &Path) -> Result<(), Fault> {
    let stays = daemon.images.borrow().get(&held.name).is_some_and(|now| Arc::ptr_eq(now, held));
    if !stays || held.is_kept() {
        return Ok(());
    }
    std::fs::rename(new, daemon.places.images().join(&held.name))
        .map_err(|error| failure::io("writing an image to the disk", &held.name, &error))?;
    held.note_kept();
    Ok(())
}

/// Sees to it that an image has a holder.
pub(crate) async fn wake(daemon: &Rc<Daemon>, held: &Arc<HeldImage>) -> Result<Arc<Frozen>, Fault> {
    if let Some(frozen) = held.held() {
        return Ok(frozen);
    }
    let (bed, held) = (bed(daemon, held), Arc::clone(held));
    blocking(move || held.wake(&bed)).await?
}

fn bed(daemon: &Daemon, held: &HeldImage) -> Bed {
    let layers = held.record.layers.iter().map(|layer| layers::standing(&daemon.places, layer)).collect();
    // In their midst, so that what a crash leaves of it goes with unused layers.
    let files = daemon.places.layers().join(format!("{}.files", trash::unique()));
    let root = Root { name: held.name.clone(), layers, files, disk: None, bounded: None, passing: true };
    Bed { directory: daemon.places.images().join(&held.name), root, store: Arc::clone(&daemon.store) }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        Fault::new(FaultKind::Failed, "image", format!("working on an image failed inside Pando: {error}"))
    })
}

/// All that is known of an image.
pub(crate) fn inspect(daemon: &Daemon, name: &str) -> Result<ImageInspection, Fault> {
    let held = find(daemon, name)?;
    let directory = held.is_kept().then(|| daemon.places.images().join(name).to_string_lossy().into_owned());
    Ok(ImageInspection {
        status: held.status(),
        spec: held.record.spec.clone(),
        layers: held.record.layers.clone(),
        directory,
        holder: held.held().map(|frozen| frozen.holder.pid()),
    })
}

/// Forgets of each guest that it was frozen into an image that goes: the next image of that name is another one, which
/// no guest's files may be given up for.
fn no_guest_is_in(daemon: &Daemon, name: &str) -> Result<(), Fault> {
    let guests: Vec<_> = daemon.guests.borrow().values().cloned().collect();
    let was_in_it = |guest: &&Rc<Guest>| guest.record.borrow().frozen_into.as_deref() == Some(name);
    guests.iter().filter(was_in_it).try_for_each(|guest| guest.goes_on(&daemon.places))
}

/// The same of images that have gone while no daemon ran.
pub(crate) fn forget_lost(daemon: &Daemon) {
    let guests: Vec<_> = daemon.guests.borrow().values().cloned().collect();
    for guest in guests {
        let image = guest.record.borrow().frozen_into.clone();
        let is_lost = image.is_some_and(|image| !daemon.images.borrow().contains_key(&image));
        if is_lost && let Err(fault) = guest.goes_on(&daemon.places) {
            tracing::warn!(?fault, guest = %guest.name, "forgetting the image that it was frozen into failed");
        }
    }
}

/// Forgets an image. Clones that were made of it live on.
pub(crate) fn remove(daemon: &Rc<Daemon>, name: &str) -> Result<(), Fault> {
    let directory = daemon.places.images().join(name);
    // One that cannot be read is removed all the same.
    let is_there = name.parse::<GuestName>().is_ok() && directory.exists();
    if is_there {
        nothing_is_mounted_in(&directory, &[])
            .map_err(|error| failure::io("removing the image", name, &error.into()))?;
    }
    no_guest_is_in(daemon, name)?;
    crate::network::connections::give_up(daemon, name);
    let held = daemon.images.borrow_mut().remove(name);
    if held.is_none() && !is_there {
        return Err(crate::failure::no_such_image(name));
    }
    if is_there {
        crate::store::trash::discard(&daemon.places, &directory);
    }
    if let Some(held) = held {
        daemon.standby_clones.give_up(&held);
        daemon.roots.give_up(&held.roots());
        crate::store::unused_layers::discard_unused(daemon, &held.record.layers);
        // The holder may have gigabytes to give back.
        drop(tokio::task::spawn_blocking(move || drop(held)));
    }
    crate::resources::admission::forget_image(daemon, name);
    daemon.events.tell(name, "image-remove", None);
    crate::store::trash::empty_trash(daemon.places.clone());
    Ok(())
}

/// Gives back the memory of an image that is on the disk. Its clones keep what they have.
pub(crate) fn release(daemon: &Rc<Daemon>, name: &str) -> Result<(), Fault> {
    let held = find(daemon, name)?;
    if !held.is_kept() {
        let message = format!(
            "image '{name}' is not on the disk, so that its memory is all there is of it; wait until it is ('pando images' says so), or remove it with 'pando image rm {name}'"
        );
        return Err(failure::bad(name, message));
    }
    daemon.standby_clones.give_up(&held);
    if let Some(frozen) = held.release() {
        // The holder may have gigabytes to give back.
        drop(tokio::task::spawn_blocking(move || drop(frozen)));
        daemon.events.tell(name, "image-release", None);
    }
    Ok(())
}

/// Writes an image and its files to a stream; up to its signature, if one is to follow, and what is to be signed.
pub(crate) async fn export(
    daemon: &Rc<Daemon>,
    name: &str,
    sign: bool,
    mut fds: Vec<OwnedFd>,
) -> Result<Option<String>, Fault> {
    let held = find(daemon, name)?;
    let Some(out) = fds.pop() else {
        return Err(failure::bad(name, "the call must carry a file descriptor for the export beside it"));
    };
    if let Some(layer) = held.record.layers.iter().find(|layer| layer.starts_with('/')) {
        let message = format!(
            "image '{name}' stands on files of this machine that lie at {layer} and change with it; an export cannot hold those. \
             Freeze a guest that was made with 'pando create --from': that has files of its own"
        );
        return Err(failure::bad(name, message));
    }
    if !held.is_kept() {
        write(daemon, &held).await?;
    }
    if !daemon.exporting.is_fewer_than(MOST_AT_ONCE) {
        let message = format!("{MOST_AT_ONCE} images are being exported already; wait until one of them has been read");
        return Err(Fault::new(FaultKind::Busy, name, message));
    }
    let _exporting = daemon.exporting.one_more();
    let (bed, image) = (bed(daemon, &held), name.to_owned());
    let packed = blocking(move || {
        root::prepare(&bed.root.files).map_err(|error| std::io::Error::other(error.to_string()))?;
        let mounted = bed.root.mount(None, &bed.store).map_err(|error| std::io::Error::other(error.to_string()));
        let packed = mounted.and_then(|mounted| {
            let tree = format!("/proc/{}/fd/{}", std::process::id(), mounted.tree.as_fd().as_raw_fd());
            let (directory, memory) = (bed.directory.as_path(), whole_memory(&bed.directory)?);
            Packed { name: &image, directory, memory, tree: Path::new(&tree) }.write(File::from(out), sign)
        });
        drop(remove_tree(&bed.root.files));
        packed
    });
    let statement = packed
        .await?
        .map_err(|error: std::io::Error| failure::io(&format!("exporting image '{name}'"), name, &error))?;
    Ok(sign.then(|| statement.text()))
}

/// The memory of an image on disk in one file, put together in one without a name where it lies in a chain. Blocking.
fn whole_memory(directory: &Path) -> std::io::Result<File> {
    use std::io::Seek;
    match File::open(directory.join("memory")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let mut whole = tempfile::tempfile_in(directory.parent().unwrap_or(directory))?;
    pando_freeze::fold(directory, whole.try_clone()?).map_err(|error| std::io::Error::other(error.to_string()))?;
    whole.rewind()?;
    Ok(whole)
}

/// What a client wants of an import.
pub(crate) struct ImportOrder {
    /// The image's name, if it is not to be the one that it had.
    pub(crate) name: Option<String>,
    /// The powers that the image is granted.
    pub(crate) allowed: Vec<String>,
    /// Whether a list of signers comes along, one of whom has to have signed it.
    pub(crate) verify: bool,
    /// What every spec has to pass that becomes a guest's.
    pub(crate) check: SpecCheck,
}

/// Looks for what would keep a guest from being started or stopped.
pub(crate) type SpecCheck = fn(&GuestName, &Spec) -> Result<(), Fault>;

/// Makes an image out of a stream.
pub(crate) async fn import(
    daemon: &Rc<Daemon>,
    order: ImportOrder,
    mut fds: Vec<OwnedFd>,
) -> Result<Arc<HeldImage>, Fault> {
    let ImportOrder { name, allowed, verify, check } = order;
    let object = name.clone().unwrap_or_else(|| "image".to_owned());
    let signers = if verify { fds.pop() } else { None };
    let (Some(input), true) = (fds.pop(), signers.is_some() == verify) else {
        let message = "the call must carry a file descriptor with the export beside it, and one with the signers after it if they are to be verified";
        return Err(failure::bad(&object, message));
    };
    if let Some(words) = image_wants::unknown(&allowed) {
        return Err(failure::bad(&object, words));
    }
    if let Some(name) = &name {
        free_name(daemon, name)?;
    }
    if !daemon.importing.is_fewer_than(MOST_AT_ONCE) {
        let message = format!("{MOST_AT_ONCE} images are being imported already; wait until one of them is there");
        return Err(Fault::new(FaultKind::Busy, &object, message));
    }
    let _importing = daemon.importing.one_more();
    let new = new_directory(&daemon.places);
    let (directory, places) = (new.clone(), daemon.places.clone());
    let read = blocking(move || {
        // What is wrong with the lists is said before anything is read.
        let trust = SignatureTrust::of(&places, signers)?;
        std::fs::create_dir(&directory)?;
        let unpacked = Unpacked::read(input, &directory)?;
        // Nothing of it was looked at yet.
        let signed = trust.judge(&unpacked)?;
        Ok::<_, std::io::Error>((unpacked.name, signed))
    });
    let imported = match read.await? {
        Ok((named, signed)) => {
            settle_import(daemon, name.unwrap_or(named), Terms { allowed, signed, check }, &new).await
        }
        Err(error) => Err(failure::bad(&object, format!("importing an image failed: {}", failure::reason(&error)))),
    };
    if imported.is_err() {
        crate::store::trash::discard(&daemon.places, &new);
        crate::store::trash::empty_trash(daemon.places.clone());
    }
    imported
}

/// What an import is taken on.
struct Terms {
    allowed: Vec<String>,
    signed: Option<Signed>,
    check: SpecCheck,
}

/// The files of an import that is in a directory become a layer, and the rest an image.
async fn settle_import(
    daemon: &Rc<Daemon>,
    name: String,
    Terms { allowed, signed, check }: Terms,
    new: &Path,
) -> Result<Arc<HeldImage>, Fault> {
    let guest = free_name(daemon, &name)?;
    let (directory, called) = (new.to_owned(), name.clone());
    let places = daemon.places.clone();
    let store = Arc::clone(&daemon.store);
    let made = blocking(move || -> Result<(ImageRecord, MadeLayer), Fault> {
        image_records::put_anew(&directory).map_err(|error| unusable(&called, &error))?;
        let record = ImageRecord::read(&directory).map_err(|error| unusable(&called, &error.into()))?;
        let powers = pando_freeze::adopt(&directory).map_err(|error| unusable(&called, &error))?;
        if let Some(words) = Wants::of(&record.spec, &powers).objection(&allowed) {
            return Err(failure::bad(&called, format!("image '{called}' is not imported: {words}")));
        }
        check(&guest, &record.spec)
            .map_err(|fault| failure::bad(&called, format!("image '{called}' is not imported: {}", fault.message)))?;
        let files = directory.join(crate::store::image_stream::FILES);
        let (progress, _) = mpsc::channel();
        let source = Source::Tarball(files.clone());
        let spec = record.spec.clone();
        let owner = format!("guest '{guest}'");
        let name = guest.to_string();
        let maker = Maker { places, source, spec, name, owner, guest_tree: None, layout: None, store, progress };
        let made = maker.make()?;
        // Connections with others stay with the machine that had them. Who signed it is not what it says itself, and
        // whether its clones are compared with it is not for whoever made it to say.
        let own = crate::network::connections::of_clones(&record);
        let connections = if Connection::is_sound(&own) { own } else { Vec::new() };
        // Nor is when a guest starts by itself, which is asked of whoever restores it.
        let spec = Spec { restart: Restart::No, boot: Boot::default(), ..record.spec.clone() };
        let layers = vec![made.name.clone()];
        let record = ImageRecord { layers, connections, signed, unchecked: false, spec, ..record };
        let io = |error| failure::io("importing an image", &called, &error);
        std::fs::remove_file(files).map_err(io)?;
        std::fs::remove_file(directory.join(crate::state::image::ABOUT)).map_err(io)?;
        record.write(&directory).map_err(|error| failure::call("importing an image", &called, &error))?;
        File::open(&directory).and_then(|disk| Ok(rustix::fs::syncfs(&disk)?)).map_err(io)?;
        Ok((record, made))
    });
    let (record, made) = made.await??;
    crash::point("image.imported");
    let settled = free_name(daemon, &name).and_then(|_| {
        std::fs::rename(new, daemon.places.images().join(&name))
            .map_err(|error| failure::io("importing an image", &name, &error))
    });
    if let Err(fault) = settled {
        drop(made.lease);
        crate::store::unused_layers::discard_unused(daemon, &record.layers);
        return Err(fault);
    }
    let held = HeldImage::kept(name.clone(), record);
    daemon.images.borrow_mut().insert(name.clone(), Arc::clone(&held));
    drop(made.lease);
    daemon.events.tell(&name, "image-import", None);
    Ok(held)
}

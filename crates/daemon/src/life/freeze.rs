//! Freezing a running guest: its processes, their memory, and its files, at one instant.

use super::files_ahead::Ahead;
use super::hooks::{self, Hooks};
use super::layers;
use crate::daemon::Daemon;
use crate::failure;
use crate::guest::Guest;
use crate::image::{HeldImage, ImageRecord};
use pando_api::{Fault, FaultKind};
use pando_freeze::{FreezeError, Frozen, Manner, Outside, Subject, freeze_with as freeze_processes};
use pando_guest::root::{self, Layer, LayerStore, Root};
use pando_store::StoreError;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// What a thread needs to freeze a guest.
struct Scene {
    init: i32,
    log: PathBuf,
    upper: PathBuf,
    layer: PathBuf,
    manner: Manner,
    /// What the image's files are put together from, once the layer is there.
    root: Root,
    store: Arc<LayerStore>,
}

/// Freezes a guest into an image.
pub(crate) async fn freeze(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    image: Option<String>,
) -> Result<Arc<HeldImage>, Fault> {
    let name = super::image::free_name(daemon, image.as_deref().unwrap_or(guest.name.as_ref()))?;
    let _doing = guest.begin("frozen")?;
    let running = guest.life()?;
    let hooks = Hooks::find(guest, &running, hooks::FREEZE).await?;
    let held = match hooks.before(daemon, guest).await {
        Ok(()) => capture(daemon, guest, (name.to_string(), running.pid)).await,
        Err(fault) => Err(fault),
    };
    hooks.after(daemon, guest).await;
    held
}

/// The same, when the guest has been told.
async fn capture(daemon: &Rc<Daemon>, guest: &Rc<Guest>, (name, init): (String, i32)) -> Result<Arc<HeldImage>, Fault> {
    let spec = guest.spec.borrow().clone();
    if spec.init.is_some() {
        return Err(failure::bad(
            guest.name.as_ref(),
            format!("guest '{}' boots an init of its own; such guests cannot be frozen yet", guest.name),
        ));
    }
    let layer = format!("{name}-{}", layers::unique());
    let path = daemon.places.layers().join(&layer);
    let mut below = layers::root(daemon, guest)?;
    if below.bounded.is_some() {
        let message =
            format!("guest '{}' has its files on a disk of limited size; such guests cannot be frozen yet", guest.name);
        return Err(failure::bad(guest.name.as_ref(), message));
    }
    let upper = below.files.join("upper");
    below.layers.insert(0, Layer::Tree(path.clone()));
    below.files = path.with_file_name(format!("{layer}.files"));
    below.passing = true;
    let scene = Scene {
        init,
        log: guest.log(&daemon.places),
        upper,
        layer: path.clone(),
        // What it writes to while its memory is copied is there twice, which a limit might not allow.
        manner: if spec.memory.limit.is_none() { Manner::Snapshots } else { Manner::AtRest },
        root: below,
        store: Arc::clone(&daemon.store),
    };
    let files = scene.root.files.clone();
    let frozen = tokio::task::spawn_blocking(move || scene.freeze()).await.map_err(|error| {
        Fault::new(FaultKind::Failed, guest.name.as_ref(), format!("freezing the guest failed inside Pando: {error}"))
    });
    // It is there for nothing but the mount that has been made by now.
    super::remove::discard(&daemon.places, &files);
    let frozen = frozen.and_then(|frozen| frozen.map_err(|error| fault(guest, &error))).inspect_err(|_| {
        super::remove::discard(&daemon.places, &path);
    })?;
    let mut all = guest.record.borrow().layers.clone();
    all.insert(0, layer);
    let command = command(&frozen, &spec.command);
    let record = ImageRecord::new(guest.name.to_string(), spec, all, command, &frozen);
    let held = HeldImage::frozen(name.clone(), record, frozen);
    daemon.images.borrow_mut().insert(name.clone(), Arc::clone(&held));
    daemon.roots.foresee(&held.roots());
    daemon.events.tell(guest.name.as_ref(), "freeze", Some(name));
    Ok(held)
}

/// The pid of what the guest's first process ran: its oldest child, in a guest that has a command.
fn command(frozen: &Frozen, command: &[String]) -> Option<i32> {
    let image = &frozen.image;
    let children = image.processes.iter().filter(|process| process.parent == image.init);
    children.map(|process| process.pid).min().filter(|_| !command.is_empty())
}

fn fault(guest: &Guest, error: &FreezeError) -> Fault {
    let name = guest.name.as_ref();
    match error {
        FreezeError::Call(error) => failure::call(&format!("freezing guest '{name}'"), name, error),
        FreezeError::Refused(_) => Fault::new(FaultKind::BadRequest, name, format!("guest '{name}' {error}")),
        other => Fault::new(FaultKind::Failed, name, format!("freezing guest '{name}' failed: {other}")),
    }
}

impl Scene {
    /// Freezes the guest. Blocking.
    fn freeze(&self) -> Result<Frozen, FreezeError> {
        let mut outside = Vec::new();
        if let Ok(log) = std::fs::metadata(&self.log) {
            outside.push(Outside { device: log.dev(), inode: log.ino() });
        }
        root::prepare(&self.root.files)?;
        let ahead = Ahead::begin(&self.upper, &self.layer, || {
            // What will be refused need not be copied for it.
            let free = pando_freeze::survey(self.init, &outside).is_ok_and(|refusals| refusals.is_empty());
            free.then(|| pando_freeze::written_mappings(self.init).ok()).flatten()
        });
        let subject = Subject { init: self.init, outside: &outside, in_memory: &["/dev/shm"] };
        freeze_processes(
            &subject,
            self.manner,
            || ahead.finish(),
            |()| {
                let mounted = self.root.mount(None, &self.store);
                mounted.map(|mounted| OwnedFd::from(mounted.tree)).map_err(StoreError::into_call)
            },
        )
    }
}

//! Frozen images, as the daemon holds them: in memory by a holder, on the disk, or both.

use crate::failure;
use crate::warm::ready_roots::{Ancestor, RootKind};
use pando_api::{Boot, Fault, FaultKind, ImageStatus, Restart, Spec};
use pando_freeze::{
    Connection, Frozen, Generator, ImageFileError, Kind, LoadError, load, read_image_file, write_image_file,
};
use pando_guest::plan::Heritage;
use pando_guest::policy::profile;
use pando_guest::root::{self, LayerStore, Root};
use pando_kernel::file::tree_removal::remove_tree;
use pando_kernel::{CallError, Context};
use pando_reader::signature::Signed;
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The file that has the record, beside those of the processes.
pub(crate) const ABOUT: &str = "about";

/// The longest record that is read.
pub(crate) const LONGEST_ABOUT: u64 = 16 << 20;

/// What is known of an image without its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    /// The guest that was frozen.
    pub(crate) guest: String,
    /// What its user said of that.
    pub(crate) spec: Spec,
    /// The read-only trees that clones stand on, uppermost first: the frozen guest's own files, then what that stood
    /// on.
    pub(crate) layers: Vec<String>,
    /// The pid of the frozen guest's command, if it ran one.
    pub(crate) command: Option<i32>,
    /// When it was frozen, in seconds since the epoch.
    pub(crate) created: i64,
    pub(crate) processes: i64,
    pub(crate) threads: i64,
    pub(crate) memory_kib: i64,
    pub(crate) pause_us: i64,
    /// The TCP connections that the frozen guest had: with itself, and, if it ended there, with others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) connections: Vec<Connection>,
    /// What whoever clones it ought to know, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    /// Where a process of it waits to hear that it was frozen, if that was its own request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<u32>,
    /// Whether no clone of it is compared with what was frozen: whoever froze it wanted that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unchecked: bool,
    /// Who signed it, if it was imported and signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signed: Option<Signed>,
}

/// A frozen guest. Other threads make clones of it.
#[derive(Debug)]
pub(crate) struct HeldImage {
    pub(crate) name: String,
    pub(crate) record: ImageRecord,
    /// What has its memory, if that was ever needed here.
    frozen: Mutex<Option<Arc<Frozen>>>,
    /// Whoever reads it from the disk has this: that takes long, and the field above is asked by everybody.
    waking: Mutex<()>,
    /// Whether it is on the disk.
    kept: AtomicBool,
    /// The image that its memory is most like, where it was frozen here.
    parent: Option<Checkpoint>,
    /// Whether it is being written to the disk.
    is_being_kept: watch::Sender<bool>,
}

/// An image that a guest came out of, or was frozen into last: what it has in memory is most like that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The image's name.
    pub(crate) image: String,
    /// When it was frozen: another may have its name by now.
    pub(crate) created: i64,
}

/// Where an image on disk lies, and what its files are put together from.
pub(crate) struct Bed {
    pub(crate) directory: PathBuf,
    pub(crate) root: Root,
    pub(crate) store: Arc<LayerStore>,
}

impl ImageRecord {
    /// Of what was just frozen.
    pub(crate) fn new(guest: String, spec: Spec, layers: Vec<String>, command: Option<i32>, frozen: &Frozen) -> Self {
        let processes = &frozen.image.processes;
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            guest,
            spec,
            layers,
            command,
            created: crate::state::events::now(),
            processes: number(processes.len()),
            threads: number(processes.iter().map(|process| process.threads.len()).sum()),
            memory_kib: i64::try_from(frozen.image.memory() / 1024).unwrap_or(i64::MAX),
            pause_us: i64::try_from(frozen.pause.as_micros()).unwrap_or(i64::MAX),
            connections: Vec::new(),
            warnings: repeated_numbers(&frozen.generators).into_iter().chain(unheard(frozen)).collect(),
            answer: None,
            unchecked: false,
            signed: None,
        }
    }

    /// Reads that of an image on disk.
    pub(crate) fn read(directory: &Path) -> Result<Self, ImageFileError> {
        let path = directory.join(ABOUT);
        let body = read_image_file(&path, Kind::About, LONGEST_ABOUT)?;
        serde_json::from_slice(&body)
            .map_err(|error| ImageFileError::Damaged { path, what: format!("it says nothing sensible ({error})") })
    }

    pub(crate) fn write(&self, directory: &Path) -> Result<(), CallError> {
        let path = directory.join(ABOUT);
        let write = || write_image_file(&path, Kind::About, &serde_json::to_vec_pretty(self)?);
        write().context(|| format!("writing {}", path.display()))
    }
}

/// What is said of processes whose random numbers are the same in all clones.
fn repeated_numbers(generators: &[Generator]) -> Option<String> {
    let first = generators.first()?;
    let others = match generators.len() - 1 {
        0 => String::new(),
        1 => " and one more".into(),
        number => format!(" and {number} more"),
    };
    Some(format!(
        "process {} ({}){others}: random numbers of OpenSSL ({}) are the same in all clones, for an hour or until it is seeded anew; have a hook in /etc/pando/clone.d, \
         'pando clone --signal', or a look at /dev/pando-generation bring that about",
        first.pid, first.name, first.path
    ))
}

/// What is said of clients whose servers have not accepted them, and to which they have sent something by TCP, where
/// the kernel does not tell what.
fn unheard(frozen: &Frozen) -> Option<String> {
    let count = Some(frozen.unheard).filter(|count| *count > 0)?;
    Some(format!(
        "{count} connections by TCP from the guest to itself that no server has accepted, with something sent, are reset in clones and in a restored guest; \
         have the servers accept them before a freeze"
    ))
}

impl HeldImage {
    /// One that was just frozen, and is not on the disk yet.
    pub(crate) fn frozen(
        name: String,
        (record, frozen): (ImageRecord, Frozen),
        parent: Option<Checkpoint>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            record,
            frozen: Mutex::new(Some(Arc::new(frozen))),
            waking: Mutex::new(()),
            kept: AtomicBool::new(false),
            parent,
            is_being_kept: watch::Sender::new(false),
        })
    }

    /// One that is on the disk.
    pub(crate) fn kept(name: String, record: ImageRecord) -> Arc<Self> {
        let (frozen, waking) = (Mutex::new(None), Mutex::new(()));
        let (kept, is_being_kept) = (AtomicBool::new(true), watch::Sender::new(false));
        Arc::new(Self { name, record, frozen, waking, kept, parent: None, is_being_kept })
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    pub(crate) fn note_kept(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// What holds it now, if anything that lives does. One that is just being read from the disk is not there yet.
    pub(crate) fn held(&self) -> Option<Arc<Frozen>> {
        self.slot().clone().filter(|frozen| frozen.holder.is_alive())
    }

    /// What holds it; from the disk, if nothing does any more. Blocking.
    pub(crate) fn wake(&self, bed: &Bed) -> Result<Arc<Frozen>, Fault> {
        let _waking = self.waking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = self.held() {
            return Ok(held);
        }
        *self.slot() = None;
        if !self.is_kept() {
            let message = format!(
                "image '{0}' was held in memory by a process that has been killed, and is not on the disk; remove it with 'pando image rm {0}', and freeze again",
                self.name
            );
            return Err(Fault::new(FaultKind::Failed, &self.name, message));
        }
        let fault =
            |error| Fault::new(FaultKind::Failed, &self.name, format!("image '{}' cannot be used: {error}", self.name));
        let woken = bed.load().map_err(fault)?;
        if self.record.unchecked {
            woken.take_as_alike();
        }
        Ok(Arc::clone(self.slot().insert(Arc::new(woken))))
    }

    /// What holds it, for whoever gives that up: it is read from the disk when it is needed again.
    pub(crate) fn release(&self) -> Option<Arc<Frozen>> {
        self.slot().take()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Frozen>>> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that it is being written to the disk, or is not any more.
    pub(crate) fn set_being_kept(&self, is_being_kept: bool) {
        self.is_being_kept.send_replace(is_being_kept);
    }

    /// Waits until nobody is writing it to the disk.
    pub(crate) async fn is_no_longer_being_kept(&self) {
        let _ = self.is_being_kept.subscribe().wait_for(|is_being_kept| !is_being_kept).await;
    }

    /// The image that its memory is most like.
    pub(crate) fn parent(&self) -> Option<&Checkpoint> {
        self.parent.as_ref()
    }

    /// What says which image this is, as long as there is one.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint { image: self.name.clone(), created: self.record.created }
    }

    /// Writes it to the disk, into a directory; of what a parent has, a directory too, only where it lies. Blocking.
    pub(crate) fn keep(&self, directory: &Path, parent: Option<&Path>) -> Result<(), CallError> {
        let Some(frozen) = self.held() else {
            return Err(std::io::Error::other("its holder has ended"))
                .context(|| format!("writing image '{}'", self.name));
        };
        keep(directory, (&self.record, &frozen), parent)
    }

    /// What of its first processes a clone has out of it.
    pub(crate) fn heritage(&self) -> Heritage {
        match (&self.record.spec.init, self.record.command) {
            (Some(_), _) => Heritage::Init,
            (None, Some(pid)) => Heritage::Command(pid),
            (None, None) => Heritage::None,
        }
    }

    /// What its clones are said to be: as the frozen guest was, but for what was that guest's alone: host name,
    /// addresses, ports, and that it is started again.
    pub(crate) fn spec_of_clones(&self) -> Spec {
        Spec {
            hostname: None,
            addresses: Vec::new(),
            publish: Vec::new(),
            restart: Restart::No,
            boot: Boot::default(),
            ..self.record.spec.clone()
        }
    }

    /// The root file systems of its clones.
    pub(crate) fn roots(&self) -> RootKind {
        self.roots_of(self.spec_of_clones(), false)
    }

    /// That of the frozen guest itself.
    pub(crate) fn root_of_itself(&self) -> RootKind {
        self.roots_of(self.record.spec.clone(), true)
    }

    fn roots_of(&self, spec: Spec, itself: bool) -> RootKind {
        let ancestor = Ancestor {
            image: self.name.clone(),
            created: self.record.created,
            spec: profile::completed(&spec),
            heritage: self.heritage(),
            itself,
        };
        RootKind::of_clones(&self.record.layers, ancestor)
    }

    /// Its line in a listing.
    pub(crate) fn status(&self) -> ImageStatus {
        let ImageRecord { guest, created, processes, threads, memory_kib, pause_us, warnings, .. } =
            self.record.clone();
        ImageStatus {
            name: self.name.clone(),
            guest,
            created,
            processes,
            threads,
            memory_kib,
            pause_us,
            kept: self.is_kept(),
            held: self.held().is_some(),
            warnings: Some(warnings).filter(|warnings| !warnings.is_empty()),
            signed_by: self.record.signed.as_ref().and_then(|signed| signed.identity.clone()),
            signing_key: self.record.signed.as_ref().map(|signed| signed.key.clone()),
        }
    }
}

impl Bed {
    fn load(&self) -> Result<Frozen, LoadError> {
        root::prepare(&self.root.files)?;
        let mounted = self.root.mount(None, &self.store).map_err(|error| LoadError::Call(error.into_call()));
        // They are there for nothing but the mount.
        let thawed = mounted.and_then(|mounted| load(&self.directory, mounted.tree.as_fd()));
        drop(remove_tree(&self.root.files));
        thawed
    }
}

/// Writes an image and the files that were frozen with it to the disk; of what a parent has, a directory too, only
/// where it lies. Blocking.
pub(crate) fn keep(
    directory: &Path,
    (record, frozen): (&ImageRecord, &Frozen),
    parent: Option<&Path>,
) -> Result<(), CallError> {
    let what = || format!("writing {}", directory.display());
    std::fs::create_dir(directory).context(what)?;
    frozen.keep(directory, parent)?;
    record.write(directory)?;
    let directory = std::fs::File::open(directory).context(what)?;
    rustix::fs::syncfs(&directory).context(what)
}

/// The words for why an image on disk cannot be used.
pub(crate) fn unusable(name: &str, error: &LoadError) -> Fault {
    failure::bad(name, format!("image '{name}' cannot be used: {error}"))
}

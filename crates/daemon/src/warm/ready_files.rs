//! Files for guests that go away with their command, made ahead: empty ones, and ones that hide the host's secrets.

use crate::failure;
use crate::runtime::idle::Idle;
use crate::store::layers::own_directories;
use crate::store::trash::unique;
use pando_api::{Fault, FaultKind, Spec, Volume};
use pando_guest::source::Source;
use pando_guest::{Places, mask, root};
use pando_kernel::file::tree_removal::remove_tree;
use pando_kernel::{CallError, Context};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How many of a kind are kept ready.
const READY: usize = 4;

/// How many kinds are kept ready; more are made when they are asked for.
const KINDS: usize = 4;

/// The kind of a guest's own files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FilesKind {
    /// No files: an empty directory.
    Empty,
    /// Those for a guest on the host's own root, which hide what is secret there.
    Masked {
        /// What of it is not hidden, and where that leads.
        expose: Vec<PathBuf>,
        /// The state of the host that they were made in.
        state: Vec<(i64, i64)>,
    },
    /// Those for a clone, which is a guest that lasts.
    Clone {
        /// The bytes that they may take, and how many they may be.
        room: (Option<u64>, Option<u64>),
        /// Whether a quota can hold them to that.
        quotas: bool,
    },
}

impl FilesKind {
    /// Whether they are for a guest that lasts.
    pub(crate) fn last(&self) -> bool {
        matches!(self, Self::Clone { .. })
    }

    /// The most bytes that they may take, if they are bounded.
    pub(crate) fn bound(&self) -> Option<u64> {
        if let Self::Clone { room: (size, _), .. } = self { *size } else { None }
    }
}

/// The files that are ready.
#[derive(Debug)]
pub(crate) struct ReadyFiles {
    places: Places,
    idle: Idle,
    ready: RefCell<HashMap<FilesKind, VecDeque<Files>>>,
    refilling: Cell<bool>,
}

/// A directory of files that is nobody's yet, and is deleted if it never becomes anybody's.
#[derive(Debug)]
pub(crate) struct Files(Option<PathBuf>);

impl Files {
    /// Where they lie for now.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.clone().unwrap_or_default()
    }

    /// Gives them to a guest that goes away with its command, where they are: the name of their directory, which is
    /// deleted with the guest.
    pub(crate) fn keep(mut self) -> String {
        let path = self.0.take().unwrap_or_default();
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Gives them to a guest, whose directory they become.
    pub(crate) fn become_those_of(mut self, directory: &Path) -> io::Result<()> {
        let path = self.0.as_ref().ok_or(io::ErrorKind::NotFound)?;
        std::fs::rename(path, directory)?;
        self.0 = None;
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // What cannot be deleted now is swept away by the next daemon.
            let _ = remove_tree(&path);
        }
    }
}

impl ReadyFiles {
    pub(crate) fn new(places: &Places, idle: Idle) -> Rc<Self> {
        Rc::new(Self { places: places.clone(), idle, ready: RefCell::default(), refilling: Cell::new(false) })
    }

    /// Files of a kind: ready ones, or ones made now.
    pub(crate) async fn take(self: &Rc<Self>, kind: FilesKind) -> Result<Files, Fault> {
        let ready = self.ready.borrow_mut().get_mut(&kind).and_then(VecDeque::pop_front);
        let files = match ready {
            Some(files) => files,
            None => self.make(&kind).await?,
        };
        self.refill(kind);
        Ok(files)
    }

    /// The kind for a guest on `source`. What is exposed below something hidden becomes a volume of the spec. `expose`
    /// has where that leads, too.
    pub(crate) fn kind(&self, source: &Source, expose: &[PathBuf], spec: &mut Spec) -> FilesKind {
        if *source != Source::Host {
            return FilesKind::Empty;
        }
        for path in mask::on_top(expose, &own_directories(&self.places)) {
            let path = path.to_string_lossy().into_owned();
            spec.volumes.push(Volume { source: path.clone(), target: path, read_only: true });
        }
        FilesKind::Masked { expose: expose.to_vec(), state: state_of_host() }
    }

    /// Files of a kind, made now.
    pub(crate) async fn make(&self, kind: &FilesKind) -> Result<Files, Fault> {
        let (places, kind) = (self.places.clone(), kind.clone());
        let made = tokio::task::spawn_blocking(move || make(&places, &kind)).await;
        match made {
            Ok(made) => made.map_err(|error| failure::call("making a guest's files", "run", &error)),
            Err(error) => Err(Fault::new(
                FaultKind::Failed,
                "run",
                format!("making a guest's files failed inside Pando: {error}"),
            )),
        }
    }

    /// Makes files of a kind until enough are ready, in the background. Of the kinds, those used last are kept.
    fn refill(self: &Rc<Self>, kind: FilesKind) {
        if self.refilling.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            this.idle.come().await;
            if this.ready.borrow().len() >= KINDS && !this.ready.borrow().contains_key(&kind) {
                let old = std::mem::take(&mut *this.ready.borrow_mut());
                drop(tokio::task::spawn_blocking(move || drop(old)));
            }
            // Each takes its whole room.
            let enough = if kind.bound().is_some() { 1 } else { READY };
            while this.ready.borrow().get(&kind).map_or(0, VecDeque::len) < enough {
                match this.make(&kind).await {
                    Ok(files) => this.ready.borrow_mut().entry(kind.clone()).or_default().push_back(files),
                    Err(fault) => {
                        tracing::warn!(%fault, "making files ahead failed");
                        break;
                    }
                }
            }
            this.refilling.set(false);
        });
    }
}

fn make(places: &Places, kind: &FilesKind) -> Result<Files, CallError> {
    // A leading dot: no guest's name has one.
    let beside = if kind.last() { places.guests() } else { places.ephemeral() };
    let path = beside.join(format!(".{}", unique()));
    let files = Files(Some(path.clone()));
    let inside = path.join(crate::state::record::FILES);
    if let FilesKind::Clone { room: (Some(size), inodes), quotas } = kind {
        std::fs::create_dir(&path).context(|| format!("making {}", path.display()))?;
        crate::state::record::room(&path).make(*size, *inodes, *quotas)?;
    }
    root::prepare(&inside)?;
    if kind.last() {
        crate::state::unsettled::mark(&path)?;
    }
    if let FilesKind::Masked { expose, .. } = kind {
        mask::make(&inside.join("upper"), expose, &own_directories(places))?;
    }
    Ok(files)
}

/// When the directories last changed in which secrets come and go by name: a mask is good for one state of them.
fn state_of_host() -> Vec<(i64, i64)> {
    const WATCHED: [&str; 12] = [
        "/",
        "/etc",
        "/etc/ssh",
        "/etc/ssl",
        "/etc/apt",
        "/etc/passwd",
        "/etc/group",
        "/var",
        "/var/lib",
        "/home",
        "/root",
        "/boot",
    ];
    WATCHED.map(|path| Path::new(path).metadata().map_or((0, 0), |found| (found.ctime(), found.ctime_nsec()))).to_vec()
}

//! Root file systems for guests that go away with their command, put together ahead, each with the sprout that it is for: its ids are that one's.
//!
//! Putting one together takes a good part of what a start takes besides. Who runs one short command after another runs most of them on the same tree,
//! so as soon as a kind of root was asked for twice in a row, a few of that kind are kept ready.

use crate::failure;
use crate::lull::Lull;
use crate::pool::{Pool, Sprout};
use crate::ready_files::{Files, FilesKind, ReadyFiles};
use crate::record::FILES;
use pando_api::Fault;
use pando_guest::plan::SproutKind;
use pando_guest::root::{Mounted, Owner, Root};
use pando_guest::{Places, slot};
use pando_kernel::mount::Tree;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;

/// How many are kept ready.
const READY: usize = 4;

/// The name of a guest's root file system in /proc/mounts where the guest's own is not known yet.
pub(crate) const NAME: &str = "pando";

/// What kind of root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootKind {
    sprout: SproutKind,
    layers: Vec<String>,
    /// Device and inode of each layer: a path may come to lead elsewhere.
    identities: Vec<(u64, u64)>,
    files: FilesKind,
}

impl RootKind {
    /// The kind of a root on trees of the host. `None` where none should be kept ready: on a file system that somebody may want to unmount.
    pub(crate) fn new(places: &Places, sprout: SproutKind, layers: &[String], files: &FilesKind) -> Option<Self> {
        let identity = |path: &PathBuf| path.metadata().ok().map(|found| (found.dev(), found.ino()));
        let stays = [PathBuf::from("/"), places.state()].map(|path| identity(&path).map(|(device, _)| device));
        let identities: Vec<_> = layers.iter().map(|layer| identity(&PathBuf::from(layer))).collect::<Option<_>>()?;
        let lasting = identities.iter().all(|(device, _)| stays.contains(&Some(*device)));
        lasting.then(|| Self { sprout, layers: layers.to_vec(), identities, files: files.clone() })
    }
}

/// A root that waits for its guest.
#[derive(Debug)]
pub(crate) struct ReadyRoot {
    /// The first process that it is for.
    pub(crate) sprout: Sprout,
    /// It, as a detached tree.
    pub(crate) tree: Tree,
    /// The guest's own files in it.
    pub(crate) files: Files,
}

/// The roots that are ready.
#[derive(Debug)]
pub(crate) struct ReadyRoots {
    pool: Rc<Pool>,
    files: Rc<ReadyFiles>,
    lull: Lull,
    kind: RefCell<Option<RootKind>>,
    /// Of the last kind that was asked for twice in a row.
    ready: RefCell<VecDeque<(RootKind, ReadyRoot)>>,
    refilling: Cell<bool>,
    closed: Cell<bool>,
}

impl ReadyRoots {
    pub(crate) fn new(pool: &Rc<Pool>, files: &Rc<ReadyFiles>, lull: &Lull) -> Rc<Self> {
        Rc::new(Self {
            pool: Rc::clone(pool),
            files: Rc::clone(files),
            lull: lull.clone(),
            kind: RefCell::default(),
            ready: RefCell::default(),
            refilling: Cell::new(false),
            closed: Cell::new(false),
        })
    }

    /// A ready root of a kind, if there is one.
    pub(crate) fn take(self: &Rc<Self>, kind: RootKind) -> Option<ReadyRoot> {
        let again = self.kind.replace(Some(kind.clone())).as_ref() == Some(&kind);
        let mut taken = None;
        while taken.is_none() {
            let found = self.ready.borrow().iter().position(|(ready, _)| *ready == kind);
            let Some((_, root)) = found.and_then(|found| self.ready.borrow_mut().remove(found)) else { break };
            if root.sprout.has_ended() { self.discard(root) } else { taken = Some(root) }
        }
        if again {
            self.refill(kind);
        }
        taken
    }

    /// Makes roots of a kind until enough are ready, in the background. Those of other kinds go.
    fn refill(self: &Rc<Self>, kind: RootKind) {
        if self.refilling.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            this.lull.come().await;
            let (wanted, others) = this.ready.take().into_iter().partition(|(ready, _)| *ready == kind);
            this.ready.replace(wanted);
            let others: VecDeque<(RootKind, ReadyRoot)> = others;
            others.into_iter().for_each(|(_, root)| this.discard(root));
            while this.ready.borrow().len() < READY && !this.closed.get() {
                match this.make(&kind).await {
                    Ok(root) if this.closed.get() => this.discard(root),
                    Ok(root) => this.ready.borrow_mut().push_back((kind.clone(), root)),
                    // The guest's own start meets the same hindrance, and tells of it.
                    Err(fault) => {
                        tracing::debug!(%fault, "making a root file system ahead failed");
                        break;
                    }
                }
                this.lull.come().await;
            }
            this.refilling.set(false);
        });
    }

    async fn make(&self, kind: &RootKind) -> Result<ReadyRoot, Fault> {
        let files = self.files.make(&kind.files).await?;
        let root = Root {
            name: NAME.to_owned(),
            layers: kind.layers.iter().map(PathBuf::from).collect(),
            files: files.path().join(FILES),
            disk: None,
            passing: true,
        };
        let sprout = self.pool.make(kind.sprout).await.map_err(|error| failure::io("making a place", NAME, &error))?;
        let owner = sprout.namespace.as_ref().map(OwnedFd::try_clone).transpose();
        let (owner, first_id) =
            (owner.map_err(|error| failure::io("copying a descriptor", NAME, &error))?, slot::first_id(sprout.slot));
        let made = tokio::task::spawn_blocking(move || {
            let owner = owner.as_ref().map(|owner| Owner { namespace: owner.as_fd(), first_id });
            root.mount(owner).map(|Mounted { tree, .. }| tree)
        });
        let made = made.await.map_err(std::io::Error::other);
        match made.map(|made| made.map_err(|error| failure::call("putting a root together", NAME, &error))) {
            Ok(Ok(tree)) => Ok(ReadyRoot { sprout, tree, files }),
            Ok(Err(fault)) => {
                self.pool.discard(sprout);
                Err(fault)
            }
            Err(error) => {
                self.pool.discard(sprout);
                Err(failure::io("putting a root together", NAME, &error))
            }
        }
    }

    fn discard(&self, root: ReadyRoot) {
        let ReadyRoot { sprout, tree, files } = root;
        self.pool.discard(sprout);
        // Closing it waits for a grace period, and deleting for the disk.
        drop(tokio::task::spawn_blocking(move || drop((tree, files))));
    }

    /// Lets all of them go, and makes no more.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.ready.take().into_iter().for_each(|(_, root)| self.discard(root));
    }
}

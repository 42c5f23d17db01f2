//! Root file systems for guests that go away with their command, put together ahead, each with the sprout that it is for: its ids are that one's.
//!
//! Putting one together takes a good part of what a start takes besides. Who runs one short command after another runs most of them on the same few
//! trees, so once a kind of root was asked for twice within a few starts, some of that kind are kept ready.

use crate::failure;
use crate::lull::Lull;
use crate::pool::{Pool, Sprout};
use crate::ready_files::{Files, FilesKind, ReadyFiles};
use crate::record::FILES;
use pando_api::Fault;
use pando_guest::plan::SproutKind;
use pando_guest::root::{Layer, LayerStore, Mounted, Owner, Root, add_mount_points};
use pando_guest::{Places, slot};
use pando_kernel::Context;
use pando_kernel::mount::Tree;
use pando_store::StoreError;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// How many of a kind are kept ready, and of how many kinds.
const READY: usize = 4;
const KINDS: usize = 4;

/// Within how many starts a kind must have been asked for twice.
const FEW: usize = 8;

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
    store: Arc<LayerStore>,
    lull: Lull,
    /// The kinds that were asked for last, the latest first.
    asked: RefCell<VecDeque<RootKind>>,
    /// By kind, the one asked for last first.
    ready: RefCell<Vec<(RootKind, VecDeque<ReadyRoot>)>>,
    refilling: Cell<bool>,
    closed: Cell<bool>,
}

impl ReadyRoots {
    pub(crate) fn new(pool: &Rc<Pool>, files: &Rc<ReadyFiles>, lull: &Lull, store: &Arc<LayerStore>) -> Rc<Self> {
        Rc::new(Self {
            pool: Rc::clone(pool),
            files: Rc::clone(files),
            store: Arc::clone(store),
            lull: lull.clone(),
            asked: RefCell::default(),
            ready: RefCell::default(),
            refilling: Cell::new(false),
            closed: Cell::new(false),
        })
    }

    /// A ready root of a kind, if there is one.
    pub(crate) fn take(self: &Rc<Self>, kind: RootKind) -> Option<ReadyRoot> {
        let again = self.asked.borrow().contains(&kind);
        self.asked.borrow_mut().push_front(kind.clone());
        self.asked.borrow_mut().truncate(FEW);
        let mut of_kind = self.remove(&kind);
        let mut taken = None;
        while let Some(root) = of_kind.pop_front() {
            if !root.sprout.has_ended() {
                taken = Some(root);
                break;
            }
            self.discard(root);
        }
        if again {
            self.ready.borrow_mut().insert(0, (kind, of_kind));
            self.refill();
        }
        taken
    }

    /// The ready roots of a kind, which are not kept any more.
    fn remove(&self, kind: &RootKind) -> VecDeque<ReadyRoot> {
        let mut ready = self.ready.borrow_mut();
        let found = ready.iter().position(|(ready, _)| ready == kind);
        found.map(|found| ready.remove(found).1).unwrap_or_default()
    }

    /// Makes roots until enough of each kind are ready, in the background. Those of kinds that were not asked for lately go.
    fn refill(self: &Rc<Self>) {
        if self.refilling.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            this.lull.come().await;
            while let Some(kind) = this.short_of() {
                match this.make(&kind).await {
                    Ok(root) => this.keep(&kind, root),
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

    /// A kind of which there are too few.
    fn short_of(&self) -> Option<RootKind> {
        let mut ready = self.ready.borrow_mut();
        let kinds = ready.len().min(KINDS);
        ready.drain(kinds..).flat_map(|(_, roots)| roots).for_each(|root| self.discard(root));
        ready.iter().find(|(_, roots)| roots.len() < READY && !self.closed.get()).map(|(kind, _)| kind.clone())
    }

    /// Keeps a root, if its kind is still wanted.
    fn keep(&self, kind: &RootKind, root: ReadyRoot) {
        let mut ready = self.ready.borrow_mut();
        match ready.iter_mut().find(|(ready, _)| ready == kind).filter(|_| !self.closed.get()) {
            Some((_, roots)) => roots.push_back(root),
            None => self.discard(root),
        }
    }

    async fn make(&self, kind: &RootKind) -> Result<ReadyRoot, Fault> {
        let files = self.files.make(&kind.files).await?;
        let root = Root {
            name: NAME.to_owned(),
            layers: kind.layers.iter().map(|layer| Layer::Tree(layer.into())).collect(),
            files: files.path().join(FILES),
            disk: None,
            passing: true,
        };
        let sprout = self.pool.make(kind.sprout).await.map_err(|error| failure::io("making a place", NAME, &error))?;
        let identities = kind.identities.clone();
        let owner = sprout.namespace.as_ref().map(OwnedFd::try_clone).transpose();
        let first_id = slot::first_id(sprout.slot);
        let store = Arc::clone(&self.store);
        let made = tokio::task::spawn_blocking(move || {
            let owner = owner.context(|| "copying a descriptor".into())?;
            let owner = owner.as_ref().map(|owner| Owner { namespace: owner.as_fd(), first_id });
            mount(&root, owner, &store, &identities)
        });
        let made = made.await.unwrap_or_else(|error| {
            Err(std::io::Error::other(error)).context(|| "mounting".into()).map_err(StoreError::from)
        });
        match made {
            Ok(tree) => Ok(ReadyRoot { sprout, tree, files }),
            Err(error) => {
                self.pool.discard(sprout);
                Err(failure::store("putting a root together", NAME, &error))
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
        self.ready.take().into_iter().flat_map(|(_, roots)| roots).for_each(|root| self.discard(root));
    }
}

/// Puts a root together of layers that still are what they were when it was asked for. Blocking.
fn mount(
    root: &Root,
    owner: Option<Owner<'_>>,
    store: &LayerStore,
    identities: &[(u64, u64)],
) -> Result<Tree, StoreError> {
    add_mount_points(root)?;
    let Mounted { tree, parts } = root.mount(owner, store)?;
    for (layer, identity) in parts.iter().zip(identities) {
        let found = rustix::fs::fstat(layer.as_fd()).context(|| "looking at a layer".into())?;
        // What is mounted is held: from here on its inode's number is no other's.
        if (found.st_dev, found.st_ino) != *identity {
            return Err(std::io::Error::from(std::io::ErrorKind::NotFound)).context(|| "looking for a layer".into())?;
        }
    }
    Ok(tree)
}

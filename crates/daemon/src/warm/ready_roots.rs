//! Root file systems for guests that go away with their command and for clones, put together ahead, each with the
//! prewarmed init that it is for: its ids are that one's.
//!
//! Putting one together takes a good part of what a start takes besides. Who runs one short command after another runs
//! most of them on the same few trees, so once a kind of root was asked for twice within a few starts, some of that
//! kind are kept ready. An image is there to be cloned: some of its kind are made ready at once.

use crate::failure;
use crate::init::birth::grown;
use crate::init::handoff::Handoff;
use crate::init::launch_builder::{LaunchBuilder, Sent};
use crate::init::machine_id;
use crate::init::prewarmed::{PrewarmedInit, Ready};
use crate::runtime::idle::Idle;
use crate::state::record;
use crate::state::record::FILES;
use crate::store::layers;
use crate::warm::pool::Pool;
use crate::warm::ready_files::{Files, FilesKind, ReadyFiles};
use pando_api::{Fault, Network, Spec};
use pando_guest::plan::{Heritage, PrewarmedKind};
use pando_guest::policy::grants;
use pando_guest::root::{LayerStore, Mounted, Owner, Root, add_mount_points};
use pando_guest::{Places, slot};
use pando_kernel::Context;
use pando_kernel::mount::Tree;
use pando_limit::disk::Image;
use pando_store::StoreError;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How many of a kind are kept ready, and of how many kinds.
const READY: usize = 4;
const KINDS: usize = 4;

/// How many of a kind are kept ready. Files whose room is bounded take all of that from the beginning: one such root is
/// ahead, and a clone of a kilobyte does not take the disk.
fn enough(files: &FilesKind) -> usize {
    if files.bound().is_some() { 1 } else { READY }
}

/// Within how many starts a kind must have been asked for twice.
const FEW: usize = 8;

/// The name of a guest's root file system in /proc/mounts where the guest's own is not known yet.
pub(crate) const NAME: &str = "pando";

/// The kind of a root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootKind {
    init: PrewarmedKind,
    layers: Vec<String>,
    /// Device and inode of each layer that is a tree of the host's: a path may come to lead elsewhere.
    identities: Vec<(u64, u64)>,
    files: FilesKind,
    /// The frozen guest, of a root that is for clones.
    ancestor: Option<Arc<Ancestor>>,
}

/// A frozen guest, as far as the places of its clones depend on it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ancestor {
    /// The name of the image.
    pub(crate) image: String,
    /// When it was made: another may get its name later.
    pub(crate) created: i64,
    /// What its clones are said to be.
    pub(crate) spec: Spec,
    /// What of its first processes a clone has out of the image.
    pub(crate) heritage: Heritage,
    /// Whether the place is for the frozen guest itself, which keeps its machine id.
    pub(crate) itself: bool,
}

impl RootKind {
    /// The kind of a root on trees of the host. `None` where none should be kept ready: on a file system that somebody
    /// may want to unmount.
    pub(crate) fn new(places: &Places, init: PrewarmedKind, layers: &[String], files: &FilesKind) -> Option<Self> {
        let identity = |path: &PathBuf| path.metadata().ok().map(|found| (found.dev(), found.ino()));
        let stays = [PathBuf::from("/"), places.state()].map(|path| identity(&path).map(|(device, _)| device));
        let identities: Vec<_> = layers.iter().map(|layer| identity(&PathBuf::from(layer))).collect::<Option<_>>()?;
        let lasting = identities.iter().all(|(device, _)| stays.contains(&Some(*device)));
        lasting.then(|| Self { init, layers: layers.to_vec(), identities, files: files.clone(), ancestor: None })
    }

    /// The kind of a root for clones.
    pub(crate) fn of_clones(layers: &[String], ancestor: Ancestor) -> Self {
        let disk = grants::read(&ancestor.spec).map(|grants| grants.disk).unwrap_or_default();
        Self {
            init: PrewarmedKind::of_clones(&ancestor.spec),
            layers: layers.to_vec(),
            identities: Vec::new(),
            files: FilesKind::Clone { room: (disk.size, disk.inodes), quotas: ancestor.spec.user_namespace },
            ancestor: Some(Arc::new(ancestor)),
        }
    }
}

/// A root that waits for its guest.
#[derive(Debug)]
pub(crate) struct ReadyRoot {
    /// The first process that it is for, and it.
    pub(crate) ready: Ready,
    /// The guest's own files in it.
    pub(crate) files: Files,
}

/// The roots that are ready.
#[derive(Debug)]
pub(crate) struct ReadyRoots {
    places: Places,
    pool: Rc<Pool>,
    files: Rc<ReadyFiles>,
    store: Arc<LayerStore>,
    unified: bool,
    idle: Idle,
    /// The kinds that were asked for last, the latest first.
    asked: RefCell<VecDeque<RootKind>>,
    /// By kind, the one asked for last first.
    ready: RefCell<Vec<(RootKind, VecDeque<ReadyRoot>)>>,
    refilling: Cell<bool>,
    /// There are too few of a kind to wait until the daemon idles.
    scarce: Notify,
    closed: Cell<bool>,
}

impl ReadyRoots {
    pub(crate) fn new(
        places: &Places,
        pool: &Rc<Pool>,
        files: &Rc<ReadyFiles>,
        idle: &Idle,
        store: &Arc<LayerStore>,
        unified: bool,
    ) -> Rc<Self> {
        Rc::new(Self {
            places: places.clone(),
            pool: Rc::clone(pool),
            files: Rc::clone(files),
            store: Arc::clone(store),
            unified,
            idle: idle.clone(),
            asked: RefCell::default(),
            ready: RefCell::default(),
            refilling: Cell::new(false),
            scarce: Notify::new(),
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
            if !root.ready.init.has_ended() {
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

    /// A root for a clone: a ready one, or one made now. Some are kept ready from here on.
    pub(crate) async fn take_or_make(self: &Rc<Self>, kind: &RootKind) -> Result<ReadyRoot, Fault> {
        self.foresee(kind);
        match self.take(kind.clone()) {
            Some(ready) => Ok(ready),
            None => {
                let init = self.pool.take(kind.init).await;
                self.furnish(kind, init.map_err(|error| failure::io("making a place", NAME, &error))?).await
            }
        }
    }

    /// Some of a kind are going to be asked for.
    pub(crate) fn foresee(self: &Rc<Self>, kind: &RootKind) {
        self.asked.borrow_mut().push_front(kind.clone());
        self.asked.borrow_mut().truncate(FEW);
        let known = self.ready.borrow().iter().any(|(ready, _)| ready == kind);
        if !known {
            self.ready.borrow_mut().insert(0, (kind.clone(), VecDeque::new()));
            self.refill();
        }
    }

    /// A kind will never be asked for again.
    pub(crate) fn give_up(&self, kind: &RootKind) {
        self.asked.borrow_mut().retain(|asked| asked != kind);
        self.remove(kind).into_iter().for_each(|root| self.discard(root));
    }

    /// The ready roots of a kind, which are not kept any more.
    fn remove(&self, kind: &RootKind) -> VecDeque<ReadyRoot> {
        let mut ready = self.ready.borrow_mut();
        let found = ready.iter().position(|(ready, _)| ready == kind);
        found.map(|found| ready.remove(found).1).unwrap_or_default()
    }

    /// Makes roots until enough of each kind are ready, in the background. Those of kinds that were not asked for
    /// lately go.
    fn refill(self: &Rc<Self>) {
        if self.ready.borrow().iter().any(|(kind, _)| self.is_scarce(kind)) {
            self.scarce.notify_one();
        }
        if self.refilling.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while let Some(kind) = this.short_of() {
                if !this.is_scarce(&kind) && !this.idle.comes_before(&this.scarce).await {
                    continue;
                }
                match this.make(&kind).await {
                    Ok(root) => this.keep(&kind, root),
                    // The guest's own start meets the same hindrance, and tells of it.
                    Err(fault) => {
                        tracing::debug!(%fault, "making a root file system ahead failed");
                        break;
                    }
                }
            }
            this.refilling.set(false);
        });
    }

    /// Whether the next one that is asked for would soon have to be made while somebody waits.
    fn is_scarce(&self, kind: &RootKind) -> bool {
        let scarce = enough(&kind.files).div_ceil(2);
        self.ready.borrow().iter().any(|(ready, roots)| ready == kind && roots.len() < scarce)
    }

    /// The kind of which there are fewest, if they are too few.
    fn short_of(&self) -> Option<RootKind> {
        let mut ready = self.ready.borrow_mut();
        let kinds = ready.len().min(KINDS);
        ready.drain(kinds..).flat_map(|(_, roots)| roots).for_each(|root| self.discard(root));
        let short = ready.iter().filter(|(kind, roots)| roots.len() < enough(&kind.files) && !self.closed.get());
        short.min_by_key(|(_, roots)| roots.len()).map(|(kind, _)| kind.clone())
    }

    /// Keeps a root, if its kind is still wanted.
    fn keep(&self, kind: &RootKind, root: ReadyRoot) {
        let mut ready = self.ready.borrow_mut();
        match ready.iter_mut().find(|(ready, _)| ready == kind).filter(|_| !self.closed.get()) {
            Some((_, roots)) => roots.push_back(root),
            None => self.discard(root),
        }
    }

    /// Makes a root of a kind now.
    pub(crate) async fn make(&self, kind: &RootKind) -> Result<ReadyRoot, Fault> {
        let init = self.pool.make(kind.init).await.map_err(|error| failure::io("making a place", NAME, &error))?;
        self.furnish(kind, init).await
    }

    /// Puts a root together for a prewarmed init.
    async fn furnish(&self, kind: &RootKind, init: PrewarmedInit) -> Result<ReadyRoot, Fault> {
        match self.furnished(kind, &init).await {
            Ok((tree, handoff, files)) => Ok(ReadyRoot { ready: Ready { init, tree, handoff }, files }),
            Err(fault) => {
                self.pool.discard(init);
                Err(fault)
            }
        }
    }

    /// The root for an init, unless the init stands in it already, what the init may become, and the guest's own files.
    async fn furnished(
        &self,
        kind: &RootKind,
        init: &PrewarmedInit,
    ) -> Result<(Option<Tree>, Option<Handoff>, Files), Fault> {
        let files = self.files.make(&kind.files).await?;
        let Mounted { tree, parts } = self.mount(kind, init, &files).await?;
        self.idle.close_later(parts);
        let heritage = kind.ancestor.as_ref().map_or(Heritage::None, |ancestor| ancestor.heritage);
        let mut handoff = Handoff::of(heritage).map_err(|error| failure::call("making a place", NAME, &error))?;
        // On the private network a guest's files tell the names of the others, which are there once it is on it.
        let standing = kind.ancestor.as_ref().filter(|ancestor| ancestor.spec.network != Network::Private);
        let Some(ancestor) = standing else { return Ok((Some(tree), handoff, files)) };
        self.stand_ahead(init, tree, ancestor, handoff.as_mut()).await?;
        Ok((None, handoff, files))
    }

    /// Mounts a root of a kind for an init.
    async fn mount(&self, kind: &RootKind, init: &PrewarmedInit, files: &Files) -> Result<Mounted, Fault> {
        let root = Root {
            name: NAME.to_owned(),
            layers: kind.layers.iter().map(|layer| layers::standing(&self.places, layer)).collect(),
            files: files.path().join(FILES),
            disk: Some(record::room(&files.path()).image().clone()).filter(Image::exists),
            bounded: kind.files.bound(),
            passing: !kind.files.last(),
        };
        let (identities, other) =
            (kind.identities.clone(), kind.ancestor.as_ref().is_some_and(|frozen| !frozen.itself));
        let owner = init.namespace.as_ref().map(OwnedFd::try_clone).transpose();
        let first_id = slot::first_id(init.slot);
        let (store, resolver) = (Arc::clone(&self.store), !kind.init.network_namespace);
        let made = tokio::task::spawn_blocking(move || {
            let owner = owner.context(|| "copying a descriptor".into())?;
            let owner = owner.as_ref().map(|owner| Owner { namespace: owner.as_fd(), first_id });
            let mounted = mount(&root, owner, &store, &identities, resolver)?;
            if other {
                machine_id::renew(mounted.tree.as_fd(), owner.map(|owner| owner.first_id))?;
            }
            Ok(mounted)
        });
        let made = made.await.unwrap_or_else(|error| {
            Err(std::io::Error::other(error)).context(|| "mounting".into()).map_err(StoreError::from)
        });
        made.map_err(|error| failure::store("putting a root together", NAME, &error))
    }

    /// Has a first process go into a root file system and stand there, before it is known whose it is: all that its
    /// guest's name is needed for, the host name, is set later. It waits for processes out of an image.
    async fn stand_ahead(
        &self,
        init: &PrewarmedInit,
        tree: Tree,
        ancestor: &Ancestor,
        handoff: Option<&mut Handoff>,
    ) -> Result<(), Fault> {
        let (spec, store) = (ancestor.spec.clone(), (&self.store, self.unified));
        let mut builder = LaunchBuilder::of(init, NAME, spec, store, ancestor.heritage)?;
        if let Some(parts) = handoff.and_then(Handoff::take_parts) {
            builder.hand_off(parts);
        }
        let Sent { plan, report, .. } = builder.send(Mounted { tree, parts: Vec::new() }, Vec::new())?;
        grown(NAME, &plan, report, false).await
    }

    /// Lets one go that nobody needs.
    pub(crate) fn discard(&self, root: ReadyRoot) {
        let ReadyRoot { ready: Ready { init, tree, .. }, files } = root;
        self.pool.discard(init);
        // Closing it waits for a grace period, and deleting for the disk.
        drop(tokio::task::spawn_blocking(move || drop((tree, files))));
    }

    /// Lets all of them go, and makes no more.
    pub(crate) async fn close(&self) {
        const MOMENT: Duration = Duration::from_millis(1);
        self.closed.set(true);
        // One that is being made is waited for: the place that it is for has to go as well.
        while self.refilling.get() {
            tokio::time::sleep(MOMENT).await;
        }
        self.ready.take().into_iter().flat_map(|(_, roots)| roots).for_each(|root| self.discard(root));
    }
}

/// Puts a root together of layers that still are what they were when it was asked for. Blocking.
fn mount(
    root: &Root,
    owner: Option<Owner<'_>>,
    store: &LayerStore,
    identities: &[(u64, u64)],
    resolver: bool,
) -> Result<Mounted, StoreError> {
    if root.passing {
        add_mount_points(root, resolver)?;
    }
    let mounted = root.mount(owner, store)?;
    for (layer, identity) in mounted.parts.iter().zip(identities) {
        let found = rustix::fs::fstat(layer.as_fd()).context(|| "looking at a layer".into())?;
        // What is mounted is held: from here on its inode's number is no other's.
        if (found.st_dev, found.st_ino) != *identity {
            return Err(std::io::Error::from(std::io::ErrorKind::NotFound)).context(|| "looking for a layer".into())?;
        }
    }
    Ok(mounted)
}

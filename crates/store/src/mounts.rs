//! Layers as parts of an overlay.

use crate::staging::{new_file, temporary_directory};
use crate::{LayerId, Store, StoreError, image};
use composefs::fsverity::{FsVerityHashValue, Sha256HashValue, compute_verity};
use composefs::generic_tree::{Inode, Leaf, LeafContent, LeafId, Stat};
use composefs::tree::{Directory, FileSystem, RegularFile};
use pando_kernel::mount::overlay::Overlay;
use pando_kernel::mount::{Attributes, Tree};
use pando_kernel::{CallError, Context, filesystem::erofs};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// How a host mounts layers. The layers are the same for both: the farm of one is made of its image when it is first
/// asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// An erofs image, with the objects as data-only layer below: one inode more a layer, and what one guest does never
    /// shows in another.
    Image,
    /// A tree of hard links: for kernels before 6.12, and where images cannot be mounted from a file.
    Farm,
}

/// One layer, ready to be part of an overlay. Each mount is a copy of its own, whose owners may be mapped.
#[derive(Debug)]
pub struct Mounted {
    /// The tree of the layer, detached.
    pub tree: Tree,
    /// What the tree's files contain, where it does not hold that itself: to go below all lower trees. Never to be
    /// mapped: its owners mean nothing.
    pub data: Option<Tree>,
}

/// The layers that are mounted: each once, whatever number of guests stand on it, so that they share what the kernel
/// remembers of it.
#[derive(Debug)]
pub struct LayerMounts {
    store: Store,
    backend: Backend,
    held: Mutex<HashMap<LayerId, Arc<Tree>>>,
}

impl LayerMounts {
    /// Layers of a store, of which none is mounted yet.
    pub fn new(store: Store, backend: Backend) -> Self {
        Self { store, backend, held: Mutex::default() }
    }

    /// The store whose layers they are.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The way in which layers are mounted.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Mounts a layer, in the host's own way.
    pub fn mount(&self, layer: &LayerId) -> Result<Mounted, StoreError> {
        self.mount_as(layer, self.backend)
    }

    /// Mounts a layer in a way that need not be the host's: an overlay knows the inodes that its upper files were
    /// copied from, and refuses a layer that has others. So files that were written over a farm go on over a farm until
    /// the guest is folded.
    pub fn mount_as(&self, layer: &LayerId, backend: Backend) -> Result<Mounted, StoreError> {
        if !self.store.has(layer) {
            return Err(StoreError::NoLayer(*layer));
        }
        match backend {
            Backend::Farm => Ok(Mounted { tree: Tree::clone_of(&self.store.farm(layer)?, false)?, data: None }),
            Backend::Image => {
                let data = Some(Tree::clone_of(&self.store.objects(), false)?);
                Ok(Mounted { tree: self.image(layer)?, data })
            }
        }
    }

    fn image(&self, layer: &LayerId) -> Result<Tree, StoreError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let first = match held.get(layer) {
            Some(tree) => Arc::clone(tree),
            None => {
                let tree = Arc::new(self.mount_image(layer)?);
                // In the daemon's group, before any guest asks.
                self.store.warm(layer);
                held.insert(*layer, Arc::clone(&tree));
                tree
            }
        };
        drop(held);
        match first.duplicate() {
            // Before Linux 6.15: another mount of the file, which shares its pages all the same.
            Err(error) if error.source.kind() == std::io::ErrorKind::InvalidInput => self.mount_image(layer),
            copied => Ok(copied?),
        }
    }

    /// Mounts an image that is in memory, as the whole of it soon would be: what a guest reads first is charged to that
    /// guest.
    ///
    /// And ext4 complains in the kernel's log, once a boot, of pages that erofs has it read.
    fn mount_image(&self, layer: &LayerId) -> Result<Tree, StoreError> {
        let path = self.store.image(layer);
        let read = || std::io::copy(&mut std::fs::File::open(&path)?, &mut std::io::sink());
        read().context(|| format!("reading {}", path.display()))?;
        Ok(erofs::mount(&path)?)
    }

    /// Lets go of the layers that are not in use.
    pub fn forget_all_but(&self, used: &HashSet<LayerId>) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).retain(|layer, _| used.contains(layer));
    }
}

/// What the trial's file contains: more than an image would hold itself.
const PROOF: [u8; 100] =
    *b"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";

impl Backend {
    /// The other one of the two ways.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Image => Self::Farm,
            Self::Farm => Self::Image,
        }
    }

    /// What works on this host: tries the whole stack, an image over a data-only layer under an overlay, with each of
    /// the `ways` (options of the overlay) that layers are used in, and reads a file through it.
    ///
    /// # Errors
    ///
    /// What was lacking for the trial (room on the disk, descriptors, memory): then the host's kernel has not said what
    /// it can.
    pub fn choose(store: &Store, ways: &[&[(&str, &str)]]) -> Result<Self, CallError> {
        match ways.iter().try_for_each(|options| try_image(store, options)) {
            Ok(()) => Ok(Self::Image),
            Err(reason) if is_lack(&reason.source) => Err(reason),
            Err(reason) => {
                tracing::info!(%reason, "layers are mounted as hard-link farms");
                Ok(Self::Farm)
            }
        }
    }

    /// How the layers of a store were mounted when that was last known.
    pub fn last(store: &Store) -> Self {
        let has_farms = std::fs::read_dir(store.farms()).is_ok_and(|mut farms| farms.next().is_some());
        if has_farms { Self::Farm } else { Self::Image }
    }
}

/// Whether an error says something of the moment, and nothing of the kernel.
fn is_lack(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{OutOfMemory, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    // By kind: an error that names its path has no number of its own any more.
    matches!(error.kind(), OutOfMemory | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
        || rustix::io::Errno::from_io_error(error)
            .is_some_and(|errno| [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].contains(&errno))
}

fn try_image(store: &Store, options: &[(&str, &str)]) -> Result<(), CallError> {
    let beside = store.staging();
    let scratch = temporary_directory(&beside)?;
    let at = scratch.path();
    let prepare = || -> std::io::Result<()> {
        for name in ["upper", "work", "objects"] {
            std::fs::create_dir(at.join(name))?;
        }
        let digest: Sha256HashValue = compute_verity(&PROOF);
        let object = at.join("objects").join(digest.to_object_pathname());
        std::fs::create_dir(object.parent().unwrap_or(at))?;
        new_file(&object)?.write_all(&PROOF)?;
        let image = image::write(one_file(digest)).map_err(std::io::Error::other)?;
        new_file(&at.join("image"))?.write_all(&image)
    };
    prepare().context(|| "preparing a trial of images".into())?;
    let (tree, data, files) =
        (erofs::mount(&at.join("image"))?, Tree::clone_of(&at.join("objects"), false)?, Tree::clone_of(at, false)?);
    let overlay =
        Overlay { name: "trial", lowers: vec![&tree], data: vec![&data], files: &files, options, volatile: false };
    let whole = overlay.mount(Attributes::MOUNT_ATTR_NODEV, at)?;
    read_proof(&whole).context(|| "reading a file through an image and a data-only layer".into())
}

fn one_file(digest: Sha256HashValue) -> FileSystem<Sha256HashValue> {
    let stat = |mode| Stat { st_mode: mode, ..Stat::uninitialized() };
    let content = LeafContent::Regular(RegularFile::External(digest, PROOF.len() as u64));
    let mut root = Directory::new(stat(0o755));
    root.insert(OsStr::new("file"), Inode::leaf(LeafId(0)));
    FileSystem { root, leaves: vec![Leaf { stat: stat(0o600), content }] }
}

fn read_proof(tree: &Tree) -> std::io::Result<()> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::openat(tree, Path::new("file"), flags, rustix::fs::Mode::empty())?;
    let mut read = Vec::new();
    std::fs::File::from(file).read_to_end(&mut read)?;
    if read == PROOF { Ok(()) } else { Err(std::io::Error::other("it has another content")) }
}

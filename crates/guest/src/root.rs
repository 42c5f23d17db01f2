//! A guest's root file system: read-only trees, and the guest's own files over them.
//!
//! Writing to a shared file copies it up; reading it shares one copy in the page cache between all guests. Files lie on
//! disk as the guest's own ids (0 is its root): whatever range of ids it runs under is mapped at the mount, so nothing
//! is ever chowned.

use crate::{own_disk, spare};
use pando_kernel::file::confined::open_again;
use pando_kernel::file::fs_owner::FsOwner;
use pando_kernel::file::operator_path::OperatorPath;
use pando_kernel::filesystem::kernels_own::is_the_kernels_own;
use pando_kernel::mount::overlay::Overlay;
use pando_kernel::mount::stranger::seen_by_stranger;
use pando_kernel::mount::{Attributes, Tree};
use pando_kernel::{CallError, Context};
use pando_limit::disk::{Image, Lifted};
use pando_store::{Backend, LayerId, LayerMounts, Mounted as MountedLayer, Store, StoreError};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// So that a transaction's view can stand on a guest's overlay later (it needs file handles), and renamed directories
/// stay cheap.
const LASTING: [(&str, &str); 4] = [("index", "on"), ("nfs_export", "on"), ("metacopy", "off"), ("redirect_dir", "on")];

/// Over a tree that others may change, such as the host's own root, none of these is sound: they remember things about
/// the lower tree.
const PASSING: [(&str, &str); 3] = [("index", "off"), ("metacopy", "off"), ("redirect_dir", "off")];

/// A read-only tree that a guest stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// A directory of Pando's own.
    Tree(PathBuf),
    /// A directory of the host that the operator named, as it was found. No link is followed on the way to it.
    Named(PathBuf),
    /// The same as a stranger to the host sees it: what others may not read is read by nobody.
    Seen(PathBuf),
    /// A layer of the store.
    Stored(LayerId),
}

/// A root file system to be put together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The guest's name, for /proc/mounts.
    pub name: String,
    /// The read-only trees, uppermost first.
    pub layers: Vec<Layer>,
    /// A directory that holds the guest's own files: `upper` and `work`.
    pub files: PathBuf,
    /// A file system of their own that the guest's own files lie on, in place of that directory.
    pub disk: Option<Image>,
    /// The bytes that the guest's own files may take, if it may fill that room to the last one.
    pub bounded: Option<u64>,
    /// Whether the guest is gone after its command: its files need no durability, and its layers may change under it.
    pub passing: bool,
}

/// A user of the guest's ids: its namespace, and the first host id of it.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// The user namespace that maps the guest's ids.
    pub namespace: BorrowedFd<'a>,
    /// Where its ids begin on the host.
    pub first_id: u32,
}

/// Makes the directories for a guest's own files.
pub fn prepare(files: &Path) -> Result<(), CallError> {
    let mut builder = std::fs::DirBuilder::new();
    // Its files may be setuid: nobody but root may reach them from the host's side.
    builder.mode(0o700).recursive(true);
    builder.create(files).context(|| format!("making {}", files.display()))?;
    for (name, mode) in [("upper", 0o755), ("work", 0o700)] {
        let path = files.join(name);
        match std::fs::DirBuilder::new().mode(mode).create(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).context(|| format!("making {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes what /dev, /proc and /sys will be mounted on in the guest's own files, where none of the layers has it, and
/// for a guest that sees the host's resolver configuration the place of that: the first process would, and each takes a
/// copied-up directory. Only for layers that are trees.
pub fn add_mount_points(root: &Root, resolver: bool) -> Result<(), CallError> {
    let upper = root.files.join("upper");
    for name in crate::plan::STAGE.iter().filter(|name| is_missing(root, name)) {
        make_directory(&upper.join(name))?;
    }
    // Where a layer has a directory of that name, what lies over it has to bear its owner, mode and attributes: that is
    // the kernel's to do.
    if resolver && is_missing(root, "etc") {
        make_directory(&upper.join("etc"))?;
        let place = upper.join("etc/resolv.conf");
        std::fs::File::create(&place).context(|| format!("making {}", place.display()))?;
    }
    Ok(())
}

fn is_missing(root: &Root, name: &str) -> bool {
    let is_there = |layer: &Layer| match layer {
        // A link is not followed: it is what is there.
        Layer::Tree(tree) | Layer::Named(tree) | Layer::Seen(tree) => tree.join(name).symlink_metadata().is_ok(),
        Layer::Stored(_) => true,
    };
    !root.layers.iter().any(is_there)
}

fn make_directory(path: &Path) -> Result<(), CallError> {
    match std::fs::DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).context(|| format!("making {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A root file system that was put together.
#[derive(Debug)]
pub struct Mounted {
    /// The tree of the root, detached.
    pub tree: Tree,
    /// The trees that it was put together from. It does not need them any more, but closing each waits for a grace
    /// period: where nobody waits, please.
    pub parts: Vec<Tree>,
}

/// Where stored layers are mounted from. It is opened when the first guest needs it: most commands do not.
#[derive(Debug)]
pub struct LayerStore {
    path: PathBuf,
    mounts: Mutex<Option<Arc<LayerMounts>>>,
}

impl LayerStore {
    /// The store in a directory.
    pub fn new(path: PathBuf) -> Self {
        Self { path, mounts: Mutex::default() }
    }

    /// Opens it, and finds out how this host mounts layers.
    pub fn open(&self) -> Result<Arc<LayerMounts>, StoreError> {
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*mounts {
            return Ok(Arc::clone(opened));
        }
        let store = Store::open(&self.path)?;
        let backend = match Backend::choose(&store, &[&LASTING, &PASSING]) {
            Ok(backend) => backend,
            Err(error) => {
                tracing::warn!(%error, "how this host mounts layers could not be found out; it is tried again");
                let last = Backend::last(&store);
                return Ok(Arc::new(LayerMounts::new(store, last)));
            }
        };
        let opened = Arc::new(LayerMounts::new(store, backend));
        *mounts = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Whether anything was ever kept in it.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }
}

impl Root {
    /// Puts it together. Where the guest's own files were written over a layer that was mounted the other way, as on
    /// another kernel, it is mounted that way again.
    pub fn mount(&self, owner: Option<Owner<'_>>, store: &LayerStore) -> Result<Mounted, StoreError> {
        let usual = |mounts: &LayerMounts| mounts.backend();
        match self.mount_as(owner, store, usual) {
            Err(error) if self.stands_on_store() && is_stale(&error) => {
                tracing::info!(guest = self.name, "its own files were written over its layer mounted the other way");
                let other = self.mount_as(owner, store, |mounts| mounts.backend().other());
                let farms_alone = store.open().is_ok_and(|mounts| mounts.backend() == Backend::Farm);
                // What is said is why the usual way fails: the other one may not exist on this host.
                other.map_err(|_| if farms_alone { StoreError::WrittenOverImage(self.name.clone()) } else { error })
            }
            mounted => mounted,
        }
    }

    fn stands_on_store(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer, Layer::Stored(_)))
    }

    fn mount_as(
        &self,
        owner: Option<Owner<'_>>,
        store: &LayerStore,
        backend: impl Fn(&LayerMounts) -> Backend,
    ) -> Result<Mounted, StoreError> {
        let map = |tree: Tree| -> Result<Tree, CallError> {
            if let Some(owner) = owner {
                tree.map_ids(owner.namespace)?;
            }
            Ok(tree)
        };
        // The trees of the layers, and what is shown instead of some of them.
        let (mut parts, mut seen, mut data): (Vec<Tree>, Vec<(usize, Tree)>, _) = (Vec::new(), Vec::new(), None);
        for layer in &self.layers {
            match layer {
                Layer::Seen(path) => {
                    let tree = map(Tree::clone_of(path, false)?)?;
                    seen.push((parts.len(), seen_by_stranger(&tree, &self.name, &self.files)?));
                    parts.push(tree);
                }
                Layer::Tree(path) => parts.push(map(Tree::clone_of(path, false)?)?),
                Layer::Named(path) => {
                    let found = OperatorPath::open_again(path);
                    let found = found.context(|| format!("taking the files at {}", path.display()))?;
                    parts.push(map(Tree::clone_at(found)?)?);
                }
                Layer::Stored(layer) => {
                    let mounts = store.open()?;
                    let MountedLayer { tree, data: objects } = mounts.mount_as(layer, backend(&mounts))?;
                    parts.push(map(tree)?);
                    data = data.or(objects);
                }
            }
        }
        let _room = self.bounded.and_then(|bytes| Lifted::over(&self.files, bytes));
        let files = match &self.disk {
            Some(image) => own_disk::open(image, owner)?,
            None => {
                let files = Tree::clone_of(&self.files, false)?;
                if self.bounded.is_some() {
                    spare::give_back(&files);
                }
                map(files)?
            }
        };
        let shown = |(number, part)| seen.iter().find(|(of, _)| *of == number).map_or(part, |(_, tree)| tree);
        let overlay = Overlay {
            name: &self.name,
            lowers: (0..).zip(&parts).map(shown).collect(),
            data: data.iter().collect(),
            files: &files,
            options: if self.passing { &PASSING } else { &LASTING },
            volatile: self.passing,
        };
        let _as_owner = owner
            .map(|owner| FsOwner::assume(owner.first_id))
            .transpose()
            .context(|| "taking on the guest's ids".into())?;
        let tree = overlay.mount(Attributes::MOUNT_ATTR_NODEV, &self.files)?;
        if self.bounded.is_some() {
            spare::put_by(&files);
        }
        parts.push(files);
        parts.extend(data);
        parts.extend(seen.into_iter().map(|(_, tree)| tree));
        Ok(Mounted { tree, parts })
    }
}

/// Whether an overlay found other inodes below its files than it knows.
fn is_stale(error: &StoreError) -> bool {
    const STALE: i32 = rustix::io::Errno::STALE.raw_os_error();
    matches!(error, StoreError::Call(error) if error.source.raw_os_error() == Some(STALE))
}

/// How often a path is looked up again; the next time nearly always succeeds.
const MAX_TRIES: u32 = 64;

/// Reads a file of a guest, whose tree or root directory is `root`, as text: no link leads out, nothing but a regular
/// file is opened, and none of the kernel's own (to read /proc/kmsg takes away what others would read), and no more
/// than
/// `most` bytes are read. `None` where there is no such file.
pub fn read_inside(root: BorrowedFd<'_>, path: &str, most: u64) -> std::io::Result<Option<String>> {
    // What it is is known before it is opened: opening a device does something.
    let Some(place) = open_inside(root, path, OFlags::PATH | OFlags::CLOEXEC)? else { return Ok(None) };
    let is_file = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode).is_file();
    if !is_file || is_the_kernels_own(&place)? {
        return Ok(None);
    }
    let file = open_again(place.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC)?;
    let mut bytes = Vec::new();
    std::fs::File::from(file).take(most).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The paths of the programs in a directory of a guest, by name: executable files that are not hidden. None where there
/// is no such directory.
pub fn programs_inside(root: BorrowedFd<'_>, directory: &str) -> std::io::Result<Vec<String>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Some(opened) = open_inside(root, directory, flags)? else { return Ok(Vec::new()) };
    let mut programs = Vec::new();
    for entry in rustix::fs::Dir::read_from(&opened)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        let path = format!("{directory}/{name}");
        if name.starts_with('.') {
            continue;
        }
        let Some(file) = open_inside(root, &path, OFlags::PATH | OFlags::CLOEXEC)? else { continue };
        let mode = rustix::fs::fstat(&file)?.st_mode;
        if rustix::fs::FileType::from_raw_mode(mode).is_file() && mode & 0o111 != 0 {
            programs.push(path);
        }
    }
    programs.sort_unstable();
    Ok(programs)
}

/// Opens what a path means inside a guest; `None` where there is nothing.
fn open_inside(root: BorrowedFd<'_>, path: &str, flags: OFlags) -> std::io::Result<Option<OwnedFd>> {
    let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let attempt = || rustix::fs::openat2(root, path, flags, Mode::empty(), confined);
    // EAGAIN: a rename or a mount anywhere on the machine raced with a `..` of a link on the way.
    let found = (1..MAX_TRIES).map(|_| attempt()).find(|found| !matches!(found, Err(rustix::io::Errno::AGAIN)));
    match found.unwrap_or_else(attempt) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_store::Taking;
    use std::os::fd::{AsFd, AsRawFd};

    fn store(path: &Path, backend: Backend) -> LayerStore {
        let mounts = LayerMounts::new(Store::open(path).unwrap(), backend);
        LayerStore { path: path.to_owned(), mounts: Mutex::new(Some(Arc::new(mounts))) }
    }

    /// Needs root, and a kernel that mounts images; without them there is nothing to see.
    #[test]
    fn what_was_written_over_a_farm_goes_on_over_a_farm_and_the_other_way_round() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("store");
        if !rustix::process::geteuid().is_root()
            || LayerStore::new(path.clone()).open().unwrap().backend() == Backend::Farm
        {
            eprintln!("skipped: this host mounts no images");
            return;
        }
        let tree = place.path().join("tree");
        std::fs::create_dir_all(tree.join("below")).unwrap();
        std::fs::write(tree.join("below/file"), vec![7; 9_000]).unwrap();
        let layer = Store::open(&path).unwrap().import(&tree, Taking::Copy).unwrap().layer;
        for first in [Backend::Farm, Backend::Image] {
            let root = Root {
                name: "test".to_owned(),
                layers: vec![Layer::Stored(layer)],
                files: place.path().join(format!("{first:?}")),
                disk: None,
                bounded: None,
                passing: false,
            };
            prepare(&root.files).unwrap();
            let write = |backend| {
                let mounted = root.mount(None, &store(&path, backend)).unwrap();
                let file = format!("/proc/self/fd/{}/below/file", mounted.tree.as_fd().as_raw_fd());
                let before = std::fs::read(&file).unwrap();
                std::fs::write(&file, [before, vec![8; 10]].concat()).unwrap();
                std::fs::read(&file).unwrap().len()
            };
            assert_eq!(write(first), 9_010);
            assert_eq!(write(first.other()), 9_020, "over a layer that is mounted as it was");
            assert_eq!(write(first), 9_030);
            let other = store(&path, first.other());
            let stale = root.mount_as(None, &other, |mounts| mounts.backend()).unwrap_err();
            assert!(is_stale(&stale), "the other way alone is refused: {stale}");
        }
    }
}

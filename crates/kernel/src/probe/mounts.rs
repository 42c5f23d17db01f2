//! Trees of files: made in a scratch directory and in detached mounts that nobody sees.

use super::child::Child;
use super::namespaces::{self, FIRST_ID};
use super::scratch::Scratch;
use super::{Area, Finding, Verdict, erofs_image};
use crate::file::fs_owner::FsOwner;
use crate::mount::overlay::Overlay;
use crate::mount::{Attributes, MountEntry, Tree, mounts};
use crate::{filesystem::btrfs, filesystem::project_quota};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const AREA: Area = Area("files");

/// As guests' root file systems are put together (`root.rs` of the guest crate).
const LASTING: [(&str, &str); 4] = [("index", "on"), ("nfs_export", "on"), ("metacopy", "off"), ("redirect_dir", "on")];

pub(super) fn find(state: &Path) -> Vec<Finding> {
    let namespace = namespaces::mapped();
    let namespace = namespace.as_ref();
    let tried =
        |trial: &dyn Fn(&Scratch) -> io::Result<()>| Verdict::from(Scratch::near(state).and_then(|at| trial(&at)));
    let tmpfs = Tree::new("tmpfs", &[("size", "64k")], Attributes::empty());
    // The request is old enough to be known.
    let reflinks = here(tried(&reflink), true, state);
    let overlay = here(tried(&by_paths), has_overlay(), state);
    // Without any overlay here, its finer points say nothing about the kernel.
    let finer = |verdict| here(verdict, !overlay.usable() && overlay != Verdict::Missing, state);
    let without_map = "the default fails for files here: guests need --userns host";
    let mapped = Scratch::near(state).map_or_else(|error| Verdict::of(&error), |at| mapped_tree(at.path(), namespace));
    let attributes = tried(&read_only);
    // The kernel learned both at once.
    let mapped = here(mapped, attributes.usable(), state);
    vec![
        AREA.needed("fsopen, fsmount", "5.2", tmpfs, "guests' file systems cannot be put together"),
        AREA.needed("proc, devpts, mqueue", "2.6.29", kernels_own(), "guests cannot have their /proc and /dev"),
        AREA.needed("open_tree", "5.2", tried(&|at| clone(at.path()).map(drop)), "layers cannot be used"),
        AREA.needed("mount_setattr", "5.12", attributes, "guests' files cannot be made read-only"),
        AREA.needed("overlay", "3.18", overlay.clone(), "guests cannot share files and have changes of their own"),
        AREA.wanted(
            "overlay layers by descriptor",
            "6.13",
            finer(tried(&by_descriptors)),
            "guests' roots are put together by way of a directory of the host, a little slower",
        ),
        AREA.wanted(
            "overlay file handles",
            "4.16",
            finer(lasting(state, None)),
            "transactions break hard links in guests",
        ),
        AREA.wanted("id-mapped mount", "5.12", mapped, without_map),
        AREA.wanted("overlay with id-mapped files", "5.19", finer(lasting(state, Some(namespace))), without_map),
        AREA.wanted(
            "overlay over an overlay",
            "3.18",
            finer(tried(&stacked)),
            "no transactions and no overlays in guests",
        ),
        AREA.wanted("id-mapped host root", "5.12", host_root(namespace), "--from host needs a copy or --userns host"),
        AREA.wanted("erofs from a file", "6.12", erofs(state), "images of layers need a loop device, or a directory"),
        AREA.wanted(
            "layers as images",
            "6.12",
            finer(here(tried(&images), false, state)),
            "the store mounts layers as hard-link farms: an inode for each directory of each guest's layer",
        ),
        AREA.wanted(
            "room bounded by a quota",
            "5.14",
            room(state),
            "a guest with --disk gets a file system of its own in a file",
        ),
        AREA.wanted("copies by reference", "4.5", reflinks, "copying a guest copies its data"),
    ]
}

/// A user namespace with guests' ids, or why there is none.
type Mapped<'a> = Result<&'a (Child, OwnedFd), &'a io::Error>;

/// The kernel's own file systems that every guest has, each mounted anew and seen by nobody.
fn kernels_own() -> io::Result<()> {
    for kind in ["proc", "devpts", "mqueue"] {
        Tree::new(kind, &[], Attributes::empty()).map_err(|error| error.source)?;
    }
    Ok(())
}

/// A project quota, or a quota group of btrfs: which bounds bytes alone.
fn room(state: &Path) -> Verdict {
    let quotas = |at: &Scratch| -> io::Result<Verdict> {
        if project_quota::is_enforced(&project_quota::open(at.path())?).unwrap_or(false) {
            return Ok(Verdict::Granted);
        }
        let subvolume = at.path().join("subvolume");
        let bounded = btrfs::make_subvolume(&subvolume).and_then(|()| btrfs::limit(&subvolume, 1 << 20));
        let _ = std::fs::remove_dir(&subvolume);
        Ok(match bounded {
            Ok(()) => Verdict::Partial("a quota group of btrfs, where --inodes is not asked for".into()),
            Err(_) => Verdict::Refused("the file system here is not mounted with project quotas (prjquota)".into()),
        })
    };
    Scratch::near(state).and_then(|at| quotas(&at)).unwrap_or_else(|error| Verdict::of(&error))
}

fn clone(path: &Path) -> io::Result<Tree> {
    Tree::clone_of(path, false).map_err(|error| error.source)
}

fn read_only(at: &Scratch) -> io::Result<()> {
    let tree = clone(at.path())?;
    tree.set_attributes(false, Attributes::MOUNT_ATTR_RDONLY).map_err(|error| error.source)?;
    match write(&tree) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Err(io::Error::other("what was made read-only could be written")),
    }
}

fn write(tree: &Tree) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(tree, "file", flags, Mode::from_raw_mode(0o600)).map(drop)?)
}

/// What the kernel answers with EINVAL may be the fault of the file system: it is if the feature itself is `known`.
fn here(verdict: Verdict, known: bool, state: &Path) -> Verdict {
    if verdict != Verdict::Missing || !known {
        return verdict;
    }
    let state = state.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or_default();
    let over = |mount: &MountEntry| state.starts_with(&mount.at);
    // The deepest mount, and among those at one place the last: it covers the others.
    let all = mounts().unwrap_or_default();
    let mount = all.into_iter().filter(over).max_by_key(|mount| mount.at.as_os_str().len());
    let kind = mount.map_or_else(|| "this".to_owned(), |mount| mount.kind);
    Verdict::Refused(format!("not on the file system here ({kind})"))
}

fn has_overlay() -> bool {
    rustix::mount::fsopen("overlay", rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC).is_ok()
}

fn by_paths(at: &Scratch) -> io::Result<()> {
    let path = |name: &str| Ok::<_, io::Error>(at.directory(name)?.to_string_lossy().into_owned());
    let options = [("lowerdir", path("lower")?), ("upperdir", path("upper")?), ("workdir", path("work")?)];
    let options: Vec<(&str, &str)> = options.iter().map(|(key, value)| (*key, value.as_str())).collect();
    write(&Tree::new("overlay", &options, Attributes::empty()).map_err(|error| error.source)?)
}

fn by_descriptors(at: &Scratch) -> io::Result<()> {
    let lower = prepare(at)?;
    write(&overlay(at, &lower, None, &[])?)
}

/// Directories for an overlay, owned by root on disk: to be made before any other identity is taken on.
fn prepare(at: &Scratch) -> io::Result<Tree> {
    at.directory("upper")?;
    at.directory("work")?;
    clone(&at.directory("lower")?)
}

/// An overlay of `lower` and of what was prepared, as a guest's root is made.
fn overlay(at: &Scratch, lower: &Tree, map: Option<&OwnedFd>, options: &[(&str, &str)]) -> io::Result<Tree> {
    let call = || {
        let files = Tree::clone_of(at.path(), false)?;
        if let Some(namespace) = map {
            files.map_ids(namespace.as_fd())?;
        }
        Overlay { name: "pando-doctor", lowers: vec![lower], data: Vec::new(), files: &files, options, volatile: false }
            .by_descriptors(Attributes::MOUNT_ATTR_NODEV)
    };
    call().map_err(|error| error.source)
}

/// Over an overlay, as a transaction's view stands on a guest's root.
fn stacked(at: &Scratch) -> io::Result<()> {
    let below = Scratch::near(at.path())?;
    let guest = overlay(&below, &prepare(&below)?, None, &LASTING)?;
    prepare(at)?;
    write(&overlay(at, &guest, None, &[])?)
}

/// With the options of guests that last, and with `map` shown through a user namespace.
fn lasting(state: &Path, map: Option<Mapped<'_>>) -> Verdict {
    let trial = || {
        let namespace = match map {
            Some(Ok((_, namespace))) => Some(namespace),
            Some(Err(_)) => return Ok(Verdict::Refused("there is no user namespace to map to".into())),
            None => None,
        };
        let at = Scratch::near(state)?;
        let lower = prepare(&at)?;
        if let Some(namespace) = namespace {
            lower.map_ids(namespace.as_fd()).map_err(|error| error.source)?;
        }
        let _owner = namespace.map(|_| FsOwner::assume(FIRST_ID)).transpose()?;
        let tree = overlay(&at, &lower, namespace, &LASTING)?;
        write(&tree)?;
        let owner = std::fs::metadata(at.path().join("upper/file"))?.uid();
        if namespace.is_some() && owner != 0 {
            return Ok(Verdict::Partial(format!("new files belong to {owner} on disk")));
        }
        // The kernel mounts it without handles where a layer has none, and says so only in its log.
        match has_handle(&tree) {
            Ok(()) => Ok(Verdict::Granted),
            Err(_) => Ok(Verdict::Partial("mounted, but files have no handles".into())),
        }
    };
    trial().unwrap_or_else(|error| Verdict::of(&error))
}

/// Whether a file that `write` made has a handle (name_to_handle_at(2)), as an overlay's has with nfs_export=on alone.
fn has_handle(tree: &Tree) -> io::Result<()> {
    /// MAX_HANDLE_SZ (linux/fcntl.h)
    const MOST: u32 = 128;
    #[repr(C)]
    struct Handle {
        size: u32,
        kind: i32,
        bytes: [u8; MOST as usize],
    }
    let mut handle = Handle { size: MOST, kind: 0, bytes: [0; MOST as usize] };
    let mut mount = 0_i32;
    // SAFETY: the name is a C string; the handle has as many bytes as it says, and the mount's number is an int.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            tree.as_fd().as_raw_fd(),
            c"file".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn mapped_tree(path: &Path, namespace: Mapped<'_>) -> Verdict {
    match namespace {
        Err(_) => Verdict::Refused("there is no user namespace to map to".into()),
        Ok((_, namespace)) => {
            Verdict::from(clone(path).and_then(|tree| tree.map_ids(namespace.as_fd()).map_err(|error| error.source)))
        }
    }
}

/// What `--from host` stands on.
fn host_root(namespace: Mapped<'_>) -> Verdict {
    let root = Path::new("/");
    match mapped_tree(root, namespace) {
        Verdict::Missing => {
            let kind = mounts().ok().and_then(|all| all.into_iter().rfind(|mount| mount.at == root));
            Verdict::Refused(kind.map_or_else(|| "not here".into(), |mount| format!("/ is of kind {}", mount.kind)))
        }
        verdict => verdict,
    }
}

fn erofs(state: &Path) -> Verdict {
    let trial = || {
        let at = Scratch::near(state)?;
        let image = at.file("image", &erofs_image::bytes())?;
        Tree::new("erofs", &[("source", &image.to_string_lossy())], Attributes::MOUNT_ATTR_RDONLY)
            .map_err(|error| error.source)
    };
    match trial() {
        Err(error) if error.raw_os_error() == Some(libc::ENOTBLK) => {
            Verdict::Partial("from block devices alone".into())
        }
        result => Verdict::from(result),
    }
}

/// The stack that guests' roots are, with the store's better back end: an image over a data-only layer, below an
/// overlay with their options.
fn images(at: &Scratch) -> io::Result<()> {
    let image = at.file("image", &erofs_image::bytes())?;
    let image = crate::filesystem::erofs::mount(&image).map_err(|error| error.source)?;
    at.directory("upper")?;
    at.directory("work")?;
    let (data, files) = (clone(&at.directory("objects")?)?, clone(at.path())?);
    let whole = Overlay {
        name: "pando-doctor",
        lowers: vec![&image],
        data: vec![&data],
        files: &files,
        options: &LASTING,
        volatile: false,
    };
    write(&whole.mount(Attributes::MOUNT_ATTR_NODEV, at.path()).map_err(|error| error.source)?)
}

fn reflink(at: &Scratch) -> io::Result<()> {
    let from = std::fs::File::open(at.file("from", &[1; 4096])?)?;
    let to = std::fs::File::create(at.path().join("to"))?;
    Ok(rustix::fs::ioctl_ficlone(to, from)?)
}

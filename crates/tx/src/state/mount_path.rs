//! The path to a part of a target that lies on a file system of its own: the mounts that are crossed from the target's
//! root directory, and what each of them is.
//!
//! The target can unmount, replace and move any of them at any time, and what it has put in their place must be neither
//! read nor changed. So each is looked for by its name in a directory of the file system before it, with no link
//! followed and no other mount entered on the way there, and what is found is compared with what the view was made of.
//! Before that nothing is asked of it: if it is some other file system, who serves that may be standing still.

use crate::tree::confined::{ident_of_handle, is_missing, leads_elsewhere};
use crate::tree::path::TreePath;
use pando_kernel::file::handle::FileHandle;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags, makedev, openat2, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A mount that is crossed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossing {
    /// Its place, below the root of the file system before.
    pub(crate) at: TreePath,
    /// The number of its device. Once the file system is gone the next may get it.
    pub(crate) device: u64,
    /// What tells its root directory from every other, also from that of a later file system.
    pub(crate) root: u64,
}

/// A mount that was found at a place.
pub(crate) struct Found {
    pub(crate) place: OwnedFd,
    /// The number of the mount.
    pub(crate) mount: u64,
    pub(crate) device: u64,
}

/// What is mounted at a place below the root of a file system, which is open. It is no more than a place.
pub(crate) fn found(around: impl AsFd, at: &TreePath) -> io::Result<Found> {
    let (directory, name) = at.split().ok_or(io::ErrorKind::InvalidInput)?;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat2(around, directory.as_path(), flags, Mode::empty(), within | ResolveFlags::NO_XDEV)?;
    let place = openat2(directory, name, flags, Mode::empty(), within)?;
    let about = what_is_known(&place)?;
    let device = makedev(about.stx_dev_major, about.stx_dev_minor);
    Ok(Found { place, mount: about.stx_mnt_id, device })
}

/// As much as can be told of a place without asking whoever serves its file system.
pub(crate) fn what_is_known(place: impl AsFd) -> io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(statx(place, "", flags, StatxFlags::TYPE | StatxFlags::MNT_ID)?)
}

/// What tells the root directory of a file system in memory from all others.
pub(crate) fn ident_of_root(place: impl AsFd) -> io::Result<u64> {
    Ok(ident_of_handle(&FileHandle::of(place)?))
}

/// Follows the mounts from the root of a target, and opens the directory that it ends at.
///
/// # Errors
///
/// One that [`is_gone`] where another file system, or none, is there by now.
pub(crate) fn follow(root: OwnedFd, path: &[Crossing]) -> io::Result<OwnedFd> {
    let mut at = root;
    for Crossing { at: place, device, root } in path {
        let found = found(&at, place)?;
        if found.device != *device || ident_of_root(&found.place)? != *root {
            return Err(Errno::STALE.into());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = rustix::fs::openat(&found.place, ".", flags, Mode::empty())?;
    }
    Ok(at)
}

/// Whether an error of [`follow`] says that the target has not got the file system any more, at least not there.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    is_missing(error) || leads_elsewhere(error) || error.raw_os_error() == Some(Errno::STALE.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::mount::{Attributes, Tree};
    use std::path::Path;

    /// A directory with a tmpfs mounted at `m` in it, in mounts of this thread's own; nothing without root.
    fn within_own_mounts(show: impl FnOnce(&Path) + Send) {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: mounting needs root");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::create_dir(path.join("m")).unwrap();
        std::thread::scope(|scope| {
            let shown = scope.spawn(|| {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS | nix::sched::CloneFlags::CLONE_FS).unwrap();
                let private = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
                rustix::mount::mount_change("/", private).unwrap();
                mount(&path.join("m"));
                show(path);
            });
            shown.join().unwrap();
        });
    }

    fn mount(at: &Path) {
        let tree = Tree::new("tmpfs", &[], Attributes::empty()).unwrap();
        tree.attach_over(std::fs::File::open(at).unwrap()).unwrap();
    }

    fn open(path: &Path) -> OwnedFd {
        std::fs::File::open(path).unwrap().into()
    }

    fn crossing(around: &OwnedFd, at: &str) -> Crossing {
        let at = TreePath::new(at.as_bytes()).unwrap();
        let Found { place, device, .. } = found(around, &at).unwrap();
        Crossing { at, device, root: ident_of_root(&place).unwrap() }
    }

    #[test]
    fn the_way_leads_to_the_very_file_system_and_to_no_later_one() {
        within_own_mounts(|path| {
            std::fs::create_dir_all(path.join("m/d")).unwrap();
            mount(&path.join("m/d"));
            std::fs::write(path.join("m/d/file"), "").unwrap();
            let way = [crossing(&open(path), "m"), crossing(&open(&path.join("m")), "d")];
            let end = follow(open(path), &way).unwrap();
            assert!(rustix::fs::statat(&end, "file", AtFlags::empty()).is_ok());
            drop(end);
            let again = |at: &str| {
                rustix::mount::unmount(path.join(at), rustix::mount::UnmountFlags::empty()).unwrap();
                assert!(is_gone(&follow(open(path), &way).unwrap_err()));
                mount(&path.join(at));
                // It may well have the same number.
                assert!(is_gone(&follow(open(path), &way).unwrap_err()));
            };
            again("m/d");
        });
    }

    #[test]
    fn no_link_and_no_other_mount_is_on_the_way() {
        within_own_mounts(|path| {
            let way = [crossing(&open(path), "m")];
            std::fs::create_dir(path.join("other")).unwrap();
            std::os::unix::fs::symlink("m", path.join("link")).unwrap();
            mount(&path.join("other"));
            std::fs::create_dir(path.join("other/m")).unwrap();
            let by = |at: &str| {
                let at = TreePath::new(at.as_bytes()).unwrap();
                follow(open(path), &[Crossing { at, ..way[0].clone() }])
            };
            assert!(by("m").is_ok());
            for at in ["link", "other/m", "nothing", "other"] {
                assert!(is_gone(&by(at).unwrap_err()), "{at}");
            }
        });
    }
}

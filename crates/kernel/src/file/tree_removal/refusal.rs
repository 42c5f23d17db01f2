//! Why a tree was not removed, or not all of it.

use crate::mount::{MountEntry, mounts};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Why something could not be removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemovalError {
    /// Something is mounted in it, which may be anybody's.
    #[error("{at} is a mount point{of}; nothing in it was removed. Unmount it first: umount '{at}'", at = .at.display())]
    Mounted {
        /// The path at which something is mounted.
        at: PathBuf,
        /// What, as the rest of a sentence; empty where that is not known.
        of: String,
    },
    /// The kernel refused a system call.
    #[error("{at}: {source}", at = .at.display())]
    Call {
        /// What was to be removed.
        at: PathBuf,
        /// Why it was not removed.
        source: io::Error,
    },
}

impl RemovalError {
    /// What the kernel's answer about `name` of `directory` means.
    pub(super) fn about(directory: BorrowedFd<'_>, name: &OsStr, errno: Errno) -> Self {
        let place = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).unwrap_or_default();
        let at = if name == "." { place } else { place.join(name) };
        // BUSY: a file that something is mounted on, or a directory that something was mounted on a moment ago. It has
        // other causes too.
        let is_mounted = errno == Errno::XDEV || errno == Errno::BUSY && is_another_mount(directory, name);
        if !is_mounted {
            return Self::Call { at, source: errno.into() };
        }
        let id = mount_of(directory, name);
        let entry = mounts().ok().and_then(|mounts| mounts.into_iter().find(|mount| Some(mount.id) == id));
        Self::Mounted { at, of: entry.as_ref().map_or_else(String::new, what) }
    }
}

impl From<RemovalError> for io::Error {
    fn from(error: RemovalError) -> Self {
        let kind = match &error {
            RemovalError::Mounted { .. } => io::ErrorKind::CrossesDevices,
            RemovalError::Call { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

/// Refuses a tree that something is mounted in, or on, as far as this process sees it. What is mounted after that is
/// not found. The directories `but` may be mount points.
///
/// # Errors
///
/// [`RemovalError::Mounted`], and [`RemovalError::Call`] where the mounts cannot be read. A path at which nothing is
/// has no mounts.
pub fn nothing_is_mounted_in(path: &Path, but: &[&Path]) -> Result<(), RemovalError> {
    let call = |source| RemovalError::Call { at: path.to_owned(), source };
    let within = match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        within => within.map_err(call)?,
    };
    let mounts = mounts().map_err(|error| call(error.source))?;
    let but: Vec<PathBuf> = but.iter().filter_map(|path| path.canonicalize().ok()).collect();
    match mounts.iter().find(|mount| mount.at.starts_with(&within) && !but.contains(&mount.at)) {
        Some(mount) => Err(RemovalError::Mounted { at: mount.at.clone(), of: what(mount) }),
        None => Ok(()),
    }
}

/// The mount that a name leads to (statx(2), since Linux 5.8).
fn mount_of(directory: BorrowedFd<'_>, name: &OsStr) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(directory, name, flags, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

fn is_another_mount(directory: BorrowedFd<'_>, name: &OsStr) -> bool {
    mount_of(directory, name).is_some_and(|mount| mount_of(directory, OsStr::new(".")) != Some(mount))
}

/// What is mounted, after "is a mount point".
fn what(mount: &MountEntry) -> String {
    let source = &mount.source;
    if mount.root == Path::new("/") {
        return format!(" of {source} ({})", mount.kind);
    }
    format!(" of {} on {source} ({})", mount.root.display(), mount.kind)
}

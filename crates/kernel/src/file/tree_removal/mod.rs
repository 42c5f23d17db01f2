//! Removing a tree of files: the one way for all of Pando.
//!
//! What is removed may be of any make: it is as deep as its maker liked, has links in it, and something may be mounted
//! in it. So the walk goes from directory to directory by descriptor, follows no link, and enters no mount, not even
//! one of the same file system, which no device number would tell. `std::fs::remove_dir_all` goes into such a mount and
//! deletes what it shows; it is forbidden here (`clippy.toml`).
//!
//! ```text
//!   remove_tree(path)      parent opened ─▶ remove_child(parent, name)
//!   remove_child           unlink ─▶ is a directory ─▶ open it, BENEATH, NO_SYMLINKS, NO_XDEV ─▶ walk ─▶ rmdir
//!   empty_directory(path)  opened, not as a link ─▶ walk
//!   walk                   a pass over each directory: files are unlinked, directories noted
//!                          ─▶ each of these entered, emptied, removed
//! ```
//!
//! Where something is mounted the removal ends with [`RemovalError::Mounted`]. What was removed before that is gone. A
//! caller that had rather remove nothing then asks [`nothing_is_mounted_in`] before: that is a courtesy, and no wall.

mod protection;
mod refusal;
mod temporary;
mod walk;

pub use refusal::{RemovalError, nothing_is_mounted_in};
pub use temporary::TemporaryDirectory;

use rustix::fs::{AtFlags, Mode, OFlags, unlinkat};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use walk::{AGAIN, Walk};

/// What becomes of objects that chattr(1) has made immutable or append-only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protected {
    /// They are not removed: EPERM.
    #[default]
    Stay,
    /// Their protection is lifted, and they are removed. A file that has another name is protected again after that.
    Go,
}

/// Removes what is at a path, with everything in it if it is a directory. The path's last name is not followed; links
/// before that are.
///
/// # Errors
///
/// [`RemovalError::Mounted`] where something is mounted there or in it; [`RemovalError::Call`] for what else the kernel
/// refuses. ENOENT where there is nothing.
///
/// ```no_run
/// let directory = tempfile::tempdir()?;
/// std::fs::create_dir_all(directory.path().join("a/b"))?;
/// pando_kernel::file::tree_removal::remove_tree(&directory.path().join("a"))?;
/// assert!(!directory.path().join("a").exists());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn remove_tree(path: &Path) -> Result<(), RemovalError> {
    remove_tree_with(path, Protected::Stay)
}

/// Removes a tree like [`remove_tree`], with a choice about what is protected.
///
/// # Errors
///
/// As [`remove_tree`].
pub fn remove_tree_with(path: &Path, protected: Protected) -> Result<(), RemovalError> {
    let (parent, name) = opened_parent(path)?;
    remove(parent.as_fd(), name, protected)
}

/// Removes `name` of `directory`, with everything in it if it is a directory.
///
/// # Errors
///
/// As [`remove_tree`].
pub fn remove_child(directory: BorrowedFd<'_>, name: &OsStr) -> Result<(), RemovalError> {
    remove(directory, name, Protected::Stay)
}

/// Removes everything in the directory at a path, not itself. The path's last name is not followed; something may be
/// mounted there, which is then what was meant.
///
/// # Errors
///
/// As [`remove_tree`].
pub fn empty_directory(path: &Path) -> Result<(), RemovalError> {
    let opened = rustix::fs::open(path, walk::DIRECTORY, Mode::empty());
    let directory = opened.map_err(|errno| RemovalError::Call { at: path.to_owned(), source: errno.into() })?;
    Walk::new(directory, Protected::Stay).empty()
}

fn opened_parent(path: &Path) -> Result<(OwnedFd, &OsStr), RemovalError> {
    let call = |errno: Errno| RemovalError::Call { at: path.to_owned(), source: errno.into() };
    // "/" has no name, nor has what ends in "..".
    let name = path.file_name().ok_or_else(|| call(Errno::INVAL))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((rustix::fs::open(parent, flags, Mode::empty()).map_err(call)?, name))
}

fn remove(directory: BorrowedFd<'_>, name: &OsStr, protected: Protected) -> Result<(), RemovalError> {
    let failed = |errno| RemovalError::about(directory, name, errno);
    let c_name = CString::new(name.as_bytes()).map_err(|_| failed(Errno::INVAL))?;
    let unlinked = walk::unlink(directory, &c_name, protected);
    if unlinked.map_err(failed)? == walk::Unlinked::Gone {
        return Ok(());
    }
    let mut again = 0;
    loop {
        let child = walk::open(directory, name).map_err(failed)?;
        Walk::new(child, protected).empty()?;
        match walk::remove_empty(directory, &c_name, protected) {
            // Names are put into it meanwhile.
            Err(Errno::NOTEMPTY | Errno::EXIST) if again < AGAIN => again += 1,
            removed => return removed.map_err(failed),
        }
    }
}

/// Removes an empty directory; one that is not there is as good.
fn rmdir(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<(), Errno> {
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests;

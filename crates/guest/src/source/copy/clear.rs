//! Removing a tree, however deep, without following anything out of it.

use super::chain::Chain;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Removes everything in `directory`, not itself. Never enters a mount: EXDEV, if something is mounted in it.
pub fn empty_directory(directory: &Path) -> Result<(), Errno> {
    empty(rustix::fs::open(directory, DIRECTORY, Mode::empty())?)
}

/// Removes `name` of `directory`, with everything in it if it is a directory.
pub(crate) fn remove(directory: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return done,
    }
    empty(open_for_removal(directory, name)?)?;
    unlinkat(directory, name, AtFlags::REMOVEDIR)
}

fn empty(root: OwnedFd) -> Result<(), Errno> {
    let mut chain = Chain::new(root)?;
    // For each directory on the way down: its name in the one above.
    let mut names: Vec<OsString> = Vec::new();
    loop {
        match clear_files(chain.deepest())? {
            Some(name) => {
                let child = open_for_removal(chain.deepest(), &name)?;
                chain.enter(child)?;
                names.push(name);
            }
            None => {
                let Some(name) = names.pop() else { return Ok(()) };
                chain.leave()?;
                unlinkat(chain.deepest(), &*name, AtFlags::REMOVEDIR)?;
            }
        }
    }
}

/// Opens a directory to remove what is in it. EXDEV: something is mounted there, and what is in that is not ours to remove; a
/// package tool that was killed may leave the host's /dev mounted in a half-made tree.
fn open_for_removal(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let open = || openat2(parent, name, DIRECTORY, Mode::empty(), confined);
    match open() {
        // A half-made directory may have a mode that keeps even its owner out; root does not care.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            open()
        }
        done => done,
    }
}

/// Unlinks what is not a directory; returns the first directory found, or nothing when none is left.
fn clear_files(directory: BorrowedFd<'_>) -> Result<Option<OsString>, Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            return Ok(Some(OsString::from_vec(name.to_bytes().to_vec())));
        }
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            // Its type was unknown to readdir.
            Err(Errno::ISDIR) => return Ok(Some(OsString::from_vec(name.to_bytes().to_vec()))),
            // A directory that its owner cannot write to, or a file that is immutable.
            Err(Errno::ACCESS) => {
                rustix::fs::fchmod(directory, Mode::RWXU)?;
                unlinkat(directory, name, AtFlags::empty())?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

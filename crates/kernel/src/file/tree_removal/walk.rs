//! The walk through a tree that is removed, however deep and however wide it is.

use super::{Protected, RemovalError, protection, rmdir};
use crate::file::directory_chain::Chain;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, openat2, unlinkat};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// How often a directory is emptied again in which names are found when it should be empty: another process puts them
/// there, or the file system leaves some out while others are removed.
pub(super) const AGAIN: u32 = 16;

/// How many directories of one directory are noted at most before they are removed, and the rest is read. It bounds the
/// memory for a directory of millions, and is so many that reading the beginning again costs nothing beside removing
/// them.
const NOTED: usize = 8192;

/// Room for what getdents64(2) gives at a time, in bytes.
const BUFFER: usize = 32 << 10;

pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

const CONFINED: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// What came of unlinking a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unlinked {
    Gone,
    IsDirectory,
}

/// A directory on the way down.
#[derive(Default)]
struct Level {
    /// Its name in the one above; empty at the top.
    name: CString,
    /// The names of it that are still there.
    directories: Vec<CString>,
    is_begun: bool,
    /// Whether it was read to its end.
    is_read: bool,
    /// How often in a row one of its directories was not empty when it should have been.
    again: u32,
}

/// Everything in a directory that is being removed.
pub(super) struct Walk {
    chain: Chain,
    levels: Vec<Level>,
    buffer: Vec<MaybeUninit<u8>>,
    protected: Protected,
}

impl Walk {
    pub(super) fn new(root: OwnedFd, protected: Protected) -> Self {
        let buffer = vec![MaybeUninit::uninit(); BUFFER];
        Self { chain: Chain::new(root), levels: vec![Level::default()], buffer, protected }
    }

    /// Removes everything below the directory that it was begun in.
    pub(super) fn empty(mut self) -> Result<(), RemovalError> {
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.directories.pop() {
                self.go_down(name)?;
            } else if !level.is_read {
                self.pass()?;
            } else {
                self.go_up()?;
            }
        }
        Ok(())
    }

    fn go_down(&mut self, name: CString) -> Result<(), RemovalError> {
        let failed = |chain: &Chain, errno| RemovalError::about(chain.deepest(), os(&name), errno);
        match open(self.chain.deepest(), os(&name)) {
            Ok(child) => {
                self.chain.enter(child).map_err(|errno| failed(&self.chain, errno))?;
                self.levels.push(Level { name, ..Level::default() });
                Ok(())
            }
            // Another process has removed it.
            Err(Errno::NOENT) => Ok(()),
            // Another process has put something else in its place.
            Err(Errno::NOTDIR | Errno::LOOP) => match unlink(self.chain.deepest(), &name, self.protected) {
                Ok(Unlinked::Gone) => Ok(()),
                Ok(Unlinked::IsDirectory) => Err(failed(&self.chain, Errno::AGAIN)),
                Err(errno) => Err(failed(&self.chain, errno)),
            },
            Err(errno) => Err(failed(&self.chain, errno)),
        }
    }

    fn go_up(&mut self) -> Result<(), RemovalError> {
        let Some(done) = self.levels.pop() else { return Ok(()) };
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        self.chain.leave().map_err(|errno| RemovalError::about(self.chain.deepest(), OsStr::new("."), errno))?;
        match remove_empty(self.chain.deepest(), &done.name, self.protected) {
            Ok(()) => level.again = 0,
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.again < AGAIN => {
                level.again += 1;
                level.directories.push(done.name);
            }
            Err(errno) => return Err(RemovalError::about(self.chain.deepest(), os(&done.name), errno)),
        }
        Ok(())
    }

    /// Reads the directory that the walk stands in: unlinks what is no directory, and notes what is one.
    fn pass(&mut self) -> Result<(), RemovalError> {
        let directory = self.chain.deepest();
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let about = |errno| RemovalError::about(directory, OsStr::new("."), errno);
        if level.is_begun {
            rustix::fs::seek(directory, SeekFrom::Start(0)).map_err(about)?;
        }
        level.is_begun = true;
        let mut entries = RawDir::new(directory, &mut self.buffer);
        while level.directories.len() < NOTED {
            let entry = match entries.next() {
                Some(Ok(entry)) => entry,
                // Another process has removed the directory itself.
                None | Some(Err(Errno::NOENT)) => {
                    level.is_read = true;
                    break;
                }
                Some(Err(errno)) => return Err(about(errno)),
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let is_directory = entry.file_type() == FileType::Directory;
            // What readdir does not know the kind of is told by unlink.
            let failed = |errno| RemovalError::about(directory, os(name), errno);
            if is_directory || unlink(directory, name, self.protected).map_err(failed)? == Unlinked::IsDirectory {
                level.directories.push(name.to_owned());
            }
        }
        Ok(())
    }
}

/// Opens a directory to remove what is in it. EXDEV: something is mounted there, and what is in that is not ours to
/// remove; a package tool that was killed may leave the host's /dev mounted in a half-made tree.
pub(super) fn open(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let open = |flags| openat2(parent, name, flags, Mode::empty(), CONFINED);
    match open(DIRECTORY) {
        // A half-made directory may have a mode that keeps even its owner out; root does not care.
        Err(Errno::ACCESS) => {
            let place = open(OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
            // Through its descriptor: its name may be a link by now.
            rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU)?;
            open(DIRECTORY)
        }
        done => done,
    }
}

/// Unlinks what is not a directory; a name that is not there any more is gone.
pub(super) fn unlink(directory: BorrowedFd<'_>, name: &CStr, protected: Protected) -> Result<Unlinked, Errno> {
    let unlink = || match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => Ok(Unlinked::Gone),
        Err(Errno::ISDIR) => Ok(Unlinked::IsDirectory),
        Err(errno) => Err(errno),
    };
    match unlink() {
        // A directory that its owner cannot write to.
        Err(Errno::ACCESS) => {
            rustix::fs::fchmod(directory, Mode::RWXU)?;
            unlink()
        }
        // POSIX has it for directories, too, and so have some file systems.
        Err(Errno::PERM) if is_directory(directory, name) => Ok(Unlinked::IsDirectory),
        Err(Errno::PERM) if protected == Protected::Go => protection::unlink(directory, name).map(|()| Unlinked::Gone),
        done => done,
    }
}

fn is_directory(directory: BorrowedFd<'_>, name: &CStr) -> bool {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir())
}

/// Removes a directory that was emptied.
pub(super) fn remove_empty(parent: BorrowedFd<'_>, name: &CStr, protected: Protected) -> Result<(), Errno> {
    match rmdir(parent, name) {
        Err(Errno::ACCESS) => {
            rustix::fs::fchmod(parent, Mode::RWXU)?;
            rmdir(parent, name)
        }
        Err(Errno::PERM) if protected == Protected::Go => {
            protection::lift(parent)?;
            if let Ok(child) = open(parent, os(name)) {
                protection::lift(child.as_fd())?;
            }
            rmdir(parent, name)
        }
        removed => removed,
    }
}

fn os(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

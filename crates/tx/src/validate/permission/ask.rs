//! What the kernel says of a user's rights, by a thread that has them.

use super::STICKY;
use crate::journal::commit_error::CommitError;
use crate::tree::attributes::SET_IDS;
use crate::tree::identity::{Directories, Identity};
use crate::tree::path::TreePath;
use pando_kernel::process::user_rights::{UserIds, may};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

/// More is not looked at in a directory that is to be removed.
const MOST: usize = 1 << 20;

/// What the kernel is asked (access(2)).
const READ: i32 = 4;
const WRITE: i32 = 2;
const SEARCH: i32 = 1;

/// What a step takes of the user's rights.
#[derive(Debug)]
pub(super) enum Right {
    /// Names may come to and go from a directory.
    Names(TreePath),
    /// What is at a path may be removed, with all that is in it, or be replaced.
    Removal(TreePath),
    /// What is at a path may get another name, in another directory perhaps.
    Renaming(TreePath, bool),
    /// Something may be given another name.
    Link(OwnedFd),
    /// The content of something may be changed.
    Content(OwnedFd),
}

/// A right, and the path that people are told.
pub(super) type Need = (Right, TreePath);

/// The questions about one live tree.
pub(super) struct Asking<'a> {
    user: &'a UserIds,
    /// Where it is.
    live: &'a Path,
    /// The device and the inode of its root.
    root: (u64, u64),
}

/// What the user may not do.
pub(super) fn refused(live: &Path, at: &TreePath, why: &str) -> CommitError {
    CommitError::NotAllowed { path: live.join(at.as_path()).display().to_string(), why: why.to_owned() }
}

/// What could not be found out.
pub(super) fn failed(live: &Path, at: &TreePath, source: io::Error) -> CommitError {
    CommitError::Prepare { what: format!("looking at {}", live.join(at.as_path()).display()), source }
}

impl<'a> Asking<'a> {
    pub(super) fn new(user: &'a UserIds, live: &'a Path, root: BorrowedFd<'_>) -> io::Result<Self> {
        let root = rustix::fs::fstat(root)?;
        Ok(Self { user, live, root: (root.st_dev, root.st_ino) })
    }

    /// Asks the kernel, by a thread with the user's rights; the directories that names come to and go from.
    pub(super) fn judge(&self, needs: &[Need]) -> Result<Directories, CommitError> {
        let mut directories = Directories::new();
        for (right, at) in needs {
            let judged = match right {
                Right::Names(parent) => self.directory(parent).and_then(|(found, stat)| {
                    may(&found, WRITE | SEARCH)?;
                    is_unprotected(&found)?;
                    directories.insert(stat.st_ino, Identity::of(&found)?);
                    Ok(())
                }),
                Right::Removal(path) => self.may_go(path, &mut 0),
                Right::Renaming(path, across) => self.may_be_renamed(path, *across),
                Right::Link(object) => self.may_be_linked(object),
                Right::Content(object) => may(object, WRITE).and_then(|()| is_unprotected(object)),
            };
            judged.map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::ACCESS | Errno::PERM) => refused(self.live, at, "you may not change that"),
                // By a link, or a mount of his.
                Some(Errno::LOOP | Errno::XDEV | Errno::NOENT | Errno::NOTDIR | Errno::STALE) => {
                    refused(self.live, at, "what is there was replaced meanwhile")
                }
                _ => failed(self.live, at, error),
            })?;
        }
        Ok(directories)
    }

    /// A directory of the live tree, reached from the machine's root as the user reaches it.
    fn directory(&self, path: &TreePath) -> io::Result<(OwnedFd, Stat)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let root = rustix::fs::openat2(rustix::fs::CWD, self.live, flags, Mode::empty(), within)?;
        let its = rustix::fs::fstat(&root)?;
        if self.root != (its.st_dev, its.st_ino) {
            return Err(Errno::XDEV.into());
        }
        let within = within | ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
        let found = match path.as_bytes().is_empty() {
            true => root,
            false => rustix::fs::openat2(&root, path.as_path(), flags, Mode::empty(), within)?,
        };
        let stat = rustix::fs::fstat(&found)?;
        Ok((found, stat))
    }

    /// Something in a directory, by its path, and the directory's own attributes.
    fn named(&self, path: &TreePath) -> io::Result<(OwnedFd, Stat, Stat)> {
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        let (parent, around) = self.directory(&parent)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found =
            rustix::fs::openat2(&parent, name, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_XDEV)?;
        let stat = rustix::fs::fstat(&found)?;
        Ok((found, stat, around))
    }

    /// Whether what is in a directory may go from there: in one that is sticky what is the user's, or in his own.
    fn is_not_kept(&self, (found, stat, around): (&OwnedFd, &Stat, &Stat)) -> io::Result<()> {
        let is_his = [stat.st_uid, around.st_uid].contains(&self.user.uid);
        if around.st_mode & STICKY != 0 && !is_his {
            return Err(Errno::PERM.into());
        }
        is_unprotected(found)
    }

    /// Whether something may be removed, with all that is in it.
    fn may_go(&self, path: &TreePath, looked: &mut usize) -> io::Result<()> {
        let (found, stat, around) = self.named(path)?;
        self.is_not_kept((&found, &stat, &around))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Ok(());
        }
        let list = rustix::fs::openat(&found, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let names = match list {
            Ok(list) => crate::tree::confined::names_in(list)?,
            // Only what is empty could have been removed without being listed, and nobody knows that it is.
            Err(errno) => return Err(errno.into()),
        };
        if !names.is_empty() {
            may(&found, WRITE | SEARCH)?;
        }
        for name in names {
            *looked += 1;
            if *looked > MOST {
                return Err(io::Error::other("too much is in it"));
            }
            self.may_go(&path.join(&name), looked)?;
        }
        Ok(())
    }

    /// Whether a directory may get another name; in another directory only if it may be written to, since it has the
    /// name `..`.
    fn may_be_renamed(&self, path: &TreePath, across: bool) -> io::Result<()> {
        let (found, stat, around) = self.named(path)?;
        self.is_not_kept((&found, &stat, &around))?;
        if across { may(&found, WRITE) } else { Ok(()) }
    }

    /// As the kernel judges where `fs.protected_hardlinks` is set: what is his, or what he may read and write anyway.
    fn may_be_linked(&self, object: &OwnedFd) -> io::Result<()> {
        let stat = rustix::fs::fstat(object)?;
        is_unprotected(object)?;
        if stat.st_uid == self.user.uid {
            return Ok(());
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_mode & SET_IDS != 0 {
            return Err(Errno::PERM.into());
        }
        may(object, READ | WRITE)
    }
}

/// Whether chattr(1) has not protected something, by `+i` or `+a`.
fn is_unprotected(object: &OwnedFd) -> io::Result<()> {
    let found = rustix::fs::statx(object, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let protection = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    if found.stx_attributes.intersects(protection) { Err(Errno::PERM.into()) } else { Ok(()) }
}

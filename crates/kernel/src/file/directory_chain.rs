//! The open directories from a tree's root down to where a walk stands.
//!
//! A walk that recursed, or that held every directory open, would fail in a tree thousands of levels deep, which any
//! user can make. The chain keeps only the last few open. On the way back up it opens the others again as `..` and
//! checks that this is the very directory that it came through: someone may have moved the one below it meanwhile.

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, openat, statx};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How many directories stay open. Two chains at a time fit well into the usual limit of 1024 descriptors.
const OPEN: usize = 64;

/// What tells one object of a file system from another: its device's two numbers, and its inode's.
pub type Identity = (u32, u32, u64);

#[derive(Debug)]
enum Ancestor {
    Open(OwnedFd),
    /// It is opened again on the way up.
    Closed(Identity),
}

/// A directory that a walk stands in, and those above it up to where the walk began.
#[derive(Debug)]
pub struct Chain {
    deepest: OwnedFd,
    above: Vec<Ancestor>,
}

impl Chain {
    /// A walk that begins in `root`.
    pub fn new(root: OwnedFd) -> Self {
        Self { deepest: root, above: Vec::new() }
    }

    /// The directory in which the walk stands.
    pub fn deepest(&self) -> BorrowedFd<'_> {
        self.deepest.as_fd()
    }

    /// Goes down into `child`, a directory of the deepest one.
    ///
    /// # Errors
    ///
    /// Those of statx(2), on a directory high above that is closed now.
    pub fn enter(&mut self, child: OwnedFd) -> Result<(), Errno> {
        let parent = std::mem::replace(&mut self.deepest, child);
        self.above.push(Ancestor::Open(parent));
        if let Some(far) = self.above.len().checked_sub(OPEN)
            && let Ancestor::Open(directory) = &self.above[far]
        {
            self.above[far] = Ancestor::Closed(identity(&look_at(directory.as_fd())?));
        }
        Ok(())
    }

    /// Goes up one directory; at the root it stays.
    ///
    /// # Errors
    ///
    /// ESTALE where the directory was moved away meanwhile; those of openat(2).
    pub fn leave(&mut self) -> Result<(), Errno> {
        self.deepest = match self.above.pop() {
            None => return Ok(()),
            Some(Ancestor::Open(parent)) => parent,
            Some(Ancestor::Closed(expected)) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let parent = openat(&self.deepest, "..", flags, Mode::empty())?;
                if identity(&look_at(parent.as_fd())?) != expected {
                    return Err(Errno::STALE);
                }
                parent
            }
        };
        Ok(())
    }
}

/// What there is to know about an open object.
///
/// # Errors
///
/// Those of statx(2).
pub fn look_at(object: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(object, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// What tells an object from others.
pub fn identity(stat: &Statx) -> Identity {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

//! The open directories from a tree's root down to where a walk stands.
//!
//! A walk that recursed, or that held every directory open, would fail in a tree thousands of levels deep, which any user can
//! make. The chain keeps only the last few open. On the way back up it opens the others again as `..` and checks that this is
//! the very directory that it came through: someone may have moved the one below it meanwhile.

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, openat, statx};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How many directories stay open. Two chains at a time fit well into the usual limit of 1024 descriptors.
const OPEN: usize = 64;

/// What tells one directory from another.
pub(super) type Identity = (u32, u32, u64);

struct Ancestor {
    fd: Option<OwnedFd>,
    identity: Identity,
}

pub(super) struct Chain {
    deepest: OwnedFd,
    identity: Identity,
    above: Vec<Ancestor>,
}

impl Chain {
    pub(super) fn new(root: OwnedFd) -> Result<Self, Errno> {
        let identity = identity(&look_at(root.as_fd())?);
        Ok(Self { deepest: root, identity, above: Vec::new() })
    }

    /// The directory in which the walk stands.
    pub(super) fn deepest(&self) -> BorrowedFd<'_> {
        self.deepest.as_fd()
    }

    /// Goes down into `child`, a directory of the deepest one.
    pub(super) fn enter(&mut self, child: OwnedFd) -> Result<(), Errno> {
        let below = identity(&look_at(child.as_fd())?);
        let parent = std::mem::replace(&mut self.deepest, child);
        let identity = std::mem::replace(&mut self.identity, below);
        self.above.push(Ancestor { fd: Some(parent), identity });
        if let Some(far) = self.above.len().checked_sub(OPEN) {
            self.above[far].fd = None;
        }
        Ok(())
    }

    /// Goes up one directory; at the root it stays. ESTALE: the directory was moved away meanwhile.
    pub(super) fn leave(&mut self) -> Result<(), Errno> {
        let Some(parent) = self.above.pop() else { return Ok(()) };
        let fd = match parent.fd {
            Some(fd) => fd,
            None => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let fd = openat(&self.deepest, "..", flags, Mode::empty())?;
                if identity(&look_at(fd.as_fd())?) != parent.identity {
                    return Err(Errno::STALE);
                }
                fd
            }
        };
        (self.deepest, self.identity) = (fd, parent.identity);
        Ok(())
    }
}

/// What there is to know about an open object.
pub(super) fn look_at(object: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(object, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

pub(super) fn identity(stat: &Statx) -> Identity {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

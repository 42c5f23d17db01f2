//! What a commit will do, for whoever is to approve it: each path that comes, goes or changes, with all that is known
//! of it before and after.
//!
//! The commit works on nodes, which say no more than it needs: a directory that was made again in its old place is one
//! node, and all that was below is taken away by one rename. Here such a directory is compared with the old one name by
//! name.
//!
//! ```text
//!   Node ──▶ collect ──▶ Reviewed (a path: Look before, Look after)
//!             │  ▲
//!             ▼  │
//!   live tree, upper directory
//! ```

mod collect;
mod export;
mod look;
mod reviewed;

pub use export::{Export, Exported};
pub(crate) use look::Ids;
pub use look::Look;
pub use reviewed::Reviewed;

use crate::state::overlay_part::OverlayPart;
use crate::tree::confined::Tree;
use reviewed::Before;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

pub(crate) use collect::collect;

/// What a commit will do on one mount.
#[derive(Debug)]
pub struct PartReview {
    /// The overlay part of the mount.
    pub part: OverlayPart,
    /// Its paths, in their order.
    pub entries: Vec<Reviewed>,
}

impl PartReview {
    /// The regular file that a path's content is compared with, as it is outside. No link is followed: whoever arranged
    /// the tree leads nobody out of it.
    ///
    /// # Errors
    ///
    /// `NotFound` where there is none, and what opening it says.
    pub fn before(&self, entry: &Reviewed) -> io::Result<File> {
        let live = self.part.live_tree()?;
        match &entry.before {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(Before::At(path)) => live.file(path, false),
            Some(Before::Known(identity)) => {
                let object = identity.open(&live)?;
                let path = format!("/proc/self/fd/{}", object.as_raw_fd());
                Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?.into())
            }
        }
    }

    /// The same as the transaction has it.
    ///
    /// # Errors
    ///
    /// What opening it says.
    pub fn after(&self, entry: &Reviewed) -> io::Result<File> {
        match &entry.index {
            Some(index) => Tree::open(&self.part.index())?.file(index, false),
            None => Tree::open(&self.part.upper())?.file(&entry.path, false),
        }
    }
}

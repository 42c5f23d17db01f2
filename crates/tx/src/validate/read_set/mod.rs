//! The read set: what a transaction looked up, and which directories it listed.
//!
//! A view has a dentry cache of its own, which holds every name that was ever looked up in it, the missing ones too.
//! Nothing is recorded while the transaction runs; when it has ended, a BPF program walks the cache. Listing a
//! directory leaves nothing there, so that opened directories are told by fanotify, and found again in the cache by
//! their dentries: their paths would be told from whatever mount they were opened by, which a command can make itself.
//!
//! ```text
//!   view's dentries ──walk──▶ Seen ─┐
//!                                   ├─▶ ReadSet ──check (against the live tree)──▶ conflict
//!   opened directories ─────────────┘
//! ```
//!
//! What of it is as it was is told by the walk itself, from the live tree's own dentries and inodes; only about the
//! rest the live tree has to be asked, name by name.
//!
//! Where memory runs short the kernel drops names, those first that were looked up first: a *canary* among them tells.
//! Nothing is gathered ahead of that. The kernel gives no word before its shrinker runs, the first thing that goes is
//! the canary, and a small cache goes in one pass: whatever looks from time to time comes too late as soon as memory is
//! short for good. What is told while the shrinker begins (a tracepoint) would not hold the names that are looked up
//! while it runs. And nobody can be made to hold on to a name that leads to nothing. What can be done is to have it not
//! come to that: see `synchronous_writes`.
//!
//! What is kept of a name does not say whether content, mode or nothing but the name was asked for, nor what a file's
//! attributes were before. So one that is changed in any way counts as changed, unless a
//! [baseline](crate::change::split_attribution) of it is kept: of such a file it is also known whether it was opened.

mod check;
mod dentries;
mod fitted;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod openers;
mod replaced;
mod tenant;
mod walk;
mod watch;

pub(crate) use check::{Known, check, pandos_own};
pub(crate) use dentries::{CANARY, Looked};
pub(crate) use fitted::digest;
pub(crate) use tenant::Tenant;
pub(crate) use walk::{Walker, load_ahead};
pub(crate) use watch::Canary;
pub(crate) use watch::looked_so_far;
pub use watch::{Watch, note_canary};

use crate::change::upper::Node;
use crate::tree::attributes::Moment;
use crate::tree::confined::Tree;
use crate::tree::path::TreePath;
use crate::validate::conflict::Conflict;
use replaced::Replaced;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;

/// What was read on one part.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadSet {
    /// Names that were looked up.
    pub(crate) looked: Vec<Looked>,
    /// Names of the view whose objects may have taken the place of others of the live tree: nothing else tells that
    /// those were there.
    pub(crate) replacing: HashSet<TreePath>,
    /// Directories that were opened, to be listed.
    pub(crate) listed: BTreeSet<TreePath>,
    /// The [digest](crate::tree::attributes::Attributes::digest) of what the view's root has now, where that is known.
    pub(crate) root: Option<u64>,
}

impl ReadSet {
    /// The first name that a transaction has changed, and may have taken from what others have removed since it began;
    /// but for names in a directory that are known to be new.
    pub(crate) fn replaced(
        &self,
        live: &Tree,
        root: &Node,
        begun: Moment,
        is_new: &dyn Fn(&TreePath, &OsStr) -> bool,
    ) -> io::Result<Option<Conflict>> {
        Replaced { live, read: self, begun, is_new }.find(root)
    }

    /// Directories that were opened, and may not be what or where they were.
    fn doubtful_directories(&self) -> Vec<&TreePath> {
        if self.listed.is_empty() {
            return Vec::new();
        }
        let settled = self.looked.iter().filter(|one| one.directory && one.settled);
        let settled: HashSet<&TreePath> = settled.map(|one| &one.path).collect();
        self.listed.iter().filter(|path| !settled.contains(path)).collect()
    }

    /// The same where it was too long ago that the kernel has said what is settled.
    pub(crate) fn doubted(mut self) -> Self {
        self.looked.iter_mut().for_each(|one| one.settled = false);
        self
    }
}

/// Why there is no read set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadSetError {
    /// The kernel does not grant what it takes.
    #[error("this kernel does not tell what was read: {0}")]
    Refused(String),
    /// The kernel would tell, and this time it could not be heard: that says nothing of what was read.
    #[error("what the transaction read cannot be told: {0}")]
    Untold(String),
    /// The kernel needed the memory that the names were kept in.
    #[error("the kernel has dropped a part of what the transaction read, for the lack of memory")]
    Forgotten,
}

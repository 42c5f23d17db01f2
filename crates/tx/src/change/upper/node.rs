//! The names that a transaction changed, and how.

use super::aspect::Aspect;
use crate::change::split_attribution::ByOthers;
use crate::tree::attributes::Moment;
use crate::tree::identity::Identity;
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use serde::{Deserialize, Serialize};

/// A name that the transaction changed, or a directory with such names in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Where it is now, in the transaction's view, and will be after the commit.
    pub path: TreePath,
    /// The inode of its object in the upper directory.
    pub ino: u64,
    /// What the live tree has in its place. In a directory that was moved: in the place that it has in the live tree
    /// still.
    pub live: Option<LiveName>,
    /// Whether the overlay has left marks on it, which must not leave with it.
    pub marked: bool,
    /// What is at the name now.
    pub what: What,
}

/// A name of the live tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveName {
    /// The inode that it leads to.
    pub ino: u64,
    /// Whether that is a directory.
    pub directory: bool,
    /// When anything of it last changed.
    pub changed: Moment,
}

/// What is at a name now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Nothing: it was removed.
    Gone,
    /// A directory.
    Directory(Directory),
    /// Anything else.
    File(File),
}

/// A directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    /// Which one of the live tree it is.
    pub source: DirectorySource,
    /// What that is found by, if it is one and not the root.
    pub identity: Option<Identity>,
    /// Whether owner, mode, time, extended attributes or protection are other than the source's. Always for a new one.
    pub attributes_differ: bool,
    /// Whether owner, mode or extended attributes are other than the source's, and somebody else has changed something
    /// of the source since the beginning: whose they are cannot be told.
    pub attributes_clash: bool,
    /// What the source was like when this was told from it, where others who change that meanwhile are in conflict.
    pub before: Option<Aspect>,
    /// How it is to be protected, where it is or was.
    pub protection: Option<Protection>,
    /// Its time of change, which the commit's own work on the upper directory would lose; where others have changed the
    /// source too, the later one.
    pub modified: Moment,
    /// Whether nothing else of it is committed than what changed in it, and the time of that.
    pub names_alone: bool,
    /// Whether all that changed in it is committed.
    pub is_whole: bool,
    /// The names in it that changed.
    pub children: Vec<Node>,
}

/// Where a directory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DirectorySource {
    /// It was made by the transaction.
    New,
    /// The live tree's directory at the same place.
    SamePlace,
    /// The live tree's directory that is at another place there.
    Moved {
        /// Its place in the live tree.
        from: TreePath,
        /// Its inode there.
        ino: u64,
    },
}

/// A file that is no directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    /// The live tree's file that it is. None if the transaction made it, or if it changed a program that is being run
    /// outside: that one must not be written to, so that the commit puts a new file in its place.
    pub origin: Option<Origin>,
    /// Whether it may have another content than its origin.
    pub content_differs: bool,
    /// Whether owner, mode, time, extended attributes or protection are other than the origin's.
    pub attributes_differ: bool,
    /// What others have changed of the origin meanwhile that the commit has to leave alone.
    pub theirs: Option<ByOthers>,
    /// How it is to be protected, where it is or was.
    pub protection: Option<Protection>,
    /// Whether it has several names in the upper directory.
    pub linked: bool,
    /// The size of its content in bytes.
    pub size: u64,
    /// Its kind, as a letter of ls(1): `-` for a regular file.
    pub kind: char,
}

/// A file of the live tree, whatever its names there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The number of its inode.
    pub ino: u64,
    /// With which it is found again.
    pub identity: Identity,
    /// When anything of it last changed.
    pub changed: Moment,
}

/// A file with several names that was changed by one that the transaction then removed: its other names are not in the
/// upper directory, and only the overlay's index knows the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Indexed {
    /// Its place in the work directory.
    pub path: TreePath,
    /// What changed. It has an origin.
    pub file: File,
}

impl Node {
    /// Whether the overlay has left marks on it or on anything in it.
    pub(crate) fn is_marked(&self) -> bool {
        let below = match &self.what {
            What::Directory(directory) => directory.children.iter().any(Self::is_marked),
            What::Gone | What::File(_) => false,
        };
        self.marked || below
    }

    /// Whether nothing in it comes from the live tree and nothing of the live tree is in its way: then one rename
    /// commits it.
    pub(crate) fn is_wholly_new(&self) -> bool {
        match &self.what {
            What::Gone => false,
            What::File(file) => file.origin.is_none() && self.live.is_none(),
            What::Directory(directory) => {
                directory.source == DirectorySource::New
                    && self.live.is_none()
                    && directory.is_whole
                    && directory.children.iter().all(Self::is_wholly_new)
            }
        }
    }
}

#[cfg(test)]
impl Directory {
    /// One of which nothing but its names changed.
    pub(crate) fn holding(source: DirectorySource, children: Vec<Node>) -> Self {
        Self {
            source,
            identity: None,
            attributes_differ: false,
            attributes_clash: false,
            before: None,
            protection: None,
            modified: Moment::EPOCH,
            names_alone: false,
            is_whole: true,
            children,
        }
    }
}

#[cfg(test)]
impl File {
    /// An empty one that the transaction made.
    pub(crate) fn made() -> Self {
        Self {
            origin: None,
            content_differs: true,
            attributes_differ: true,
            theirs: None,
            protection: None,
            linked: false,
            size: 0,
            kind: '-',
        }
    }
}

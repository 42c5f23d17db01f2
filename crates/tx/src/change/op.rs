//! The operations that a commit consists of.
//!
//! Each can be done any number of times, and done again from the first one on: it names what it expects to find, by inode, and where it finds
//! something else it was done before. That is safe because no inode that an operation names can be freed, and its number used again, before the
//! journal is gone: what is removed goes into a trash directory, what is moved waits in a stage directory, and both live until then.

use crate::attributes::{Moment, Which};
use crate::protection::Protection;
use crate::tree_path::TreePath;
use crate::upper::Origin;
use serde::{Deserialize, Serialize};

/// The operations on one tree, in the order in which they are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Steps {
    /// Puts aside what changes its place, before anything moves. Once all of it is done it must not be done again: what was put aside may by then
    /// stand at a place with the same name.
    pub stage: Vec<Op>,
    /// Names and contents, from the root down.
    pub change: Vec<Op>,
    /// Attributes, from the leaves up: a change in a directory changes the directory's time. Protection behind all of them.
    pub finish: Vec<Op>,
}

impl Steps {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.stage.is_empty() && self.change.is_empty() && self.finish.is_empty()
    }
}

/// Where new content or attributes come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// The upper directory.
    Upper(TreePath),
    /// The overlay's index.
    Index(TreePath),
}

/// A file of the live tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Target {
    /// By its name.
    Live(TreePath),
    /// The one that was put aside under a number.
    Staged(u32),
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    /// Takes a directory out of the live tree and puts it aside.
    StageDirectory {
        /// Where it is.
        from: TreePath,
        /// Its inode.
        ino: u64,
        /// The number to find it by.
        slot: u32,
    },
    /// Gives a live file one more name, aside.
    StageLink {
        /// The file.
        origin: Origin,
        /// The number to find it by.
        slot: u32,
    },
    /// Takes a name, with everything below it, out of the live tree.
    Remove {
        /// The name.
        at: TreePath,
        /// The inode that it must lead to.
        ino: u64,
        /// The number that it gets in the trash.
        slot: u32,
    },
    /// Puts what was put aside to its new place.
    Place {
        /// The number that it was put aside under.
        slot: u32,
        /// Its inode.
        ino: u64,
        /// The new place.
        at: TreePath,
        /// Whether it is a directory.
        directory: bool,
    },
    /// Makes an empty directory.
    MakeDirectory {
        /// Where.
        at: TreePath,
    },
    /// Moves a new object, with everything below it, from the upper directory to the live tree, in place of what is there.
    Move {
        /// Its place in both.
        at: TreePath,
        /// Its inode.
        ino: u64,
        /// Whether it is a directory.
        directory: bool,
        /// Whether the overlay has left marks on it, or on anything in it.
        marked: bool,
    },
    /// Brings new content into a live file, which stays the same file for those who have it open and for its other names.
    Update {
        /// Where the content is.
        source: Source,
        /// The file.
        target: Target,
        /// Its inode.
        ino: u64,
    },
    /// Protects an object: behind everything else, since it is in the way of that. One that was put aside is not needed there any more, and could not be removed.
    Protect {
        /// The object.
        target: Target,
        /// How.
        protection: Protection,
        /// The number that it was put aside under, if it was.
        slot: Option<u32>,
    },
    /// Gives a live object the attributes of one in the upper directory or in the index.
    Attributes {
        /// Where the attributes are.
        source: Source,
        /// The object.
        target: Target,
        /// The time of change to be set; for a directory, since by now it is lost on the source.
        modified: Option<Moment>,
        /// Which of them.
        which: Which,
    },
}

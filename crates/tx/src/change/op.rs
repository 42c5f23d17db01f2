//! The operations that a commit consists of.
//!
//! Each can be done any number of times, and done again from the first one on: it names what it expects to find, by
//! inode, and where it finds something else it was done before. That is safe because no inode that an operation names
//! can be freed, and its number used again, before the journal is gone: what is removed goes into a trash directory,
//! what is moved waits in a stage directory, and both live until then.

use crate::change::upper::Origin;
use crate::tree::attributes::{Moment, Which};
use crate::tree::identity::Identity;
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// The operations on one tree, in the order in which they are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Steps {
    /// Puts aside what changes its place, before anything moves. Once all of it is done it must not be done again: what
    /// was put aside may by then stand at a place with the same name.
    pub stage: Vec<Op>,
    /// Names and contents, from the root down.
    pub change: Vec<Op>,
    /// Attributes, from the leaves up: a change in a directory changes the directory's time. Protection behind all of
    /// them.
    pub finish: Vec<Op>,
}

impl Steps {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.stage.is_empty() && self.change.is_empty() && self.finish.is_empty()
    }

    /// The objects that get new content.
    pub(crate) fn updated(&self) -> HashSet<&OpTarget> {
        let updates = self.change.iter().filter_map(|op| match op {
            Op::Update { target, .. } => Some(target),
            _ => None,
        });
        updates.collect()
    }

    /// Has the directories that were made aside be known, by their places to be.
    pub(crate) fn identify(&mut self, made: &HashMap<TreePath, Identity>) {
        for op in &mut self.finish {
            let (Op::Attributes { target, .. } | Op::Protect { target, .. }) = op else { continue };
            if let OpTarget::Brought { at, ino: None } = target
                && let Some(identity) = made.get(at)
            {
                *target = OpTarget::Known { identity: identity.clone(), at: at.clone() };
            }
        }
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

/// What a rename takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replaced {
    /// The number of its inode.
    pub ino: u64,
    /// When anything of it last changed.
    pub changed: Moment,
}

/// An object of the live tree whose content, attributes or protection change.
///
/// From the commit point on, and before a recovery for as long as that takes, others may have put something else at its
/// name. What they put there must not get what was meant for it: who can write to a directory would have root's
/// program, set-user-id too, be his own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum OpTarget {
    /// The root.
    Root,
    /// One that was there before. It is changed wherever it is by now, and no other is; where others have removed it
    /// since, nothing is.
    Known {
        /// What it is found by.
        identity: Identity,
        /// Its name, for people.
        at: TreePath,
    },
    /// One that an earlier operation brings to its place. What others have put in its place since is left alone.
    Brought {
        /// Its place.
        at: TreePath,
        /// Its inode. None if it is a directory that is made only when the commit is
        /// [prepared](crate::journal::prepare), or in a target, where nobody else runs.
        ino: Option<u64>,
    },
    /// The one that was put aside under a number.
    Staged(u32),
}

impl OpTarget {
    /// Its name in the live tree, if one is known. The root has none.
    pub(crate) fn place(&self) -> Option<&TreePath> {
        match self {
            Self::Known { at, .. } | Self::Brought { at, .. } => Some(at),
            Self::Root | Self::Staged(_) => None,
        }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    /// Takes a directory out of the live tree and puts it aside.
    StageDirectory {
        /// Where it is.
        from: TreePath,
        /// The number of its inode.
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
        /// When anything of that last changed. What was made later is another one, if it has the same number.
        changed: Moment,
        /// The number that it gets in the trash.
        slot: u32,
    },
    /// Puts what was put aside to its new place.
    Place {
        /// The number that it was put aside under.
        slot: u32,
        /// The number of its inode.
        ino: u64,
        /// The new place.
        at: TreePath,
        /// Whether it is a directory.
        directory: bool,
        /// What is at the new place until then, if anything is.
        over: Option<Replaced>,
    },
    /// Makes an empty directory: one that was made aside when the commit was prepared gets its place, so that it is
    /// known which one it is. In a target, where nobody else runs, it is made now.
    MakeDirectory {
        /// Where.
        at: TreePath,
        /// The number that it was put aside under.
        slot: u32,
    },
    /// Moves a new object, with everything below it, from the upper directory to the live tree, in place of what is
    /// there.
    Move {
        /// Its place in both.
        at: TreePath,
        /// The number of its inode.
        ino: u64,
        /// Whether it is a directory.
        directory: bool,
        /// Whether the overlay has left marks on it, or on anything in it.
        marked: bool,
        /// What is at the place until then, if anything is.
        over: Option<Replaced>,
    },
    /// Brings new content into a live file, which stays the same file for those who have it open and for its other
    /// names.
    Update {
        /// Where the content is.
        source: Source,
        /// The file.
        target: OpTarget,
        /// The number of its inode.
        ino: u64,
    },
    /// Protects an object: behind everything else, since it is in the way of that. One that was put aside is not needed
    /// there any more, and could not be removed.
    Protect {
        /// The object.
        target: OpTarget,
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
        target: OpTarget,
        /// The time of change to be set; for a directory, since by now it is lost on the source.
        modified: Option<Moment>,
        /// Which of them.
        which: Which,
    },
    /// Takes away what a live object allows and its attributes to be do not, before anything is changed. What comes
    /// would otherwise, until its attributes come too, be read, changed or executed by whom neither state lets.
    Restrict {
        /// Where the attributes to be are.
        source: Source,
        /// The object.
        target: OpTarget,
        /// Whether its content changes: then it is no set-user-id program meanwhile.
        content: bool,
    },
}

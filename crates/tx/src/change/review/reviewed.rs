//! One path of a review.

use super::look::Look;
use crate::change::Sign;
use crate::tree::identity::Identity;
use crate::tree::path::TreePath;
use serde::{Deserialize, Serialize};

/// A path that a commit changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reviewed {
    /// Whether it comes, goes or changes.
    pub sign: Sign,
    /// Which, below the root of its mount.
    pub path: TreePath,
    /// What is there before; of what comes from another name, what that is like before.
    pub old: Option<Look>,
    /// What is there after the commit, if anything is.
    pub new: Option<Look>,
    /// Whether it is a regular file whose content may differ: what a diff of text can show.
    pub content: bool,
    /// Whether it is another object afterwards: other names of the old one, and whoever has it open, keep what that
    /// has.
    pub replaced: bool,
    /// Whether the time of its change was set, and not merely comes of what was changed.
    pub is_time_set: bool,
    /// The name that it had before, where it is renamed.
    pub moved_from: Option<TreePath>,
    /// The name that it has afterwards, where it is renamed.
    pub moved_to: Option<TreePath>,
    /// Another name of it, where it gets one more.
    pub linked_to: Option<TreePath>,
    /// Whether it is changed by other names that it has: this one, by which the transaction did that, goes.
    pub by_other_names: bool,
    /// How many names lie below a directory that goes, up to 100,000.
    pub below: usize,
    /// Bytes that are written for it.
    pub bytes: u64,
    /// What its content is compared with.
    pub(super) before: Option<Before>,
    /// Its place in the overlay's index, where that alone has it.
    pub(super) index: Option<TreePath>,
    /// What tells the object from others in the live tree, where it is one of those.
    pub(super) ident: Option<u64>,
}

/// Where the content of a path is before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Before {
    /// At a place of the live tree.
    At(TreePath),
    /// In the file with this identity.
    Known(Identity),
}

impl Reviewed {
    pub(super) fn new(sign: Sign, path: &TreePath) -> Self {
        Self {
            sign,
            path: path.clone(),
            old: None,
            new: None,
            content: false,
            replaced: false,
            is_time_set: false,
            moved_from: None,
            moved_to: None,
            linked_to: None,
            by_other_names: false,
            below: 0,
            bytes: 0,
            before: None,
            index: None,
            ident: None,
        }
    }

    /// Its place in the overlay's index, where that alone has what it is like afterwards.
    pub(crate) fn in_index(&self) -> Option<&TreePath> {
        self.index.as_ref()
    }

    /// Whether it is a directory, or was one.
    pub fn is_directory(&self) -> bool {
        self.new.as_ref().or(self.old.as_ref()).is_some_and(Look::is_directory)
    }
}

//! How far a commit reaches on one part: all that others must not open, read or list while it is applied.
//!
//! Whoever has seen something new must not see anything old after it. So all that is new is held up, and all of what
//! was there that changes in place or is reached by another name. An old object that a name only leads away from need
//! not be: whoever opens it by that name has seen nothing new.

use crate::change::{Op, OpTarget, Steps};
use crate::tree::identity::Identity;
use crate::tree::path::TreePath;
use std::collections::{BTreeSet, HashSet};

/// It.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// Whether the root's attributes change.
    pub root: bool,
    /// Objects that change in place, or get another name.
    pub objects: HashSet<Identity>,
    /// Directories in which names come and go, by the places that they have before. What has none yet is new itself.
    pub directories: BTreeSet<TreePath>,
    /// Directories that move, with everything below them, by the places that they have before.
    pub trees: BTreeSet<TreePath>,
    /// What is moved into place, by its place in the upper directory.
    pub new: BTreeSet<TreePath>,
    /// Directories that were made aside, by the numbers that they have there.
    pub made: BTreeSet<u32>,
}

impl Extent {
    /// That of a commit's steps.
    pub(super) fn of(steps: &Steps) -> Self {
        let mut extent = Self::default();
        for op in steps.stage.iter().chain(&steps.change).chain(&steps.finish) {
            extent.add(op);
        }
        extent
    }

    fn add(&mut self, op: &Op) {
        match op {
            Op::StageDirectory { from, .. } => {
                self.name(from);
                self.trees.insert(from.clone());
            }
            Op::StageLink { origin, .. } => {
                self.objects.insert(origin.identity.clone());
            }
            Op::Remove { at, .. } | Op::Place { at, .. } => self.name(at),
            Op::MakeDirectory { at, slot } => {
                self.name(at);
                self.made.insert(*slot);
            }
            Op::Move { at, .. } => {
                self.name(at);
                self.new.insert(at.clone());
            }
            Op::Update { target, .. }
            | Op::Attributes { target, .. }
            | Op::Protect { target, .. }
            | Op::Restrict { target, .. } => self.object(target),
        }
    }

    /// A name that comes, changes or goes.
    fn name(&mut self, at: &TreePath) {
        self.directories.extend(at.split().map(|(directory, _)| directory));
    }

    fn object(&mut self, target: &OpTarget) {
        match target {
            OpTarget::Root => self.root = true,
            OpTarget::Known { identity, .. } => {
                self.objects.insert(identity.clone());
            }
            // What is brought or was put aside is so by an operation of its own.
            OpTarget::Brought { .. } | OpTarget::Staged(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::attributes::Moment;

    #[test]
    fn names_stand_for_their_directories_and_what_is_new_for_itself() {
        let path = |text: &str| TreePath::new(text.as_bytes()).unwrap();
        let (marked, over) = (false, None);
        let steps = Steps {
            stage: vec![Op::StageDirectory { from: path("a/b"), ino: 7, slot: 0 }],
            change: vec![
                Op::Remove { at: path("gone"), ino: 8, changed: Moment::EPOCH, slot: 1 },
                Op::Place { slot: 0, ino: 7, at: path("c/d"), directory: true, over },
                Op::MakeDirectory { at: path("c/e"), slot: 2 },
                Op::Move { at: path("c/e/f"), ino: 9, directory: false, marked, over },
            ],
            finish: vec![Op::Protect {
                target: OpTarget::Root,
                protection: crate::tree::protection::Protection::default(),
                slot: None,
            }],
        };
        let extent = Extent::of(&steps);
        assert_eq!(extent.directories, [TreePath::ROOT, path("a"), path("c"), path("c/e")].into());
        assert_eq!((extent.trees, extent.new), ([path("a/b")].into(), [path("c/e/f")].into()));
        assert!(extent.root && extent.made == [2].into() && extent.objects.is_empty());
        assert_eq!(Extent::of(&Steps::default()), Extent::default());
    }
}

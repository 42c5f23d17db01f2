//! What a commit keeps so that it can be undone: what its paths are like afterwards, and what was there before.
//!
//! What is removed or replaced is moved aside instead of deleted, and what is written over in place is copied before,
//! shared where the file system can. What only comes is not kept: it is in the live tree.

use crate::change::listing::Listing;
use crate::change::review::Reviewed;
use crate::change::{Op, Steps};
use crate::state::name::TxName;
use crate::tree::attributes::{Attributes, Moment};
use crate::tree::content::Digest;
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Who has made a commit, and what for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The name of the transaction.
    pub name: TxName,
    /// What ran in it; empty for one that was entered.
    pub command: Vec<String>,
    /// The time of its commit, by the file systems' clock.
    pub when: Moment,
    /// The user who has logged in, as far as the kernel knows one, or whose process it was.
    pub uid: u32,
    /// The commit that it undoes, if it is an undo.
    pub undoes: Option<u64>,
}

/// All that is kept of a commit, but for what was moved aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// The user who has made it, and when.
    pub about: About,
    /// How many bytes of the disk it takes to keep it.
    pub bytes: u64,
    /// One for each part of the journal.
    pub parts: Vec<PartKept>,
}

/// What is kept of a commit on one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartKept {
    /// Each path that it changes, before and after.
    pub entries: Vec<Reviewed>,
    /// A digest of the content that each of these has afterwards, where it has a new one and that is not too large.
    pub contents: Vec<Option<Digest>>,
    /// What the object of each of the last operations was like before, where there was one.
    pub before: Vec<Option<ObjectBefore>>,
    /// What lies in directories that it removes. Of what is copied nothing is listed: nobody reaches the copies.
    pub listing: Option<Listing>,
}

/// What an object was like before, but for its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectBefore {
    pub attributes: Attributes,
    pub protection: Protection,
    pub content: ContentLeft,
}

/// With which content an object gets back the rights that a commit has taken from it.
///
/// A file that the commit gave to somebody was his to write to since, and its size and times his to set. With his
/// content it must not be root's program again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ContentLeft {
    /// It gets no other rights, or its content is put back as well.
    Any,
    /// This one alone.
    Only(Digest),
    /// It is not known: it was too large to be read, or an earlier version of Pando has kept it.
    Unknown,
}

/// What an earlier version kept: checksums of contents, which anybody can have another content bear.
pub(crate) mod with_checksums {
    use super::{About, ContentLeft};
    use crate::change::review::Reviewed;
    use crate::tree::attributes::Attributes;
    use crate::tree::protection::Protection;
    use serde::{Deserialize, Serialize};

    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct Kept {
        pub about: About,
        pub bytes: u64,
        pub parts: Vec<PartKept>,
    }

    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct PartKept {
        pub entries: Vec<Reviewed>,
        pub contents: Vec<Option<u32>>,
        pub before: Vec<Option<ObjectBefore>>,
    }

    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct ObjectBefore {
        pub attributes: Attributes,
        pub protection: Protection,
    }

    impl From<Kept> for super::Kept {
        fn from(Kept { about, bytes, parts }: Kept) -> Self {
            Self { about, bytes, parts: parts.into_iter().map(super::PartKept::from).collect() }
        }
    }

    impl From<PartKept> for super::PartKept {
        fn from(PartKept { entries, contents, before }: PartKept) -> Self {
            let before = before.into_iter().map(|before| before.map(super::ObjectBefore::from));
            Self { entries, contents: vec![None; contents.len()], before: before.collect(), listing: None }
        }
    }

    impl From<ObjectBefore> for super::ObjectBefore {
        fn from(ObjectBefore { attributes, protection }: ObjectBefore) -> Self {
            let content = if attributes.are_of_file() { ContentLeft::Unknown } else { ContentLeft::Any };
            Self { attributes, protection, content }
        }
    }
}

/// Which place before the commit a place after it is.
#[derive(Debug, Default)]
pub(crate) struct MovedPlaces(Vec<(TreePath, TreePath)>);

impl MovedPlaces {
    /// Those of directories that some operations move.
    pub(crate) fn of(steps: &Steps) -> Self {
        let from = steps.stage.iter().filter_map(|op| match op {
            Op::StageDirectory { from, slot, .. } => Some((*slot, from)),
            _ => None,
        });
        let from: HashMap<u32, &TreePath> = from.collect();
        let moved = steps.change.iter().filter_map(|op| match op {
            Op::Place { slot, at, directory: true, .. } => Some((at.clone(), (*from.get(slot)?).clone())),
            _ => None,
        });
        Self(moved.collect())
    }

    /// Where the object that is at a path afterwards was before.
    pub(crate) fn before(&self, path: &TreePath) -> TreePath {
        let around = self.0.iter().filter(|(at, _)| path.is_within(at));
        let Some((at, from)) = around.max_by_key(|(at, _)| at.as_bytes().len()) else { return path.clone() };
        path.parts().skip(at.depth()).fold(from.clone(), |place, name| place.join(name))
    }

    /// Where something else was before that was at a path: the directory may have moved, and not what was there.
    pub(crate) fn name_before(&self, path: &TreePath) -> TreePath {
        path.split().map_or(TreePath::ROOT, |(parent, name)| self.before(&parent).join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_directory_that_moves_was_elsewhere_before() {
        let path = |text: &str| TreePath::new(text.as_bytes()).unwrap();
        let stage = |from: &str, slot| Op::StageDirectory { from: path(from), ino: 1, slot };
        let place = |slot, at: &str| Op::Place { slot, ino: 1, at: path(at), directory: true, over: None };
        let steps = Steps {
            stage: vec![stage("a/deep", 0), stage("a", 1)],
            change: vec![place(1, "b"), place(0, "b/x")],
            finish: Vec::new(),
        };
        let places = MovedPlaces::of(&steps);
        let cases = [("b", "a"), ("b/y", "a/y"), ("b/x", "a/deep"), ("b/x/z", "a/deep/z"), ("bb", "bb"), ("", "")];
        for (after, before) in cases {
            assert_eq!(places.before(&path(after)), path(before), "{after}");
        }
        assert_eq!((places.name_before(&path("b")), places.name_before(&path("b/x"))), (path("b"), path("a/x")));
    }
}

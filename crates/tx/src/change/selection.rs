//! Which part of a transaction its commit is about.
//!
//! Paths are those of the view. What was *read* below an ignored path is not validated. What is not *selected* is
//! neither committed nor validated: a transaction that is in conflict with others can be committed without what is.

use crate::state::overlay_part::OverlayPart;
use crate::tree::path::TreePath;
use crate::validate::read_set::ReadSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a commit leaves out. The default leaves out nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// What was read there and below is not validated.
    pub ignored: Vec<PathBuf>,
    /// Only what is there and below is committed; everything, where there is none.
    pub included: Vec<PathBuf>,
    /// Nothing that is there or below is committed.
    pub excluded: Vec<PathBuf>,
}

impl Selection {
    /// The same with more paths that are ignored.
    pub(crate) fn ignoring(mut self, more: &[PathBuf]) -> Self {
        self.ignored.extend_from_slice(more);
        self
    }

    /// What it comes to on one part.
    pub(crate) fn on(&self, part: &OverlayPart) -> PartSelection {
        let all = |paths: &[PathBuf]| paths.iter().filter_map(|path| on_part(path, part)).collect();
        let included = (!self.included.is_empty()).then(|| all(&self.included));
        PartSelection { ignored: all(&self.ignored), included, excluded: all(&self.excluded) }
    }

    /// Takes what is not to be validated from what was read.
    pub(crate) fn reduce(&self, read: Vec<(OverlayPart, ReadSet)>) -> Vec<(OverlayPart, ReadSet)> {
        if *self == Self::default() {
            return read;
        }
        let reduced = read.into_iter().map(|(part, mut set)| {
            let on_part = self.on(&part);
            set.looked.retain(|one| on_part.is_validated(&one.path));
            set.listed.retain(|path| on_part.is_validated(path));
            (part, set)
        });
        reduced.collect()
    }
}

/// Where a path lies on a part: at its root, if the whole part lies below the path.
pub(crate) fn on_part(path: &Path, part: &OverlayPart) -> Option<TreePath> {
    if part.live.starts_with(path) {
        return Some(TreePath::ROOT);
    }
    TreePath::new(path.strip_prefix(&part.live).ok()?.as_os_str().as_bytes())
}

/// A selection on one part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartSelection {
    ignored: Vec<TreePath>,
    included: Option<Vec<TreePath>>,
    pub(crate) excluded: Vec<TreePath>,
}

impl PartSelection {
    /// Whether what is changed at a path is committed.
    pub(crate) fn has(&self, path: &TreePath) -> bool {
        let is_among = |paths: &[TreePath]| paths.iter().any(|one| path.is_within(one));
        self.included.as_deref().is_none_or(is_among) && !is_among(&self.excluded)
    }

    /// Whether what is read at a path is validated.
    fn is_validated(&self, path: &TreePath) -> bool {
        self.has(path) && !self.ignored.iter().any(|one| path.is_within(one))
    }

    /// Whether everything is committed.
    pub(crate) fn is_whole(&self) -> bool {
        self.included.is_none() && self.excluded.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_of_the_part_that_it_lies_on() {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let selection = Selection {
            ignored: paths(&["/srv/log"]),
            included: paths(&["/srv", "/etc/hosts"]),
            excluded: paths(&["/srv/data/cache"]),
        };
        let on = |live: &str| selection.on(&OverlayPart::new(live.into(), "/nowhere".into()));
        let path = |text: &str| TreePath::new(text.as_bytes()).unwrap();
        let (root, data, other) = (on("/"), on("/srv/data"), on("/home"));
        assert!(root.has(&path("srv/x")) && root.has(&path("etc/hosts")) && !root.has(&path("etc/hosts.allow")));
        assert!(root.is_validated(&path("srv/x")) && !root.is_validated(&path("srv/log/a")));
        assert!(data.has(&path("x")) && !data.has(&path("cache")) && !data.has(&path("cache/deep")));
        assert!(!other.has(&TreePath::ROOT) && !other.has(&path("x")), "it lies elsewhere");
        assert!(Selection::default().on(&OverlayPart::new("/".into(), "/x".into())).is_whole());
    }
}

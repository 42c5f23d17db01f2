//! Whether a commit changes what another one, which is not in place yet, is to change: then that would undo it later.

use crate::change::{Op, OpTarget, Steps};
use crate::journal::file::Journal;
use crate::state::overlay_part::OverlayPart;
use crate::tree::identity::Identity;
use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// What a commit changes on the host.
pub(crate) struct Touched<'a> {
    /// Names that come, go or lead elsewhere, with all below them.
    names: BTreeSet<PathBuf>,
    /// Objects whose content or attributes change, by the mount that they are on, and a name of each.
    objects: HashSet<(&'a Path, &'a Identity)>,
}

impl<'a> Touched<'a> {
    pub(crate) fn by(journal: &'a Journal) -> Self {
        let mut touched = Self { names: BTreeSet::new(), objects: HashSet::new() };
        journal.parts.iter().for_each(|(part, steps)| touched.add(part, steps));
        touched
    }

    fn add(&mut self, part: &'a OverlayPart, steps: &'a Steps) {
        for op in steps.stage.iter().chain(&steps.change).chain(&steps.finish) {
            match op {
                Op::StageDirectory { from: at, .. }
                | Op::Remove { at, .. }
                | Op::Place { at, .. }
                | Op::MakeDirectory { at, .. }
                | Op::Move { at, .. } => drop(self.names.insert(part.live.join(at.as_path()))),
                Op::StageLink { origin, .. } => drop(self.objects.insert((&part.live, &origin.identity))),
                // A directory's, with a time of their own: many change that of one, by the names in it. What is taken
                // away ahead is told by what comes, too.
                Op::Attributes { modified: Some(_), .. } | Op::Restrict { .. } => {}
                Op::Attributes { target, .. } | Op::Update { target, .. } | Op::Protect { target, .. } => {
                    if let OpTarget::Known { identity, .. } = target {
                        self.objects.insert((&part.live, identity));
                    }
                }
            }
        }
    }

    /// What both change, if there is anything.
    pub(crate) fn meets(&self, other: &Self) -> Option<PathBuf> {
        let is_touched = |name: &PathBuf| {
            let below = other.names.range::<Path, _>((Bound::Included(name.as_path()), Bound::Unbounded)).next();
            below.is_some_and(|below| below.starts_with(name))
                || name.ancestors().any(|above| other.names.contains(above))
        };
        let object = || self.objects.intersection(&other.objects).next().map(|(live, _)| live.to_path_buf());
        self.names.iter().find(|name| is_touched(name)).cloned().or_else(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::path::TreePath;

    fn journal(names: &[&str]) -> Journal {
        let make = |(slot, at): (u32, &&str)| Op::MakeDirectory { at: TreePath::new(at.as_bytes()).unwrap(), slot };
        let steps = Steps { change: (0..).zip(names).map(make).collect(), ..Steps::default() };
        let part = OverlayPart::new("/".into(), "/base".into());
        Journal { durable: true, parts: vec![(part, steps)], kept: None, privileged: Vec::new() }
    }

    #[test]
    fn names_meet_that_are_the_same_or_lie_in_each_other() {
        let one = journal(&["home/a/b", "srv/c"]);
        let meets = |names: &[&str]| Touched::by(&journal(names)).meets(&Touched::by(&one));
        assert_eq!(meets(&["home/a/c", "home/a/bb", "srv/cc/c", "b"]), None);
        for name in ["home/a/b", "home/a", "home/a/b/c", "srv/c"] {
            assert_eq!(meets(&["home/a/a", name]), Some(Path::new("/").join(name)), "{name}");
        }
    }
}

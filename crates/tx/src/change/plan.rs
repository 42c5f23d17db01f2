//! From what a transaction did to the operations that do it to the live tree.

use super::op::{Op, OpTarget, Replaced, Source, Steps};
use crate::change::split_attribution::ByOthers;
use crate::change::upper::{Directory, DirectorySource, File, Indexed, LiveName, Node, Origin, What};
use crate::tree::attributes::Which;
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use std::collections::{HashMap, HashSet};

/// Plans the commit of a tree whose root's node is `root`.
pub(crate) fn plan(root: &Node, indexed: &[Indexed]) -> Steps {
    let mut planner = Planner::default();
    if let What::Directory(directory) = &root.what {
        planner.restrict_directory(&root.path, directory, &OpTarget::Root);
        planner.children(&root.path, directory);
        if planner.has_changed_names(0, &root.path) || directory.attributes_differ {
            planner.directory_attributes(&root.path, directory, OpTarget::Root);
        }
        planner.protect(OpTarget::Root, directory.protection, None);
    }
    for file in indexed {
        planner.indexed(file);
    }
    planner.steps()
}

#[derive(Debug, Default)]
struct Planner {
    links: Vec<Op>,
    moves: Vec<(usize, Op)>,
    restrict: Vec<Op>,
    change: Vec<Op>,
    finish: Vec<Op>,
    /// What is to be protected, and its inode if it is a file that was there before.
    protected: Vec<(OpTarget, Protection, Option<u64>)>,
    /// Slots of files that have one, by inode.
    staged: HashMap<u64, u32>,
    /// Inodes of live files that some name in the upper directory stands for.
    seen: HashSet<u64>,
    next_slot: u32,
}

impl Planner {
    fn steps(mut self) -> Steps {
        // Links first, since their files may lie in directories that move; then the deepest directory first, since
        // taking a directory away takes those in it along.
        self.moves.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
        let mut stage = self.links;
        stage.extend(self.moves.into_iter().map(|(_, op)| op));
        let mut finish = self.finish;
        finish.extend(self.protected.into_iter().map(|(target, protection, ino)| {
            let slot = ino.and_then(|ino| self.staged.get(&ino).copied());
            Op::Protect { target, protection, slot }
        }));
        let mut change = self.restrict;
        change.append(&mut self.change);
        Steps { stage, change, finish }
    }

    fn slot(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot - 1
    }

    /// Whether names come or go in this very directory, by the operations since there were `before`. The time of any
    /// other is left alone: others may change it meanwhile.
    fn has_changed_names(&self, before: usize, directory: &TreePath) -> bool {
        let start = directory.as_bytes().len() + usize::from(!directory.as_bytes().is_empty());
        let is_in_it = |at: &TreePath| at.as_bytes().get(start..).is_some_and(|name| !name.contains(&b'/'));
        let place = |op: &Op| match op {
            Op::Remove { at, .. } | Op::Place { at, .. } | Op::MakeDirectory { at, .. } | Op::Move { at, .. } => {
                is_in_it(at)
            }
            Op::Update { .. }
            | Op::Attributes { .. }
            | Op::Protect { .. }
            | Op::Restrict { .. }
            | Op::StageDirectory { .. }
            | Op::StageLink { .. } => false,
        };
        self.change[before..].iter().any(place)
    }

    fn children(&mut self, parent: &TreePath, directory: &Directory) {
        debug_assert!(directory.children.iter().all(|child| child.path.is_within(parent)));
        // What is removed goes first: a name that comes may need the place of one that goes.
        for child in directory.children.iter().filter(|child| child.what == What::Gone) {
            self.remove(child, false);
        }
        for child in &directory.children {
            match &child.what {
                What::Gone => {}
                What::Directory(directory) => self.directory(child, directory),
                What::File(file) => self.file(child, file),
            }
        }
    }

    /// Takes away what the live tree has at a node's name; only a directory, if a rename can replace anything else by
    /// itself.
    fn remove(&mut self, node: &Node, directories_only: bool) {
        if let Some(LiveName { ino, directory, changed }) = node.live
            && (directory || !directories_only)
        {
            let slot = self.slot();
            self.change.push(Op::Remove { at: node.path.clone(), ino, changed, slot });
        }
    }

    /// Moves what is new, with everything in it.
    fn bring(&mut self, node: &Node, directory: bool) {
        let (at, marked, over) = (node.path.clone(), node.is_marked(), replaced(node));
        self.change.push(Op::Move { at, ino: node.ino, directory, marked, over });
    }

    /// Protects an object, or not any more, where it has a word to say on that.
    fn protect(&mut self, target: OpTarget, protection: Option<Protection>, ino: Option<u64>) {
        self.protected.extend(protection.map(|protection| (target, protection, ino)));
    }

    /// Protects what is to be of all that came by one rename.
    fn protect_all(&mut self, node: &Node) {
        let protection = match &node.what {
            What::Gone => None,
            What::File(file) => file.protection,
            What::Directory(directory) => {
                directory.children.iter().for_each(|child| self.protect_all(child));
                directory.protection
            }
        };
        self.protect(OpTarget::Brought { at: node.path.clone(), ino: Some(node.ino) }, protection, None);
    }

    fn directory(&mut self, node: &Node, directory: &Directory) {
        let at = node.path.clone();
        let target = match (&directory.source, &directory.identity) {
            (DirectorySource::New, _) => OpTarget::Brought { at, ino: None },
            (_, Some(identity)) => OpTarget::Known { identity: identity.clone(), at },
            (DirectorySource::Moved { ino, .. }, None) => OpTarget::Brought { at, ino: Some(*ino) },
            (DirectorySource::SamePlace, None) => {
                OpTarget::Brought { at, ino: node.live.as_ref().map(|live| live.ino) }
            }
        };
        match &directory.source {
            DirectorySource::New => {
                self.remove(node, false);
                if directory.is_whole && directory.children.iter().all(Node::is_wholly_new) {
                    self.bring(node, true);
                    return self.protect_all(node);
                }
                let slot = self.slot();
                self.change.push(Op::MakeDirectory { at: node.path.clone(), slot });
                self.children(&node.path, directory);
                self.directory_attributes(&node.path, directory, target.clone());
            }
            DirectorySource::Moved { from, ino } => {
                let slot = self.slot();
                self.moves.push((from.depth(), Op::StageDirectory { from: from.clone(), ino: *ino, slot }));
                self.restrict_directory(&node.path, directory, &target);
                self.remove(node, false);
                self.change.push(Op::Place { slot, ino: *ino, at: node.path.clone(), directory: true, over: None });
                self.children(&node.path, directory);
                self.directory_attributes(&node.path, directory, target.clone());
            }
            DirectorySource::SamePlace => {
                self.restrict_directory(&node.path, directory, &target);
                let before = self.change.len();
                self.children(&node.path, directory);
                if self.has_changed_names(before, &node.path) || directory.attributes_differ {
                    self.directory_attributes(&node.path, directory, target.clone());
                }
            }
        }
        self.protect(target, directory.protection, None);
    }

    /// Takes away from a directory that was there what it is not to allow any more.
    fn restrict_directory(&mut self, path: &TreePath, directory: &Directory, target: &OpTarget) {
        if directory.attributes_differ && !directory.names_alone {
            let (source, target) = (Source::Upper(path.clone()), target.clone());
            self.restrict.push(Op::Restrict { source, target, content: false });
        }
    }

    fn directory_attributes(&mut self, path: &TreePath, directory: &Directory, target: OpTarget) {
        self.finish.push(Op::Attributes {
            source: Source::Upper(path.clone()),
            target,
            modified: Some(directory.modified),
            which: if directory.names_alone { Which::TimeAlone } else { Which::All },
        });
    }

    fn file(&mut self, node: &Node, file: &File) {
        let Some(origin) = &file.origin else {
            self.remove(node, true);
            self.bring(node, false);
            self.protect_all(node);
            return;
        };
        self.seen.insert(origin.ino);
        if node.live.as_ref().is_none_or(|live| live.ino != origin.ino) {
            let slot = self.stage_link(origin);
            self.remove(node, true);
            let (at, over) = (node.path.clone(), replaced(node));
            self.change.push(Op::Place { slot, ino: origin.ino, at, directory: false, over });
        }
        let target = OpTarget::Known { identity: origin.identity.clone(), at: node.path.clone() };
        let source = Source::Upper(node.path.clone());
        self.rewrite(file, origin, source, target);
    }

    fn indexed(&mut self, indexed: &Indexed) {
        let Some(origin) = indexed.file.origin.as_ref().filter(|origin| !self.seen.contains(&origin.ino)) else {
            return;
        };
        if crate::crash::planted("lost-hard-link") {
            return;
        }
        if indexed.file.content_differs || indexed.file.attributes_differ {
            let slot = self.stage_link(origin);
            self.rewrite(&indexed.file, origin, Source::Index(indexed.path.clone()), OpTarget::Staged(slot));
        }
    }

    fn rewrite(&mut self, file: &File, origin: &Origin, source: Source, target: OpTarget) {
        if (file.content_differs || file.attributes_differ) && file.theirs != Some(ByOthers::Attributes) {
            let (source, target) = (source.clone(), target.clone());
            self.restrict.push(Op::Restrict { source, target, content: file.content_differs });
        }
        if file.content_differs {
            self.change.push(Op::Update { source: source.clone(), target: target.clone(), ino: origin.ino });
        }
        if file.content_differs || file.attributes_differ {
            let which = match file.theirs {
                None => Which::All,
                Some(ByOthers::Content(_)) => Which::ButTime,
                Some(ByOthers::Attributes) => Which::TimeAlone,
            };
            self.finish.push(Op::Attributes { source, target: target.clone(), modified: None, which });
        }
        self.protect(target, file.protection, Some(origin.ino));
    }

    fn stage_link(&mut self, origin: &Origin) -> u32 {
        if let Some(slot) = self.staged.get(&origin.ino) {
            return *slot;
        }
        let slot = self.slot();
        self.links.push(Op::StageLink { origin: origin.clone(), slot });
        self.staged.insert(origin.ino, slot);
        slot
    }
}

/// What a rename to a node's name takes the place of. A directory goes before.
fn replaced(node: &Node) -> Option<Replaced> {
    let live = node.live.as_ref().filter(|live| !live.directory)?;
    Some(Replaced { ino: live.ino, changed: live.changed })
}

#[cfg(test)]
mod tests;

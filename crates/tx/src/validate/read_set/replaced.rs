//! Names whose objects may have taken the place of what others have removed, or moved away, since.
//!
//! That something was there leaves no trace in the view once it is replaced, and none in the live tree once it is gone
//! there too: each side can be told by half alone. Where names in the directory are what they were, nothing is gone.
//! Else it is taken for a conflict, which it is not where the name was new, and others changed another one beside it.
//! What was made at its place, and not brought there by a rename or by link(2), is known to have been made where
//! nothing was.

use super::ReadSet;
use crate::change::upper::{Directory, DirectorySource, Node, What};
use crate::crash::planted;
use crate::tree::attributes::Moment;
use crate::tree::confined::{Tree, leads_elsewhere};
use crate::tree::path::TreePath;
use crate::validate::conflict::{Conflict, Interference};
use std::ffi::OsStr;
use std::io;

/// Looks for the first.
pub(super) struct Replaced<'a> {
    pub(super) live: &'a Tree,
    pub(super) read: &'a ReadSet,
    /// When the transaction began.
    pub(super) begun: Moment,
    /// Whether a name in a directory of the live tree is known not to have been there.
    pub(super) is_new: &'a dyn Fn(&TreePath, &OsStr) -> bool,
}

impl Replaced<'_> {
    /// In what a transaction has changed.
    pub(super) fn find(&self, root: &Node) -> io::Result<Option<Conflict>> {
        if planted("blind-names") { Ok(None) } else { self.below(root, Some(&TreePath::ROOT)) }
    }

    /// In a directory, which the live tree has at `at`, if it has it.
    fn below(&self, node: &Node, at: Option<&TreePath>) -> io::Result<Option<Conflict>> {
        let What::Directory(Directory { source, children, .. }) = &node.what else { return Ok(None) };
        let at = match source {
            DirectorySource::New => None,
            DirectorySource::SamePlace => at,
            DirectorySource::Moved { from, .. } => Some(from),
        };
        if let Some(at) = at
            && let Some(child) = children.iter().find(|child| self.may_replace(child) && !self.is_known(at, child))
            && self.is_changed(at)?
        {
            return Ok(Some(Conflict::at(child.path.as_path(), Interference::MayBeRemoved)));
        }
        for child in children {
            let at = at.and_then(|at| Some(at.join(child.path.split()?.1)));
            if let Some(found) = self.below(child, at.as_ref())? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Whether the live tree has nothing at a name that something may have been taken from.
    fn may_replace(&self, node: &Node) -> bool {
        // Of a name that link(2) has made the view's dentries tell nothing.
        let may_be_link = match &node.what {
            What::Gone | What::Directory(Directory { source: DirectorySource::SamePlace, .. }) => return false,
            What::Directory(_) => false,
            What::File(file) => file.linked || file.origin.is_some(),
        };
        node.live.is_none() && (may_be_link || self.read.replacing.contains(&node.path))
    }

    fn is_known(&self, directory: &TreePath, node: &Node) -> bool {
        node.path.split().is_some_and(|(_, name)| (self.is_new)(directory, name))
    }

    /// Whether names may have come or gone in a directory of the live tree since the beginning.
    fn is_changed(&self, directory: &TreePath) -> io::Result<bool> {
        match self.live.look(directory) {
            Err(error) if leads_elsewhere(&error) => Ok(false),
            found => Ok(found?.is_some_and(|now| Moment::changed(&now).is_since(self.begun))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::upper::{File, LiveName};
    use std::collections::HashSet;

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    fn directory(source: DirectorySource, children: Vec<Node>) -> What {
        What::Directory(Directory::holding(source, children))
    }

    fn file(linked: bool) -> What {
        What::File(File { linked, ..File::made() })
    }

    /// Whether something new at `d/new` is in conflict with a change of its directory, where `replacing` is told to
    /// have replaced something.
    fn is_found(what: What, (there, known): (bool, bool), replacing: &str, begun: i64) -> bool {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::create_dir(temporary.path().join("d")).unwrap();
        let live = Tree::open(temporary.path()).unwrap();
        let name = there.then_some(LiveName { ino: 5, directory: false, changed: Moment::EPOCH });
        let node = |at: &str, live, what| Node { path: path(at), ino: 9, live, marked: false, what };
        let inner = node("d", None, directory(DirectorySource::SamePlace, vec![node("d/new", name, what)]));
        let root = node("", None, directory(DirectorySource::SamePlace, vec![inner]));
        let read = ReadSet { replacing: HashSet::from([path(replacing)]), ..ReadSet::default() };
        let begun = Moment { seconds: begun, nanoseconds: 0 };
        let is_new = |_: &TreePath, name: &OsStr| known && name == "new";
        Replaced { live: &live, read: &read, begun, is_new: &is_new }.find(&root).unwrap().is_some()
    }

    #[test]
    fn what_took_a_names_place_is_doubtful_where_names_around_it_changed() {
        assert!(is_found(file(false), (false, false), "d/new", 1));
        assert!(is_found(directory(DirectorySource::New, vec![]), (false, false), "d/new", 1));
        assert!(is_found(file(true), (false, false), "d/other", 1), "it may be a link");
        assert!(!is_found(file(false), (false, false), "d/new", i64::MAX), "nothing has gone");
        assert!(!is_found(file(false), (false, false), "d/other", 1), "it was made where nothing was");
        assert!(!is_found(file(false), (true, false), "d/new", 1), "something is there, which is looked at by itself");
        assert!(!is_found(file(false), (false, true), "d/new", 1), "it is known that nothing was there");
        assert!(!is_found(What::Gone, (false, false), "d/new", 1), "that is told by itself");
    }
}

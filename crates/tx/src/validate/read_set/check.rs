//! Whether the live tree would answer today as it answered the transaction.

use super::{Looked, ReadSet};
use crate::change::upper::{DirectorySource, File, Node, What};
use crate::crash::planted;
use crate::tree::attributes::Moment;
use crate::tree::confined::{Tree, leads_elsewhere};
use crate::tree::path::TreePath;
use crate::validate::conflict::{Conflict, Interference};
use rustix::fs::Stat;
use std::collections::HashSet;
use std::io;

/// What is known about a part beside its read set.
pub(crate) struct Known {
    /// When the transaction began.
    pub(crate) begun: Moment,
    /// Paths at which another mount lies over the tree.
    pub(crate) covered: HashSet<TreePath>,
    /// Inodes that the transaction's own output goes to.
    pub(crate) output: HashSet<u64>,
}

/// The first name or directory that is not what it was. What the transaction changed, whose node is `root`, is
/// validated by itself. The view was made of `places`. Where all is settled, as it mostly is, nothing else need be
/// known.
pub(crate) fn check(
    live: &Tree,
    read: &ReadSet,
    places: &[TreePath],
    root: &Node,
    known: impl FnOnce() -> io::Result<Known>,
) -> io::Result<Option<Conflict>> {
    let mut doubtful: Vec<&Looked> = read.looked.iter().filter(|one| !one.settled).collect();
    if !doubtful.is_empty() {
        let pandos = pandos_own(&read.looked, places);
        doubtful.retain(|one| !pandos.contains(&one.path));
    }
    if planted("blind-reads") {
        doubtful.clear();
    }
    let listed = if planted("blind-lists") { Vec::new() } else { read.doubtful_directories() };
    if doubtful.is_empty() && listed.is_empty() {
        return Ok(None);
    }
    let known = &known()?;
    let changed = Changed::of(root);
    for one in doubtful {
        if let Some(found) = of_name(live, one, &changed, known)? {
            return Ok(Some(found));
        }
    }
    for directory in listed {
        let path = changed.live(directory);
        if look(live, &path)?.is_some_and(|now| is_new(&now, known)) && !changed.made.contains(directory) {
            return Ok(Some(Conflict::at(path.as_path(), Interference::ChangedAfterListing)));
        }
    }
    Ok(None)
}

/// What is wrong with one name.
fn of_name(live: &Tree, one: &Looked, changed: &Changed, known: &Known) -> io::Result<Option<Conflict>> {
    if changed.names.contains(&one.path) {
        return Ok(None);
    }
    let path = changed.live(&one.path);
    if known.covered.contains(&path) {
        return Ok(None);
    }
    let what = match (look(live, &path)?, one.found) {
        (None, None) => return Ok(None),
        (Some(_), None) => Interference::Created,
        (None, Some(_)) => Interference::Removed,
        // Numbers of a target's inodes do not last; what has come in the place of another is younger than the
        // transaction.
        (Some(now), Some(ino)) if now.st_ino != ino && (!live.is_by_handle() || is_new(&now, known)) => {
            Interference::Replaced
        }
        // What is younger than the transaction may have been read before or after: only its content could tell.
        (Some(now), Some(ino)) if !one.directory && !known.output.contains(&ino) && is_new(&now, known) => {
            Interference::Changed
        }
        _ => return Ok(None),
    };
    Ok(Some(Conflict::at(path.as_path(), what)))
}

/// Names that only the making of the view looked up: those on the way to its mounts and sockets, below which the
/// transaction itself looked nothing up.
pub(crate) fn pandos_own(looked: &[Looked], places: &[TreePath]) -> HashSet<TreePath> {
    let mut own: HashSet<TreePath> = HashSet::new();
    for place in places {
        let mut path = Some(place.clone());
        while let Some(at) = path {
            path = at.split().map(|(around, _)| around);
            own.insert(at);
        }
    }
    let chains = own.clone();
    for one in looked {
        if chains.contains(&one.path) {
            continue;
        }
        let mut at = one.path.clone();
        while let Some((around, _)) = at.split() {
            own.remove(&around);
            at = around;
        }
    }
    own
}

fn is_new(now: &Stat, known: &Known) -> bool {
    Moment::changed(now).is_since(known.begun)
}

fn look(live: &Tree, path: &TreePath) -> io::Result<Option<Stat>> {
    match live.look(path) {
        Err(error) if leads_elsewhere(&error) => Ok(None),
        found => found,
    }
}

/// Whether a name still leads to the same file, with the content and the attributes that the live tree's has now.
fn is_as_it_was(node: &Node, file: &File) -> bool {
    let is_the_same = node.live.as_ref().zip(file.origin.as_ref()).is_some_and(|(live, origin)| live.ino == origin.ino);
    is_the_same && !file.content_differs && !file.attributes_differ && !planted("equal-content")
}

/// The change set as far as it matters here.
#[derive(Default)]
struct Changed {
    /// Names that are not what they were.
    names: HashSet<TreePath>,
    /// Directories that the transaction made.
    made: HashSet<TreePath>,
    /// Directories that it moved: where to, and from where.
    moved: Vec<(TreePath, TreePath)>,
}

impl Changed {
    fn of(root: &Node) -> Self {
        let mut changed = Self::default();
        changed.collect(root);
        changed
    }

    fn collect(&mut self, node: &Node) {
        match &node.what {
            // What was written to it is what it was: it was read.
            What::File(file) if is_as_it_was(node, file) => {}
            What::Gone | What::File(_) => drop(self.names.insert(node.path.clone())),
            What::Directory(directory) => {
                match &directory.source {
                    DirectorySource::SamePlace => {}
                    DirectorySource::New => {
                        self.names.insert(node.path.clone());
                        self.made.insert(node.path.clone());
                    }
                    DirectorySource::Moved { from, .. } => {
                        self.names.insert(node.path.clone());
                        self.moved.push((node.path.clone(), from.clone()));
                    }
                }
                directory.children.iter().for_each(|child| self.collect(child));
            }
        }
    }

    /// Where the live tree has what the view has at a path.
    fn live(&self, path: &TreePath) -> TreePath {
        let around = self.moved.iter().filter(|(to, _)| path.is_within(to));
        let Some((to, from)) = around.max_by_key(|(to, _)| to.depth()) else { return path.clone() };
        path.parts().skip(to.depth()).fold(from.clone(), |live, part| live.join(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::upper::Directory;

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    fn directory(at: &str, source: DirectorySource, children: Vec<Node>) -> Node {
        let what = What::Directory(Directory::holding(source, children));
        Node { path: path(at), ino: 1, live: None, marked: false, what }
    }

    /// Looks at a name of a tree with the directory `a` and the file `a/f` in it, before which `new` was made of `a`.
    fn found(at: &str, found: impl Fn(u64) -> Option<u64>, begun: Moment) -> Option<Interference> {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::create_dir(temporary.path().join("a")).unwrap();
        std::fs::write(temporary.path().join("a/f"), "").unwrap();
        let live = Tree::open(temporary.path()).unwrap();
        let ino = live.stat(&path("a/f")).unwrap().st_ino;
        let moved = directory("new", DirectorySource::Moved { from: path("a"), ino: 7 }, vec![]);
        let root = directory("", DirectorySource::SamePlace, vec![moved]);
        let looked = vec![Looked { path: path(at), found: found(ino), directory: false, settled: false }];
        let known = || Ok(Known { begun, covered: HashSet::new(), output: HashSet::new() });
        let read = ReadSet { looked, ..ReadSet::default() };
        check(&live, &read, &[path("socket/deep"), path("a/socket")], &root, known).unwrap().map(|found| match found {
            Conflict::At { what, .. } => what,
            other => panic!("{other}"),
        })
    }

    #[test]
    fn an_answer_must_be_what_it_was() {
        let (before, later) = (Moment { seconds: 1, nanoseconds: 0 }, Moment { seconds: i64::MAX, nanoseconds: 0 });
        assert_eq!(found("a/f", Some, later), None);
        assert_eq!(found("a/f", Some, before), Some(Interference::Changed));
        assert_eq!(found("a/f", |ino| Some(ino + 1), later), Some(Interference::Replaced));
        assert_eq!(found("a/f", |_| None, later), Some(Interference::Created));
        assert_eq!(found("a/g", Some, later), Some(Interference::Removed));
        assert_eq!(found("a/g", |_| None, later), None);
    }

    #[test]
    fn what_only_the_making_of_the_view_looked_up_is_no_matter() {
        let later = Moment { seconds: i64::MAX, nanoseconds: 0 };
        assert_eq!(found("socket", Some, later), None);
        assert_eq!(found("socket/deep", Some, later), None);
        assert_eq!(found("socket/other", Some, later), Some(Interference::Removed));
    }

    #[test]
    fn in_a_moved_directory_it_is_asked_at_its_old_place() {
        let later = Moment { seconds: i64::MAX, nanoseconds: 0 };
        assert_eq!(found("new/f", Some, later), None);
        assert_eq!(found("new/g", Some, later), Some(Interference::Removed));
        assert_eq!(found("new", |_| None, later), None, "it is in the change set");
    }
}

//! A part of a change set, to be committed without the rest.
//!
//! Nodes that are not selected are taken out. What a selected one cannot be without has to be selected as well: the
//! directory that it is in, if that is new or was moved; the other names of its file, where one takes the place of
//! another; what is taken away along with a directory.

use crate::change::selection::PartSelection;
use crate::change::upper::{Directory, DirectorySource, Indexed, Node, What};
use crate::tree::confined::{Tree, is_missing, leads_elsewhere};
use crate::tree::path::TreePath;
use rustix::fs::FileType;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::Path;

/// Two changes of which only one is selected, and which belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependence {
    /// The one that is selected.
    pub path: String,
    /// The path that it cannot be without.
    pub on: String,
    /// Why it cannot be without that.
    pub why: Why,
}

/// Why two changes belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The other is the directory that it is in, which the transaction has made or moved.
    Inside,
    /// They are names of one file or directory, which was renamed or changed by both.
    OneObject,
    /// The other goes with the directory that is taken away.
    GoesAlong,
}

impl Dependence {
    /// The same by paths of the view, where its own are those below a mount.
    pub(crate) fn below(self, mount: &Path) -> Self {
        let joined = |path: &str| mount.join(path.trim_start_matches('/')).display().to_string();
        Self { path: joined(&self.path), on: joined(&self.on), why: self.why }
    }
}

impl fmt::Display for Dependence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, on, why } = self;
        let why = match why {
            Why::Inside => "the directory that it is in, which the transaction has made or moved",
            Why::OneObject => "the same file or directory by another name",
            Why::GoesAlong => "which goes with it, or came from it",
        };
        write!(out, "{path} cannot be committed without {on}, {why}: include both, or exclude both")
    }
}

/// Takes out what is not selected of the tree whose root's node is `root`, and of the files that only the index knows;
/// or says why the rest cannot be without it.
pub(crate) fn restrict(
    live: &Tree,
    root: &mut Node,
    indexed: &mut Vec<Indexed>,
    selection: &PartSelection,
) -> io::Result<Option<Dependence>> {
    if selection.is_whole() {
        return Ok(None);
    }
    let mut objects = Objects::default();
    objects.collect(root, Some(&TreePath::ROOT), selection);
    let found = match outside(root, None, selection).or_else(|| objects.torn()) {
        None => objects.taken_along(live, selection)?,
        found => found,
    };
    if found.is_some() {
        return Ok(found);
    }
    // Only the name by which such a file was changed tells whose change it is.
    let is_selected = |one: &Indexed| {
        let names = one.file.origin.as_ref().and_then(|origin| objects.names.get(&origin.ino));
        names.is_some_and(|names| names.iter().any(|name| name.selected))
    };
    indexed.retain(is_selected);
    prune(root, selection);
    Ok(None)
}

/// A selected node in a directory that is new or was moved, and is not selected; `around` is the nearest such one.
fn outside(node: &Node, around: Option<&TreePath>, selection: &PartSelection) -> Option<Dependence> {
    let selected = selection.has(&node.path);
    if let Some(around) = around.filter(|_| selected) {
        return Some(Dependence { path: node.path.to_string(), on: around.to_string(), why: Why::Inside });
    }
    let What::Directory(directory) = &node.what else { return None };
    let stays = directory.source == DirectorySource::SamePlace;
    let around = if stays || selected { around } else { Some(&node.path) };
    directory.children.iter().find_map(|child| outside(child, around, selection))
}

/// What a node does to an object of the live tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// The object gets this name.
    Gain,
    /// The object loses this name.
    Lose,
    /// The object itself is changed.
    Change,
}

#[derive(Debug)]
struct Name {
    path: TreePath,
    does: Does,
    selected: bool,
}

/// The objects of the live tree that a change set is about.
#[derive(Debug, Default)]
struct Objects {
    names: HashMap<u64, Vec<Name>>,
    /// Directories that are taken away from where the live tree has them: their nodes, and that place.
    away: Vec<(TreePath, TreePath)>,
}

impl Objects {
    fn collect(&mut self, node: &Node, at: Option<&TreePath>, selection: &PartSelection) {
        let selected = selection.has(&node.path);
        let mut note = |ino, does| {
            self.names.entry(ino).or_default().push(Name { path: node.path.clone(), does, selected });
        };
        let is_now = match &node.what {
            What::Gone => None,
            What::File(file) => {
                let origin = file.origin.as_ref().map(|origin| origin.ino);
                if let Some(ino) = origin {
                    if node.live.as_ref().is_none_or(|live| live.ino != ino) {
                        note(ino, Does::Gain);
                    }
                    if file.content_differs || file.attributes_differ {
                        note(ino, Does::Change);
                    }
                }
                origin
            }
            What::Directory(directory) => match &directory.source {
                DirectorySource::New => None,
                DirectorySource::SamePlace => node.live.as_ref().map(|live| live.ino),
                DirectorySource::Moved { ino, .. } => {
                    note(*ino, Does::Gain);
                    Some(*ino)
                }
            },
        };
        if let Some(live) = node.live.as_ref().filter(|live| is_now != Some(live.ino)) {
            note(live.ino, Does::Lose);
            if let Some(at) = at.filter(|_| live.directory) {
                self.away.push((node.path.clone(), at.clone()));
            }
        }
        let What::Directory(Directory { source, children, .. }) = &node.what else { return };
        let at = match source {
            DirectorySource::New => None,
            DirectorySource::SamePlace => at,
            DirectorySource::Moved { from, .. } => Some(from),
        };
        for child in children {
            let at = at.and_then(|at| Some(at.join(child.path.split()?.1)));
            self.collect(child, at.as_ref(), selection);
        }
    }

    /// Two names of one object that belong together, and of which one is selected.
    fn torn(&self) -> Option<Dependence> {
        self.names.values().find_map(|names| {
            let is_renamed = names.iter().any(|name| name.does == Does::Gain);
            let matter = |name: &&Name| is_renamed || name.does == Does::Change;
            let selected = names.iter().filter(matter).find(|name| name.selected)?;
            let other = names.iter().filter(matter).find(|name| !name.selected)?;
            Some(dependence(&selected.path, &other.path, Why::OneObject))
        })
    }

    /// What would be taken away along with a directory, or stay behind in it, against what is selected.
    fn taken_along(&self, live: &Tree, selection: &PartSelection) -> io::Result<Option<Dependence>> {
        for (node, at) in &self.away {
            let is_selected = selection.has(node);
            let inside = |path: &&TreePath| is_selected && *path != node && path.is_within(node);
            for path in selection.excluded.iter().filter(inside) {
                let below: Vec<_> = path.parts().skip(node.depth()).collect();
                let place = below.into_iter().fold(at.clone(), |at, name| at.join(name));
                if looked(live.look(&place))?.flatten().is_some() {
                    return Ok(Some(dependence(node, path, Why::GoesAlong)));
                }
            }
            // What came out of it, and is told by nothing but what it is.
            let came = |names: &&Vec<Name>| !names.iter().any(|name| name.does == Does::Lose);
            let other = self.names.iter().filter(|(_, names)| came(names));
            let other = other.filter_map(|(ino, names)| {
                let gain = names.iter().find(|name| name.does == Does::Gain && name.selected != is_selected)?;
                Some((*ino, &gain.path))
            });
            let other: HashMap<u64, &TreePath> = other.collect();
            if let Some(ino) = below(live, at, &other.keys().copied().collect())? {
                let (selected, on) = if is_selected { (node, other[&ino]) } else { (other[&ino], node) };
                return Ok(Some(dependence(selected, on, Why::GoesAlong)));
            }
        }
        Ok(None)
    }
}

fn dependence(path: &TreePath, on: &TreePath, why: Why) -> Dependence {
    Dependence { path: path.to_string(), on: on.to_string(), why }
}

/// What is found, unless it has gone meanwhile.
fn looked<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_missing(&error) || leads_elsewhere(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One of some objects that lies below a directory of the live tree.
fn below(live: &Tree, top: &TreePath, wanted: &HashSet<u64>) -> io::Result<Option<u64>> {
    let mut left = if wanted.is_empty() { Vec::new() } else { vec![top.clone()] };
    while let Some(directory) = left.pop() {
        for name in looked(live.names(&directory))?.unwrap_or_default() {
            let path = directory.join(&name);
            let Some((stat, ino)) = looked(live.look_ident(&path))?.flatten() else { continue };
            if wanted.contains(&ino) {
                return Ok(Some(ino));
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                left.push(path);
            }
        }
    }
    Ok(None)
}

/// Takes out of a directory what is not selected.
fn prune(node: &mut Node, selection: &PartSelection) {
    let What::Directory(directory) = &mut node.what else { return };
    if !selection.has(&node.path) {
        // Names may come and go in it, and nothing else.
        (directory.attributes_differ, directory.attributes_clash, directory.protection) = (false, false, None);
        (directory.names_alone, directory.before) = (true, None);
    }
    let before = directory.children.len();
    directory.children.retain_mut(|child| {
        prune(child, selection);
        selection.has(&child.path) || has_children(child)
    });
    directory.is_whole &= directory.children.len() == before;
}

/// Whether it is a directory of the live tree in which something is selected.
fn has_children(node: &Node) -> bool {
    matches!(&node.what, What::Directory(Directory { source: DirectorySource::SamePlace, children, .. }) if !children.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::selection::Selection;
    use crate::change::upper::{File, LiveName, Origin};
    use crate::state::overlay_part::OverlayPart;
    use crate::tree::identity::Identity;

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    fn node(at: &str, live: Option<(u64, bool)>, what: What) -> Node {
        let name = |(ino, directory)| LiveName { ino, directory, changed: crate::tree::attributes::Moment::EPOCH };
        Node { path: path(at), ino: 9, live: live.map(name), marked: false, what }
    }

    fn of(ino: u64) -> What {
        let identity: Identity = pando_kernel::file::handle::FileHandle { kind: 1, bytes: vec![] }.into();
        let origin = Origin { ino, identity, changed: crate::tree::attributes::Moment::EPOCH };
        What::File(File { origin: Some(origin), content_differs: false, attributes_differ: false, ..File::made() })
    }

    fn directory(source: DirectorySource, children: Vec<Node>) -> What {
        What::Directory(Directory::holding(source, children))
    }

    /// What is left of a tree in words: its paths, or why it would be torn.
    fn left(children: Vec<Node>, included: &[&str], excluded: &[&str]) -> String {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temporary.path().join("data/keep")).unwrap();
        let live = Tree::open(temporary.path()).unwrap();
        let paths = |paths: &[&str]| paths.iter().map(std::path::PathBuf::from).collect();
        let selection = Selection { included: paths(included), excluded: paths(excluded), ..Selection::default() };
        let selection = selection.on(&OverlayPart::new("/".into(), "/nowhere".into()));
        let mut root = node("", Some((2, true)), directory(DirectorySource::SamePlace, children));
        match restrict(&live, &mut root, &mut Vec::new(), &selection).unwrap() {
            Some(Dependence { path, on, .. }) => format!("{path} needs {on}"),
            None => names(&root),
        }
    }

    fn names(node: &Node) -> String {
        let What::Directory(directory) = &node.what else { return node.path.to_string() };
        let inner: Vec<String> = directory.children.iter().map(names).collect();
        format!("{}({})", node.path, inner.join(" "))
    }

    #[test]
    fn what_is_in_a_new_directory_needs_it() {
        let made = || {
            let files = vec![node("d/f", None, What::File(File::made())), node("d/g", None, What::File(File::made()))];
            vec![node("d", None, directory(DirectorySource::New, files)), node("x", Some((5, false)), What::Gone)]
        };
        assert_eq!(left(made(), &["/d/f"], &[]), "/d/f needs /d");
        assert_eq!(left(made(), &["/d"], &[]), "/(/d(/d/f /d/g))");
        assert_eq!(left(made(), &[], &["/d/f"]), "/(/d(/d/g) /x)");
        assert_eq!(left(made(), &[], &["/d"]), "/(/x)");
    }

    #[test]
    fn a_renamed_file_goes_with_both_its_names() {
        let renamed = || vec![node("a", Some((5, false)), What::Gone), node("b", None, of(5))];
        assert_eq!(left(renamed(), &["/a"], &[]), "/a needs /b");
        assert_eq!(left(renamed(), &[], &["/a"]), "/b needs /a");
        assert_eq!(left(renamed(), &["/a", "/b"], &[]), "/(/a /b)");
        let removed = || vec![node("a", Some((5, false)), What::Gone), node("b", Some((5, false)), What::Gone)];
        assert_eq!(left(removed(), &["/a"], &[]), "/(/a)", "each name of a file can go by itself");
    }

    #[test]
    fn what_goes_with_a_directory_cannot_be_left_out() {
        let removed = || vec![node("data", Some((7, true)), What::Gone)];
        assert_eq!(left(removed(), &[], &["/data/keep"]), "/data needs /data/keep");
        assert_eq!(left(removed(), &[], &["/data/none"]), "/(/data)");
    }
}

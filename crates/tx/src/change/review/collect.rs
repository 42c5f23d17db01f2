//! From the nodes of a change set to the paths of a review.

use super::look::{Ids, Look};
use super::reviewed::{Before, Reviewed};
use crate::change::Sign;
use crate::change::upper::{Directory, DirectorySource, File, Indexed, Node, Origin, What};
use crate::state::overlay_part::OverlayPart;
use crate::tree::attributes::Moment;
use crate::tree::confined::{CallPath, Tree, is_missing, leads_elsewhere};
use crate::tree::content::same_content;
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use rustix::fs::FileType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;

/// So many names below a directory that goes are counted, and no more.
const COUNTED: usize = 100_000;

/// Reads what a commit will do on a part from its nodes. `begun` is when the transaction began.
pub(crate) fn collect(
    part: &OverlayPart,
    root: &Node,
    indexed: &[Indexed],
    begun: Moment,
) -> io::Result<Vec<Reviewed>> {
    let (live, upper) = (part.live_tree()?, Tree::open(&part.upper())?);
    let ids = Ids::of(part.target.as_ref());
    let wanted = indexed.iter().filter_map(|file| Some(file.file.origin.as_ref()?.ino)).collect();
    let mut collector = Collector {
        live: &live,
        upper: &upper,
        ids,
        begun,
        now: Moment::exactly_now(),
        wanted,
        gone: HashMap::new(),
        kept: HashMap::new(),
        found: Vec::new(),
    };
    collector.node(root, Some(&TreePath::ROOT), false)?;
    if !indexed.is_empty() {
        let index = Tree::open(&part.index())?;
        indexed.iter().try_for_each(|file| collector.indexed(&index, file))?;
    }
    Ok(collector.resolved())
}

struct Collector<'a> {
    live: &'a Tree,
    upper: &'a Tree,
    ids: Ids,
    begun: Moment,
    now: Moment,
    /// Files that only the index knows.
    wanted: BTreeSet<u64>,
    /// Names that lead to an object before, and not afterwards.
    gone: HashMap<u64, TreePath>,
    /// Names that lead to a file before and afterwards.
    kept: HashMap<u64, TreePath>,
    found: Vec<Reviewed>,
}

/// What the live tree has at a place.
struct There {
    look: Look,
    ident: u64,
}

impl Collector<'_> {
    /// Names that lead to something else than before are known only at the end.
    fn resolved(mut self) -> Vec<Reviewed> {
        for entry in self.found.iter_mut().filter(|entry| entry.new.is_some()) {
            let Some(ident) = entry.ident else { continue };
            if entry.moved_from.is_none() {
                entry.linked_to = self.kept.get(&ident).filter(|path| **path != entry.path).cloned();
                if entry.linked_to.is_none() {
                    entry.moved_from = self.gone.get(&ident).filter(|path| **path != entry.path).cloned();
                }
            }
        }
        let moved = |entry: &Reviewed| Some((entry.moved_from.clone()?, entry.path.clone()));
        let moved: HashMap<TreePath, TreePath> = self.found.iter().filter_map(moved).collect();
        for entry in self.found.iter_mut().filter(|entry| entry.sign == Sign::Removed) {
            entry.moved_to = moved.get(&entry.path).cloned();
        }
        self.found
    }

    /// What the live tree has at a place; nothing where there is nothing, or where something is mounted, which no
    /// commit takes away.
    fn there(&self, place: Option<&TreePath>) -> io::Result<Option<There>> {
        let Some(place) = place else { return Ok(None) };
        let found = || -> io::Result<There> {
            let object = self.live.object(place)?;
            let stat = rustix::fs::fstat(&object)?;
            let ident = self.live.ident_of(&object, &stat)?;
            Ok(There { look: Look::of(object, None, self.ids)?, ident })
        };
        match found() {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_missing(&error) || leads_elsewhere(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn here(&self, tree: &Tree, path: &TreePath, protection: Option<Protection>) -> io::Result<Look> {
        Look::of(tree.object(path)?, Some(protection.unwrap_or_default()), self.ids)
    }

    /// A node, and where the live tree has its place. What is `hidden` lies in a directory that was made anew in the
    /// place of an old one.
    fn node(&mut self, node: &Node, place: Option<&TreePath>, hidden: bool) -> io::Result<()> {
        let place = place.filter(|_| hidden || node.live.is_some());
        match &node.what {
            What::Gone => self.removed(&node.path, place),
            What::File(file) => self.file(node, file, place),
            What::Directory(directory) => self.directory(node, directory, place),
        }
    }

    fn removed(&mut self, path: &TreePath, place: Option<&TreePath>) -> io::Result<()> {
        let (Some(place), Some(There { look, ident })) = (place, self.there(place)?) else { return Ok(()) };
        self.gone.insert(ident, path.clone());
        let below = if look.is_directory() { self.below(place, path)? } else { 0 };
        self.found.push(Reviewed { old: Some(look), below, ..Reviewed::new(Sign::Removed, path) });
        Ok(())
    }

    /// How many names lie below a directory of the live tree; those that lead to files which are asked for are noted.
    fn below(&mut self, place: &TreePath, path: &TreePath) -> io::Result<usize> {
        let (mut count, mut left) = (0, vec![(place.clone(), path.clone())]);
        while let Some((place, path)) = left.pop() {
            let names = match self.live.names(&place) {
                Err(error) if is_missing(&error) || leads_elsewhere(&error) => continue,
                names => names?,
            };
            for name in names {
                count += 1;
                if count >= COUNTED && self.wanted.is_empty() {
                    return Ok(count);
                }
                let (place, path) = (place.join(&name), path.join(&name));
                let Some(stat) = self.live.look(&place)? else { continue };
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    left.push((place, path));
                } else if !self.wanted.is_empty() && stat.st_nlink > 1 {
                    let ident = self.live.ident(&place, &stat)?;
                    self.gone.insert(ident, path);
                }
            }
        }
        Ok(count.min(COUNTED))
    }

    fn file(&mut self, node: &Node, file: &File, place: Option<&TreePath>) -> io::Result<()> {
        let new = self.here(self.upper, &node.path, file.protection)?;
        let mut there = self.there(place)?;
        if there.as_ref().is_some_and(|there| there.look.is_directory()) {
            self.removed(&node.path, place)?;
            there = None;
        }
        let (is_regular, content_differs) = (file.kind == '-', self.content_differs(node, file, &new)?);
        let bytes = if file.content_differs { file.size } else { 0 };
        let sign = if there.is_some() { Sign::Changed } else { Sign::Added };
        let entry = Reviewed { bytes, ..Reviewed::new(sign, &node.path) };
        let Some(origin) = &file.origin else {
            let before = there.as_ref().and(place).map(|place| Before::At(place.clone()));
            let (replaced, old) = (there.is_some(), there.map(|there| self.goes(there, &node.path)));
            let entry = Reviewed { old, new: Some(new), content: is_regular, replaced, before, ..entry };
            self.found.push(entry);
            return Ok(());
        };
        let before = Some(before(origin));
        let ident = Some(origin.ino);
        match there {
            Some(there) if there.ident == origin.ino => {
                self.kept.insert(origin.ino, node.path.clone());
                if file.content_differs || file.attributes_differ {
                    let is_time_set = self.is_set(&there.look, &new, content_differs);
                    let content = is_regular && content_differs;
                    let (old, new) = (Some(there.look), Some(new));
                    self.found.push(Reviewed { old, new, content, is_time_set, before, ..entry });
                }
            }
            Some(there) => {
                let before = place.map(|place| Before::At(place.clone()));
                let old = Some(self.goes(there, &node.path));
                let entry =
                    Reviewed { old, new: Some(new), content: is_regular, replaced: true, before, ident, ..entry };
                self.found.push(entry);
            }
            None => {
                let old = Look::of(open(origin, self.live)?, None, self.ids)?;
                let is_time_set = self.is_set(&old, &new, content_differs);
                let content = is_regular && content_differs;
                let entry = Reviewed { old: Some(old), new: Some(new), content, is_time_set, before, ident, ..entry };
                self.found.push(entry);
            }
        }
        Ok(())
    }

    /// Whether the content of a file is other than its origin's. A commit does not look where the times are not the
    /// same.
    fn content_differs(&self, node: &Node, file: &File, new: &Look) -> io::Result<bool> {
        let Some(origin) = file.origin.as_ref().filter(|_| file.content_differs && file.kind == '-') else {
            return Ok(file.content_differs);
        };
        let old = CallPath::of(open(origin, self.live)?)?;
        if rustix::fs::stat(old.text.as_c_str())?.st_size.cast_unsigned() != new.size {
            return Ok(true);
        }
        Ok(!same_content(&self.upper.file(&node.path, false)?, &old)?)
    }

    /// Notes that a name leads to another object afterwards.
    fn goes(&mut self, there: There, path: &TreePath) -> Look {
        self.gone.insert(there.ident, path.clone());
        there.look
    }

    /// Whether a time is not that of a change which the transaction has made.
    fn is_set(&self, old: &Look, new: &Look, changes: bool) -> bool {
        let has_been_set = !changes || new.modified < self.begun || new.modified > self.now;
        new.modified != old.modified && has_been_set
    }

    fn directory(&mut self, node: &Node, directory: &Directory, place: Option<&TreePath>) -> io::Result<()> {
        let mut new = self.here(self.upper, &node.path, directory.protection)?;
        new.modified = directory.modified;
        let there = match &directory.source {
            DirectorySource::Moved { from, ino } => return self.moved(node, directory, place, (from, *ino, new)),
            DirectorySource::New | DirectorySource::SamePlace => self.there(place)?,
        };
        let is_new = directory.source == DirectorySource::New;
        match there {
            Some(there) if there.look.is_directory() && is_new => {
                let old = Some(self.goes(there, &node.path));
                let entry = Reviewed::new(Sign::Changed, &node.path);
                self.found.push(Reviewed { old, new: Some(new), replaced: true, ..entry });
                let hidden = place.map_or_else(|| Ok(Vec::new()), |place| self.live.names(place))?;
                return self.children(directory, node, place, hidden);
            }
            Some(there) if !is_new => {
                let names_change = directory.children.iter().any(changes_names);
                let is_time_set = self.is_set(&there.look, &new, names_change);
                if (directory.attributes_differ || names_change) && (new.is_other(&there.look) || is_time_set) {
                    let entry = Reviewed::new(Sign::Changed, &node.path);
                    self.found.push(Reviewed { old: Some(there.look), new: Some(new), is_time_set, ..entry });
                }
                return self.children(directory, node, place, Vec::new());
            }
            Some(_) => self.removed(&node.path, place)?,
            None => {}
        }
        self.found.push(Reviewed { new: Some(new), ..Reviewed::new(Sign::Added, &node.path) });
        self.children(directory, node, None, Vec::new())
    }

    /// A directory that had another place before.
    fn moved(
        &mut self,
        node: &Node,
        directory: &Directory,
        place: Option<&TreePath>,
        (from, ino, new): (&TreePath, u64, Look),
    ) -> io::Result<()> {
        self.removed(&node.path, place)?;
        let old = self.there(Some(from))?.map(|there| there.look);
        let names_change = directory.children.iter().any(changes_names);
        let is_time_set = old.as_ref().is_some_and(|old| self.is_set(old, &new, names_change));
        let (new, moved_from, ident) = (Some(new), Some(from.clone()), Some(ino));
        let entry = Reviewed::new(Sign::Added, &node.path);
        self.found.push(Reviewed { old, new, moved_from, ident, is_time_set, ..entry });
        self.children(directory, node, Some(from), Vec::new())
    }

    /// The children of a directory, in the order of their names, and among them what the directory `below` of the live
    /// tree has `hidden`.
    fn children(
        &mut self,
        directory: &Directory,
        node: &Node,
        below: Option<&TreePath>,
        hidden: Vec<OsString>,
    ) -> io::Result<()> {
        let is_hidden = directory.source == DirectorySource::New;
        let mut all: BTreeMap<&OsStr, Option<&Node>> = hidden.iter().map(|name| (name.as_os_str(), None)).collect();
        all.extend(directory.children.iter().filter_map(|child| Some((name_of(&child.path)?, Some(child)))));
        for (name, child) in all {
            let place = below.map(|below| below.join(name));
            match child {
                Some(child) => self.node(child, place.as_ref(), is_hidden)?,
                None => self.removed(&node.path.join(name), place.as_ref())?,
            }
        }
        Ok(())
    }

    /// A file that was changed by a name which then went: others that it has lead to the changed one.
    fn indexed(&mut self, index: &Tree, indexed: &Indexed) -> io::Result<()> {
        let (file, Some(origin)) = (&indexed.file, &indexed.file.origin) else { return Ok(()) };
        let is_known = self.kept.contains_key(&origin.ino)
            || self.found.iter().any(|entry| entry.new.is_some() && entry.ident == Some(origin.ino));
        if is_known || !(file.content_differs || file.attributes_differ) {
            return Ok(());
        }
        let path = self.gone.get(&origin.ino).unwrap_or(&TreePath::ROOT).clone();
        let new = self.here(index, &indexed.path, file.protection)?;
        let old = Look::of(open(origin, self.live)?, None, self.ids)?;
        let is_time_set = self.is_set(&old, &new, file.content_differs);
        self.found.push(Reviewed {
            old: Some(old),
            new: Some(new),
            content: file.kind == '-' && file.content_differs,
            is_time_set,
            by_other_names: true,
            bytes: if file.content_differs { file.size } else { 0 },
            before: Some(before(origin)),
            index: Some(indexed.path.clone()),
            ..Reviewed::new(Sign::Changed, &path)
        });
        Ok(())
    }
}

fn name_of(path: &TreePath) -> Option<&OsStr> {
    path.split().map(|(_, name)| name)
}

fn before(origin: &Origin) -> Before {
    Before::Known(origin.identity.clone())
}

fn open(origin: &Origin, live: &Tree) -> io::Result<std::os::fd::OwnedFd> {
    origin.identity.open(live)
}

/// Whether a name comes, goes, or leads to another object, by which the time of its directory changes.
fn changes_names(child: &Node) -> bool {
    match (&child.what, &child.live) {
        (What::Gone, live) => live.is_some(),
        (What::File(file), Some(live)) => file.origin.as_ref().is_none_or(|origin| origin.ino != live.ino),
        (What::Directory(directory), Some(_)) => directory.source != DirectorySource::SamePlace,
        (What::File(_) | What::Directory(_), None) => true,
    }
}

//! From an upper directory to [`Node`]s: everything that has to be looked up in the live tree is looked up here.

use super::aspect::Aspect;
use super::marks::Marks;
use super::node::{Directory, DirectorySource, File, Indexed, LiveName, Node, Origin, What};
use crate::change::selection::PartSelection;
use crate::change::split_attribution::{ByOthers, FileBaseline, Now, OwnChange};
use crate::change::sync_ahead::MANY;
use crate::tree::attributes::{Attributes, Moment};
use crate::tree::confined::{CallPath, Tree};
use crate::tree::content::same_content;
use crate::tree::identity::{Identity, is_gone};
use crate::tree::path::TreePath;
use crate::tree::protection::{Protection, may_be_lifted};
use crate::tree::xattr;
use rustix::fs::{FileType, Stat};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

/// Why an upper directory could not be read as changes.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// Something could not be read.
    #[error("reading the changes at {path}: {source}")]
    Read {
        /// What.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody else changed what the transaction built on.
    #[error("{0} was moved or removed by others")]
    Lost(String),
    /// A program with several names, which is being run outside, was changed: neither can it be written to, nor all its
    /// names be replaced at once.
    #[error("{0} is being run outside and has other names, so that it cannot be changed")]
    Executed(String),
    /// A file with several names was changed on which others hold a lease, and do not give it up.
    #[error(
        "{0} has a lease of a program outside (fcntl, F_SETLEASE) and other names, so that it cannot be changed now"
    )]
    Leased(String),
    /// What is protected may only be changed by who may lift that.
    #[error("{0} is protected (chattr +i or +a), which to lift takes CAP_LINUX_IMMUTABLE")]
    Protected(String),
    /// A name with several links was changed on a file system that does not let them be told.
    #[error("{0}: its file system does not tell which file it is a copy of")]
    Untold(String),
}

/// The upper directory beside its live tree.
struct Walk<'a> {
    upper: &'a Tree,
    live: &'a Tree,
    /// When the live files last changed, as it was first seen: in a target, to ask whether a file can be written to
    /// copies it up, which changes it.
    changed: RefCell<HashMap<u64, Moment>>,
    beginning: Beginning,
    /// How many new files with something in them were found.
    filled: Cell<usize>,
    /// Called once, when they are many.
    many: &'a dyn Fn(),
}

/// What is known of the time before.
#[derive(Clone, Debug)]
pub(crate) struct Beginning {
    /// When the transaction began.
    pub(crate) begun: Moment,
    /// What the root was like then.
    pub(crate) root: Option<Attributes>,
    /// What others are known to change meanwhile, as it was then, and whether the transaction has opened it.
    pub(crate) baselines: Vec<(TreePath, FileBaseline, bool)>,
    /// What of its changes is asked for.
    pub(crate) selection: PartSelection,
}

impl Beginning {
    /// What others have changed of a file, and the transaction has not, if that can be told.
    fn theirs(&self, path: &TreePath, mine: &Attributes, content: bool, now: &Now<'_>) -> io::Result<Option<ByOthers>> {
        let Some((_, before, opened)) = self.baselines.iter().find(|(at, ..)| at == path) else { return Ok(None) };
        before.theirs(&OwnChange { attributes: mine, content, opened: *opened }, now)
    }
}

impl Aspect {
    /// What became of the directory that it is of, where the live one has the other.
    fn beside(mut self, old: Self, by_others: bool) -> OfItself {
        // Names that others made or removed in it since are not undone, and nor is the time of that.
        if by_others {
            self.attributes.modified = self.attributes.modified.max(old.attributes.modified);
        }
        OfItself {
            attributes_differ: self.attributes != old.attributes || self.protection != old.protection,
            attributes_clash: false,
            protection: self.protection.or(old.protection),
            modified: self.attributes.modified,
            names_alone: self.attributes.is_same_but_for_time(&old.attributes),
            before: Some(old),
        }
    }
}

/// What became of a directory beside its names.
struct OfItself {
    attributes_differ: bool,
    attributes_clash: bool,
    protection: Option<Protection>,
    modified: Moment,
    /// Whether it has become another only by them.
    names_alone: bool,
    before: Option<Aspect>,
}

/// Reads what was changed: the root's node and the files that only the index knows.
///
/// `upper` and `index` are the directories of an overlay that nobody writes to any more; `live` is the tree that it lay
/// over. `many` is called once if there turn out to be [many](MANY) new files.
pub(crate) fn walk(
    upper: &Tree,
    index: Option<&Tree>,
    live: &Tree,
    beginning: Beginning,
    many: &dyn Fn(),
) -> Result<(Node, Vec<Indexed>), WalkError> {
    let walk = Walk { upper, live, changed: RefCell::default(), beginning, filled: Cell::new(0), many };
    let stat = walk.read(&TreePath::ROOT, upper.stat(&TreePath::ROOT))?;
    let root = walk.directory(TreePath::ROOT, &stat, Some(TreePath::ROOT), &Marks::default())?;
    let indexed = match index {
        Some(index) => Walk { upper: index, ..walk }.indexed()?,
        None => Vec::new(),
    };
    Ok((root, indexed))
}

/// The root's node of an upper directory to which nothing was done since the transaction began, as mostly nothing is on
/// most mounts: what is changed anywhere below it is copied, with all directories on the way. Nothing where it was, or
/// that cannot be told.
pub(crate) fn untouched(upper: &Tree, live: &Tree, begun: Moment) -> Option<Node> {
    let stat = upper.stat(&TreePath::ROOT).ok().filter(|stat| !Moment::changed(stat).is_since(begun))?;
    let (now, ino) = live.look_ident(&TreePath::ROOT).ok()??;
    let name = LiveName { ino, directory: true, changed: Moment::changed(&now) };
    let directory = Directory {
        source: DirectorySource::SamePlace,
        identity: None,
        attributes_differ: false,
        attributes_clash: false,
        before: None,
        protection: None,
        modified: Moment::modified(&now),
        names_alone: false,
        is_whole: true,
        children: Vec::new(),
    };
    let (path, what) = (TreePath::ROOT, What::Directory(directory));
    Some(Node { path, ino: stat.st_ino, live: Some(name), marked: false, what })
}

impl Walk<'_> {
    fn read<T>(&self, path: &TreePath, result: io::Result<T>) -> Result<T, WalkError> {
        result.map_err(|source| WalkError::Read { path: self.upper.shown(path), source })
    }

    /// The nodes in a directory; `live` is where the live tree has the directory, if it has it.
    fn children(&self, directory: &TreePath, live: Option<&TreePath>) -> Result<Vec<Node>, WalkError> {
        let names = self.read(directory, self.upper.names(directory))?;
        let node = |name: &OsString| {
            let path = directory.join(name);
            let is_asked_for = self.beginning.selection.has(&path);
            match self.node(path, live.map(|live| live.join(name))) {
                // What others have done to it is no matter to a commit without it.
                Err(WalkError::Lost(_)) if !is_asked_for => None,
                node => Some(node),
            }
        };
        names.iter().filter_map(node).collect()
    }

    fn node(&self, path: TreePath, live: Option<TreePath>) -> Result<Node, WalkError> {
        let stat = self.read(&path, self.upper.stat(&path))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::CharacterDevice && stat.st_rdev == 0 {
            let name = self.live_name(&path, live.as_ref())?;
            return Ok(Node { path, ino: stat.st_ino, live: name, marked: false, what: What::Gone });
        }
        let xattrs = self.read(&path, self.upper.call_path(&path).and_then(|call| xattr::read(&call)))?;
        let (marks, marked) = (Marks::of(&xattrs.overlay), !xattrs.overlay.is_empty());
        if kind == FileType::Directory {
            return Ok(Node { marked, ..self.directory(path, &stat, live, &marks)? });
        }
        let name = self.live_name(&path, live.as_ref())?;
        let mut file = self.file(&path, &stat, xattrs.own, &marks)?;
        let is_there = name.as_ref().zip(file.origin.as_ref()).is_some_and(|(name, origin)| name.ino == origin.ino);
        // To be moved or removed looks like a change of attributes to the file itself, and is none that can be kept
        // beside this one.
        if !is_there {
            file.theirs = None;
        }
        Ok(Node { path, ino: stat.st_ino, live: name, marked, what: What::File(file) })
    }

    fn live_name(&self, path: &TreePath, live: Option<&TreePath>) -> Result<Option<LiveName>, WalkError> {
        let Some(live) = live else { return Ok(None) };
        let found = self.read(path, self.live.look_ident(live))?;
        Ok(found.map(|(stat, ino)| LiveName {
            ino,
            directory: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
            changed: Moment::changed(&stat),
        }))
    }

    fn directory(&self, path: TreePath, stat: &Stat, live: Option<TreePath>, marks: &Marks) -> Result<Node, WalkError> {
        let name = self.live_name(&path, live.as_ref())?;
        let (source, below) = self.source(&path, live, name.as_ref(), marks)?;
        let protection = marks.protection;
        let of_itself = match &below {
            Some(below) => self.beside(&path, stat, below, protection)?,
            None => {
                let (protection, modified) = (protection.or(Protection::default()), Moment::modified(stat));
                OfItself {
                    attributes_differ: true,
                    attributes_clash: false,
                    protection,
                    modified,
                    names_alone: false,
                    before: None,
                }
            }
        };
        let children = self.children(&path, below.as_ref())?;
        let identity = below.as_ref().and_then(|below| self.identity(below, marks));
        let OfItself { attributes_differ, attributes_clash, protection, modified, names_alone, before } = of_itself;
        let directory = Directory {
            source,
            identity,
            attributes_differ,
            attributes_clash,
            before,
            protection,
            modified,
            names_alone,
            is_whole: true,
            children,
        };
        let what = What::Directory(directory);
        Ok(Node { path, ino: stat.st_ino, live: name, marked: false, what })
    }

    /// Where a directory comes from, and where the live tree has it.
    fn source(
        &self,
        path: &TreePath,
        live: Option<TreePath>,
        name: Option<&LiveName>,
        marks: &Marks,
    ) -> Result<(DirectorySource, Option<TreePath>), WalkError> {
        if marks.opaque {
            return Ok((DirectorySource::New, None));
        }
        if let Some(redirect) = &marks.redirect {
            let from = redirected(redirect, live.as_ref()).ok_or_else(|| WalkError::Untold(path.to_string()))?;
            let found = self.read(path, self.live.look_ident(&from))?;
            let (_, ino) = found.ok_or_else(|| WalkError::Lost(self.live.shown(&from)))?;
            if self.origin_ino(path, marks)?.is_some_and(|origin| origin != ino) {
                return Err(WalkError::Lost(self.live.shown(&from)));
            }
            if name.is_none_or(|name| name.ino != ino) {
                return Ok((DirectorySource::Moved { from: from.clone(), ino }, Some(from)));
            }
        }
        let is_root = path.as_bytes().is_empty();
        match (marks.origin.is_some() || marks.redirect.is_some() || is_root, name) {
            (true, Some(name)) if name.directory => {
                if self.origin_ino(path, marks)?.is_some_and(|ino| ino != name.ino) {
                    return Err(WalkError::Lost(self.live.shown(path)));
                }
                Ok((DirectorySource::SamePlace, live))
            }
            (true, _) => Err(WalkError::Lost(self.live.shown(path))),
            (false, _) => Ok((DirectorySource::New, None)),
        }
    }

    fn origin_ino(&self, path: &TreePath, marks: &Marks) -> Result<Option<u64>, WalkError> {
        Ok(self.origin(path, marks)?.map(|(origin, _)| origin.ino))
    }

    /// What the live tree's directory at `live` is found by, which was looked at just now; nothing for the root, and
    /// where there is no such thing.
    fn identity(&self, live: &TreePath, marks: &Marks) -> Option<Identity> {
        if live.as_bytes().is_empty() {
            return None;
        }
        match &marks.origin {
            Some(handle) => Some(handle.clone().into()),
            None => self.live.object(live).and_then(Identity::of).ok(),
        }
    }

    /// The live file that an object was copied from, opened.
    fn origin(&self, path: &TreePath, marks: &Marks) -> Result<Option<(Origin, CallPath)>, WalkError> {
        let Some(handle) = &marks.origin else { return Ok(None) };
        let object = match handle.open(self.live.root()) {
            Err(error) if is_gone(&error) => return Err(WalkError::Lost(self.live.shown(path))),
            object => self.read(path, object)?,
        };
        let stat = self.read(path, rustix::fs::fstat(&object).map_err(Into::into))?;
        let ino = self.read(path, self.live.ident_of(&object, &stat))?;
        let changed = *self.changed.borrow_mut().entry(ino).or_insert_with(|| Moment::changed(&stat));
        let origin = Origin { ino, identity: handle.clone().into(), changed };
        Ok(Some((origin, self.read(path, CallPath::of(object))?)))
    }

    fn file(&self, path: &TreePath, stat: &Stat, xattrs: xattr::Xattrs, marks: &Marks) -> Result<File, WalkError> {
        let Some((origin, call)) = self.origin(path, marks)? else { return self.new_file(path, stat, marks) };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let old = self.read(path, rustix::fs::stat(call.text.as_c_str()).map_err(Into::into))?;
        if old.st_nlink == 0 {
            return Err(WalkError::Lost(self.live.shown(path)));
        }
        let (new, old_xattrs) = (Attributes::new(stat, xattrs), self.read(path, xattr::read(&call))?.own);
        let (protection, old_protection) = (marks.protection, self.protection(path, &call)?);
        let is_protected_otherwise = protection != old_protection;
        let now = Now { ino: origin.ino, stat: &old, attributes: Attributes::new(&old, old_xattrs), file: &call };
        let theirs = if is_protected_otherwise || !origin.changed.is_since(self.beginning.begun) {
            None
        } else {
            self.read(path, self.beginning.theirs(path, &new, !marks.metadata_only, &now))?
        };
        let attributes_differ = theirs.is_some() || is_protected_otherwise || new != now.attributes;
        let may_differ = kind == FileType::RegularFile && !marks.metadata_only;
        let content_differs = may_differ
            && (theirs.is_some()
                || stat.st_size != old.st_size
                || Moment::modified(stat) != Moment::modified(&old)
                || !self.read(path, self.upper.file(path, false).and_then(|file| same_content(&file, &call)))?);
        Ok(File {
            origin: Some(origin),
            content_differs,
            attributes_differ,
            theirs,
            protection: protection.or(old_protection),
            linked: stat.st_nlink > 1,
            size: stat.st_size.cast_unsigned(),
            kind: letter(kind),
        })
    }

    fn new_file(&self, path: &TreePath, stat: &Stat, marks: &Marks) -> Result<File, WalkError> {
        if marks.metadata_only {
            return Err(WalkError::Untold(path.to_string()));
        }
        let size = stat.st_size.cast_unsigned();
        if size > 0 {
            self.filled.update(|count| count + 1);
            if self.filled.get() == MANY {
                (self.many)();
            }
        }
        Ok(File {
            origin: None,
            content_differs: true,
            attributes_differ: true,
            theirs: None,
            protection: marks.protection.or(Protection::default()),
            linked: stat.st_nlink > 1,
            size,
            kind: letter(FileType::from_raw_mode(stat.st_mode)),
        })
    }

    /// How an object of the live tree is protected, which this must be able to lift.
    fn protection(&self, path: &TreePath, object: &CallPath) -> Result<Protection, WalkError> {
        let found = self.read(path, Protection::of(object))?;
        let can = found.is_none() || may_be_lifted();
        can.then_some(found).ok_or_else(|| WalkError::Protected(self.live.shown(path)))
    }

    /// A directory beside the live one that it was copied from.
    fn beside(
        &self,
        path: &TreePath,
        stat: &Stat,
        live: &TreePath,
        protection: Protection,
    ) -> Result<OfItself, WalkError> {
        let attributes = |tree: &Tree, at: &TreePath, stat: &Stat| -> io::Result<_> {
            Ok(Attributes::new(stat, xattr::read(&tree.call_path(at)?)?.own))
        };
        let now = self.read(path, self.live.stat(live))?;
        let new = Aspect { attributes: self.read(path, attributes(self.upper, path, stat))?, protection };
        let protection = self.protection(path, &self.read(path, self.live.call_path(live))?)?;
        let old = Aspect { attributes: self.read(path, attributes(self.live, live, &now))?, protection };
        let by_others = Moment::changed(&now).is_since(self.beginning.begun);
        if path.as_bytes().is_empty() {
            return self.beside_root(new, old, by_others);
        }
        let attributes_clash = by_others && !new.attributes.is_same_but_for_time(&old.attributes);
        Ok(OfItself { attributes_clash, ..new.beside(old, by_others) })
    }

    /// The root of the upper directory was made, not copied, and Pando itself changes the live one, when it makes the
    /// directory that the part is in: what it was like at the beginning tells what the transaction has changed of it,
    /// and what others.
    fn beside_root(&self, mut new: Aspect, old: Aspect, by_others: bool) -> Result<OfItself, WalkError> {
        let before = self.beginning.root.as_ref().unwrap_or(&old.attributes);
        let is_changed = !new.attributes.is_same_but_for_time(before);
        let is_changed_by_others = !old.attributes.is_same_but_for_time(before);
        let clashes = is_changed_by_others && !new.attributes.is_same_but_for_time(&old.attributes);
        let is_in_use = is_changed || !self.read(&TreePath::ROOT, self.upper.names(&TreePath::ROOT))?.is_empty();
        let attributes_clash = clashes && is_in_use;
        if clashes && !attributes_clash {
            // Nothing of it is this transaction's.
            new.attributes = old.attributes.clone();
        }
        if new.attributes.modified == before.modified {
            new.attributes.modified = old.attributes.modified;
        }
        // It was made without any, so that marks tell of nothing but what was changed.
        if new.protection.is_none() {
            new.protection = old.protection;
        }
        let of_itself = new.beside(old, by_others);
        // Whatever others change of a root in which nothing is done is theirs.
        Ok(OfItself { attributes_clash, before: of_itself.before.filter(|_| is_in_use), ..of_itself })
    }

    /// The changed files of an index. Its other entries are directories' and removed files'.
    fn indexed(&self) -> Result<Vec<Indexed>, WalkError> {
        let mut found = Vec::new();
        for name in self.read(&TreePath::ROOT, self.upper.names(&TreePath::ROOT))? {
            let path = TreePath::ROOT.join(&name);
            let stat = self.read(&path, self.upper.stat(&path))?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::Directory || kind == FileType::CharacterDevice && stat.st_rdev == 0 {
                continue;
            }
            let xattrs = self.read(&path, self.upper.call_path(&path).and_then(|call| xattr::read(&call)))?;
            let marks = Marks::of(&xattrs.overlay);
            let file = match self.file(&path, &stat, xattrs.own, &marks) {
                // Which name it was changed by is not known any more; one that is asked for is lost by itself.
                Err(WalkError::Lost(_)) if !self.beginning.selection.is_whole() => continue,
                file => file?,
            };
            if file.origin.is_some() {
                found.push(Indexed { path, file });
            }
        }
        Ok(found)
    }
}

/// Where a redirect leads in the live tree.
fn redirected(redirect: &[u8], live: Option<&TreePath>) -> Option<TreePath> {
    if redirect.starts_with(b"/") {
        return TreePath::new(redirect);
    }
    let (parent, _) = live?.split()?;
    (!redirect.contains(&b'/')).then(|| parent.join(OsStr::from_bytes(redirect)))
}

fn letter(kind: FileType) -> char {
    match kind {
        FileType::RegularFile => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Unknown => '?',
    }
}

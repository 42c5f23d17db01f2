//! What is kept of a commit ahead of its commit point, so that it can be undone: what each path is like before and
//! afterwards, and a copy of what is about to be written over. What is removed or replaced is moved aside when the
//! commit is applied; out of a target nothing can be moved, so that it is copied now, while the target stands still.

use crate::change::kept::{About, ContentLeft, Kept, MovedPlaces, ObjectBefore, PartKept};
use crate::change::listing::Listing;
use crate::change::review::Reviewed;
use crate::change::{Op, OpTarget, Replaced, Source, Steps};
use crate::crash::step;
use crate::journal::commit_error::CommitError;
use crate::state::overlay_part::{ENTRY, OverlayPart};
use crate::state::private_place;
use crate::tree::attributes::Attributes;
use crate::tree::confined::{CallPath, Tree, is_missing, leads_elsewhere};
use crate::tree::content::{Digest, MOST_DIGESTED, digest, fill};
use crate::tree::copying::{Copying, Original, whatever};
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use crate::validate::change_set::PartChanges;
use pando_kernel::file::tree_removal::remove_tree;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What was removed, by the number of its operation.
pub(crate) const REMOVED: &str = "removed";
/// What another object has taken the place of, by its inode.
pub(crate) const REPLACED: &str = "replaced";
/// What was written over, by its inode.
pub(crate) const CONTENT: &str = "content";

/// What the kernel counts blocks in.
const BLOCK: u64 = 512;

/// Keeps what some parts' commit takes away, unless that takes more than `most` bytes: then it says how many.
/// `directory` is the transaction's.
pub(crate) fn keep(
    directory: &Path,
    parts: &[PartChanges],
    about: About,
    most: u64,
) -> Result<Result<Kept, u64>, CommitError> {
    let failed = |source| CommitError::Prepare { what: "keeping what is there before, for an undo".into(), source };
    let takes = |part: &PartChanges| Keeping::new(&part.part, &part.steps)?.takes();
    let bytes = parts.iter().map(takes).sum::<io::Result<u64>>().map_err(failed)?;
    if bytes > most {
        return Ok(Err(bytes));
    }
    // First: while it is there, what is kept on other mounts goes with the transaction.
    private_place::make_all(&directory.join(ENTRY)).map_err(failed)?;
    let kept = parts.iter().map(|part| {
        let entries = part.review()?.entries;
        keep_part(&part.part, &part.steps, entries).map_err(failed)
    });
    Ok(Ok(Kept { about, bytes, parts: kept.collect::<Result<_, _>>()? }))
}

fn keep_part(part: &OverlayPart, steps: &Steps, entries: Vec<Reviewed>) -> io::Result<PartKept> {
    let keeping = Keeping::new(part, steps)?;
    step();
    keeping.make_places()?;
    step();
    keeping.copy_content()?;
    if part.target.is_some() {
        keeping.copy_what_goes()?;
    }
    // Rights first: without a digest these are not given back.
    let (mut budget, updated) = (MOST_DIGESTED, steps.updated());
    let before = steps.finish.iter().map(|op| keeping.before(op, &updated, &mut budget)).collect::<io::Result<_>>()?;
    let contents = entries.iter().map(|entry| keeping.content(entry, &mut budget)).collect::<io::Result<_>>()?;
    Ok(PartKept { entries, contents, before, listing: keeping.listing()? })
}

struct Keeping<'a> {
    part: &'a OverlayPart,
    steps: &'a Steps,
    live: Tree,
    upper: Tree,
    index: Option<Tree>,
    places: MovedPlaces,
}

impl<'a> Keeping<'a> {
    fn new(part: &'a OverlayPart, steps: &'a Steps) -> io::Result<Self> {
        let (upper, index) = (Tree::open(&part.upper())?, part.index());
        let index = index.exists().then(|| Tree::open(&index)).transpose()?;
        Ok(Self { part, steps, live: part.live_tree()?, upper, index, places: MovedPlaces::of(steps) })
    }

    /// How many bytes of the disk it takes to keep what goes.
    fn takes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for op in &self.steps.change {
            bytes += match op {
                Op::Update { target, .. } => self.object(target)?.map_or(Ok(0), |object| held(&object))?,
                Op::Remove { at, .. } => self.held_below(&self.places.name_before(at))?,
                Op::Place { at, over: Some(_), .. } | Op::Move { at, over: Some(_), .. } => {
                    self.held_below(&self.places.name_before(at))?
                }
                _ => 0,
            };
        }
        Ok(bytes)
    }

    fn held_below(&self, path: &TreePath) -> io::Result<u64> {
        let (mut bytes, mut left) = (0, vec![path.clone()]);
        while let Some(path) = left.pop() {
            // What is mounted there is not taken away.
            let Some(stat) = there(self.live.look(&path))? else { continue };
            bytes += stat.st_blocks.cast_unsigned() * BLOCK;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                && let Some(names) = there(self.live.names(&path).map(Some))?
            {
                left.extend(names.iter().map(|name| path.join(name)));
            }
        }
        Ok(bytes)
    }

    fn make_places(&self) -> io::Result<()> {
        let kept = self.part.kept();
        private_place::make_all(&kept)?;
        for name in [REMOVED, REPLACED, CONTENT] {
            private_place::make_all(&kept.join(name))?;
        }
        Ok(())
    }

    /// Opens what an operation changes as a mere place, as it is before; nothing where the transaction has made it.
    fn object(&self, target: &OpTarget) -> io::Result<Option<OwnedFd>> {
        match target {
            OpTarget::Root => self.live.object(&TreePath::ROOT).map(Some),
            OpTarget::Known { identity, .. } => identity.open(&self.live).map(Some),
            OpTarget::Brought { ino: None, .. } => Ok(None),
            OpTarget::Brought { at, ino: Some(ino) } => {
                let Some(object) = there(self.live.object(&self.places.before(at)).map(Some))? else { return Ok(None) };
                let is_it = self.live.ident_of(&object, &rustix::fs::fstat(&object)?)? == *ino;
                Ok(is_it.then_some(object))
            }
            OpTarget::Staged(number) => {
                let origin = self.steps.stage.iter().find_map(|op| match op {
                    Op::StageLink { origin, slot } if slot == number => Some(origin),
                    _ => None,
                });
                origin.map(|origin| origin.identity.open(&self.live)).transpose()
            }
        }
    }

    fn before(&self, op: &Op, updated: &HashSet<&OpTarget>, budget: &mut u64) -> io::Result<Option<ObjectBefore>> {
        let Op::Attributes { target, source, .. } = op else { return Ok(None) };
        let Some(object) = self.object(target)? else { return Ok(None) };
        let object = CallPath::of(object)?;
        let attributes = Attributes::of(&object)?;
        let after = match (source, &self.index) {
            (Source::Index(path), Some(index)) => index.object(path)?,
            (Source::Index(path) | Source::Upper(path), _) => self.upper.object(path)?,
        };
        let gets_rights_back = attributes.are_of_file()
            && !updated.contains(target)
            && !attributes.is_same_but_for_time(&Attributes::of(&CallPath::of(after)?)?);
        // Others have not written to it, or it will be found out before the commit point.
        let content = match gets_rights_back.then(|| digest(&object, budget)).transpose()? {
            None => ContentLeft::Any,
            Some(digest) => digest.map_or(ContentLeft::Unknown, ContentLeft::Only),
        };
        Ok(Some(ObjectBefore { attributes, protection: Protection::of(&object)?, content }))
    }

    /// The digest of the new content of an entry. A file that only got another name has its content elsewhere.
    fn content(&self, entry: &Reviewed, budget: &mut u64) -> io::Result<Option<Digest>> {
        if !entry.content || entry.new.is_none() || entry.bytes == 0 {
            return Ok(None);
        }
        let file = match (entry.in_index(), &self.index) {
            (Some(path), Some(index)) => index.object(path)?,
            _ => self.upper.object(&entry.path)?,
        };
        digest(&CallPath::of(file)?, budget)
    }

    /// Copies what is about to be written over.
    fn copy_content(&self) -> io::Result<()> {
        let content = self.part.kept().join(CONTENT);
        for op in &self.steps.change {
            let Op::Update { target, ino, .. } = op else { continue };
            let Some(object) = self.object(target)? else { continue };
            let path = CallPath::of(object)?;
            let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let from = File::from(rustix::fs::open(path.text.as_c_str(), flags, Mode::empty())?);
            let to = File::options()
                .create(true)
                .truncate(true)
                .read(true)
                .write(true)
                .open(content.join(ino.to_string()))?;
            fill(&from, &rustix::fs::fstat(&from)?, &to)?;
            step();
        }
        Ok(())
    }

    /// Directories that are moved out of others before these are removed.
    fn moved(&self) -> HashSet<TreePath> {
        let moved = self.steps.stage.iter().filter_map(|op| match op {
            Op::StageDirectory { from, .. } => Some(from.clone()),
            _ => None,
        });
        moved.collect()
    }

    /// Lists what lies in directories that are about to be removed, where it is moved aside. What others do there from
    /// now on is a conflict until the commit point, and is told from it after that.
    fn listing(&self) -> io::Result<Option<Listing>> {
        if self.part.target.is_some() {
            return Ok(None);
        }
        let staged = self.steps.stage.iter().filter_map(|op| match op {
            Op::StageLink { origin, .. } => Some(origin.ino),
            _ => None,
        });
        let (moved, staged): (_, HashSet<u64>) = (self.moved(), staged.collect());
        let (mut listing, mut left) = (Listing::default(), Vec::new());
        for op in &self.steps.change {
            let Op::Remove { at, slot, .. } = op else { continue };
            let (from, kept) = (self.places.name_before(at), place(REMOVED, u64::from(*slot)));
            let Some(stat) = there(self.live.look(&from))?.filter(is_directory) else { continue };
            left.push((from, listing.add(None, kept.as_path().as_os_str(), &stat, false)));
            while let Some((directory, number)) = left.pop() {
                for name in there(self.live.names(&directory).map(Some))?.unwrap_or_default() {
                    let path = directory.join(&name);
                    let Some(stat) = there(self.live.look(&path))?.filter(|_| !moved.contains(&path)) else { continue };
                    let lives_on = stat.st_nlink > 1 || staged.contains(&stat.st_ino);
                    let number = listing.add(Some(number), &name, &stat, lives_on);
                    if is_directory(&stat) {
                        left.push((path, number));
                    }
                }
            }
        }
        Ok(Some(listing))
    }

    /// Copies what is about to be removed and replaced. What is moved out of it before is no part of it.
    fn copy_what_goes(&self) -> io::Result<()> {
        let kept = Tree::open(&self.part.kept())?;
        let copier = Copier { live: &self.live, kept: &kept, moved: self.moved(), known: RefCell::default() };
        for op in &self.steps.change {
            let (at, to) = match op {
                Op::Remove { at, slot, .. } => (at, place(REMOVED, u64::from(*slot))),
                Op::Place { at, over: Some(Replaced { ino, .. }), .. }
                | Op::Move { at, over: Some(Replaced { ino, .. }), .. } => (at, place(REPLACED, *ino)),
                _ => continue,
            };
            copier.copy(&self.places.name_before(at), &to)?;
            step();
        }
        Ok(())
    }
}

/// Removes what was kept for a commit that is not to be.
pub(crate) fn discard(directory: &Path, parts: &[OverlayPart]) {
    let kept = parts.iter().filter_map(OverlayPart::kept_beside).filter(|kept| private_place::is_private(kept));
    for place in kept.chain([directory.join(ENTRY)]).filter(|place| place.exists()) {
        // What stays goes with the transaction.
        let _ = remove_tree(&place);
    }
}

/// The place of something that is kept.
pub(crate) fn place(kind: &str, number: u64) -> TreePath {
    TreePath::ROOT.join(kind.as_ref()).join(number.to_string().as_ref())
}

struct Copier<'a> {
    live: &'a Tree,
    kept: &'a Tree,
    /// Directories that are moved out.
    moved: HashSet<TreePath>,
    /// Where files with several names were copied to.
    known: RefCell<HashMap<u64, TreePath>>,
}

impl Copier<'_> {
    fn copy(&self, from: &TreePath, to: &TreePath) -> io::Result<()> {
        let Some(original) = there(Original::open(self.live, from).map(Some))? else { return Ok(()) };
        if self.moved.contains(from) {
            return Ok(());
        }
        let several = |copying: &Copying<'_>, from: &TreePath, original: &Original, to: &TreePath| {
            self.several(copying, from, original, to)
        };
        let (attributes, several, admits) = (&|_: &mut Attributes| (), &several, &whatever);
        let copying = Copying { from: self.live, to: self.kept, attributes, with_marks: false, several, admits };
        if original.kind() != FileType::Directory {
            return copying.copy(from, &original, to);
        }
        let (parent, name) = self.kept.place(to)?;
        rustix::fs::mkdirat(&*parent, name, Mode::RWXU)?;
        for name in original.names()? {
            self.copy(&from.join(&name), &to.join(&name))?;
        }
        copying.attributes(&original, to)
    }

    fn several(&self, copying: &Copying<'_>, from: &TreePath, original: &Original, to: &TreePath) -> io::Result<()> {
        let ino = original.ident(self.live)?;
        if let Some(known) = self.known.borrow().get(&ino) {
            let ((parent, name), (new_parent, new)) = (self.kept.place(known)?, self.kept.place(to)?);
            return Ok(rustix::fs::linkat(&*parent, name, &*new_parent, new, AtFlags::empty())?);
        }
        self.known.borrow_mut().insert(ino, to.clone());
        copying.file(from, original, to)
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn held(object: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(object)?.st_blocks.cast_unsigned() * BLOCK)
}

/// Nothing where there is nothing, or what is there is mounted.
fn there<T>(found: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match found {
        Err(error) if is_missing(&error) || leads_elsewhere(&error) => Ok(None),
        found => found,
    }
}

/// Opens what is kept of a part, if it is this user's own and nobody else's.
pub(crate) fn open(kept: &Path) -> io::Result<Tree> {
    if !private_place::is_private(kept) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Tree::open(kept)
}

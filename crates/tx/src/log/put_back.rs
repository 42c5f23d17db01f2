//! What a commit did, undone in the view of a transaction: its operations in reverse, each taken back, but for what
//! somebody has changed since. The transaction is validated and committed like any other.

use super::as_left::{Since, changed_since, of_content};
use super::entries::Entry;
use super::held_files::{HeldFiles, has_no_directory};
use super::lifted::Lifted;
use crate::change::kept::{MovedPlaces, ObjectBefore, PartKept};
use crate::change::review::{Ids, Look};
use crate::change::selection::on_part;
use crate::change::{Op, OpTarget, Replaced, Sign, Steps};
use crate::journal::keep::{CONTENT, REMOVED, REPLACED, open, place};
use crate::state::overlay_part::OverlayPart;
use crate::state::record::Record;
use crate::state::target::Target;
use crate::tree::attributes::{Attributes, Moment, Which};
use crate::tree::confined::{CallPath, Tree, is_missing, leads_elsewhere};
use crate::tree::content::bring;
use crate::tree::inner_ids;
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use pando_kernel::file::confined::{Links, Root};
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// What was put back, and what was not.
#[derive(Debug, Default)]
pub struct PutBack {
    /// Paths that somebody has changed since the commit: they stand as they are.
    pub standing: Vec<Standing>,
}

/// A path that somebody has changed since a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The path, as it is in the view.
    pub path: PathBuf,
    /// What has become of it.
    since: Since,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.path.display(), self.since)
    }
}

/// Puts what a commit changed back, in the view of a transaction that another process holds and nobody has entered.
/// What is below none of `paths`, if there are any, may come back as well and is nobody's matter: the commit of the
/// transaction leaves it out.
///
/// # Errors
///
/// Where something cannot be looked at or put back. The transaction is fit for nothing but to be aborted then.
pub fn put_back(record: &Record, entry: &Entry, paths: &[PathBuf]) -> Result<PutBack, CallError> {
    let mut all = PutBack::default();
    let of_part = entry.journal.parts.iter().zip(&entry.kept.parts);
    for ((part, steps), kept) in of_part {
        let what = || format!("putting back what was changed on {}", part.live.display());
        let missing = || io::Error::new(io::ErrorKind::NotFound, "it is not mounted, or cannot be written to");
        let now = record.parts.iter().find(|now| now.live == part.live).ok_or_else(missing).context(what)?;
        let images = part.kept_in(&entry.directory);
        let standing = on_part_of(record, now, part, steps, kept, &images).context(what)?;
        let is_asked_for = |path: &TreePath| paths.is_empty() || paths.iter().any(|one| is_within(path, one, part));
        let standing = standing.into_iter().filter(|(path, _)| is_asked_for(path));
        let shown = |path: &TreePath| part.live.join(path.as_path());
        all.standing.extend(standing.map(|(path, since)| Standing { path: shown(&path), since }));
    }
    Ok(all)
}

fn is_within(path: &TreePath, asked: &Path, part: &OverlayPart) -> bool {
    on_part(asked, part).is_some_and(|asked| path.is_within(&asked))
}

fn on_part_of(
    record: &Record,
    now: &OverlayPart,
    then: &OverlayPart,
    steps: &Steps,
    kept: &PartKept,
    images: &Path,
) -> io::Result<BTreeMap<TreePath, Since>> {
    // It is not opened for reading: in a view that would count as a listing of it.
    let root = record.holder().opened(|pid| Ok(Root::of_process(pid)?))?;
    let view = Tree::opened(root.place(&now.live, Links::Followed)?.into(), &now.live, false);
    let (upper, images) = (Tree::open(&now.upper())?, open(images)?);
    let ids = now.target.clone().zip(then.target.as_ref());
    let ids = ids.map(|(now, then)| Target { began_with: then.first_id, ..now });
    let _owner = now.target.as_ref().map(Target::owner).transpose()?;
    let standing = changed_since(kept, steps, &view, Ids::of(now.target.as_ref()))?;
    lift_all(&view, kept, &standing)?;
    let root = Moment::modified(&view.stat(&TreePath::ROOT)?);
    let times = TimesLeft::of(&view, steps)?;
    let lifted = Lifted::new(&view);
    let files = HeldFiles::hold(
        &view,
        &upper,
        &images,
        &lifted,
        (steps, &standing),
        (kept.listing.as_ref(), now.target.is_some()),
    )?;
    let mut reverse = Reverse {
        view: &view,
        images: &images,
        files,
        lifted: &lifted,
        kept,
        places: MovedPlaces::of(steps),
        ids,
        standing,
        removed: steps.change.iter().filter_map(removed_name).collect(),
        emptied: BTreeSet::new(),
    };
    reverse.files(steps)?;
    for op in steps.change.iter().rev() {
        reverse.take_back(op)?;
    }
    for op in steps.stage.iter().rev() {
        reverse.unstage(op)?;
    }
    reverse.names_alone(steps)?;
    reverse.files.let_go()?;
    reverse.directories(steps, &times)?;
    if times.root_is_left_alone(steps) {
        Attributes::give_time(&view.object(&TreePath::ROOT)?, root)?;
    }
    lifted.give_again()?;
    reverse.protect_all()?;
    Ok(reverse.standing)
}

/// Lifts the protection of what the commit has protected: it is given again at the end to what had one before. What
/// stands keeps its own.
fn lift_all(view: &Tree, kept: &PartKept, standing: &BTreeMap<TreePath, Since>) -> io::Result<()> {
    let is_protected = |look: &Look| !look.protection().is_empty();
    let lifted = kept.entries.iter().filter(|entry| !standing.contains_key(&entry.path));
    for entry in lifted.filter(|entry| entry.new.as_ref().is_some_and(is_protected)) {
        if let Some(object) = there(view.object(&entry.path))? {
            Protection::default().give(object.as_fd())?;
        }
    }
    Ok(())
}

fn removed_name(op: &Op) -> Option<TreePath> {
    match op {
        Op::Remove { at, .. } => Some(at.clone()),
        _ => None,
    }
}

/// Which directories nobody has put names into, or taken any out of, since the commit: their times are put back too.
struct TimesLeft(Vec<bool>);

impl TimesLeft {
    fn of(view: &Tree, steps: &Steps) -> io::Result<Self> {
        let is_left = |op: &Op| -> io::Result<bool> {
            let Op::Attributes { target, modified: Some(modified), .. } = op else { return Ok(false) };
            let root = TreePath::ROOT;
            let place = target.place().unwrap_or(&root);
            let stat = there(view.stat(place))?;
            Ok(stat.is_some_and(|stat| Moment::modified(&stat) == *modified))
        };
        steps.finish.iter().map(is_left).collect::<io::Result<_>>().map(Self)
    }

    /// Whether no operation was about the root: then its time is what it was, whatever was held in it meanwhile.
    fn root_is_left_alone(&self, steps: &Steps) -> bool {
        let is_of_root = |op: &Op| matches!(op, Op::Attributes { target: OpTarget::Root, .. });
        !steps.finish.iter().zip(&self.0).any(|(op, is_left)| is_of_root(op) && *is_left)
    }
}

struct Reverse<'a> {
    view: &'a Tree,
    images: &'a Tree,
    files: HeldFiles<'a>,
    lifted: &'a Lifted<'a>,
    kept: &'a PartKept,
    places: MovedPlaces,
    /// Where the target has other ids by now.
    ids: Option<Target>,
    standing: BTreeMap<TreePath, Since>,
    /// The names that are removed by operations of their own.
    removed: BTreeSet<TreePath>,
    /// Directories that were put back, and out of which others had been moved: their times come last.
    emptied: BTreeSet<TreePath>,
}

impl Reverse<'_> {
    fn stands(&self, path: &TreePath) -> bool {
        self.standing.contains_key(path)
    }

    fn translate(&self, attributes: &mut Attributes) {
        let Some(target) = &self.ids else { return };
        attributes.uid = target.now(attributes.uid);
        attributes.gid = target.now(attributes.gid);
        for (name, value) in &mut attributes.xattrs {
            inner_ids::translate(name, value, |id| target.now(id));
        }
    }

    /// Contents and attributes of files, which keep both wherever their names go.
    fn files(&mut self, steps: &Steps) -> io::Result<()> {
        for op in &steps.change {
            if let Op::Update { target: OpTarget::Known { at, .. } | OpTarget::Brought { at, .. }, ino, .. } = op {
                self.content(at, *ino)?;
            }
        }
        for (op, before) in steps.finish.iter().zip(&self.kept.before) {
            let (Op::Attributes { target, .. }, Some(before)) = (op, before) else { continue };
            let (OpTarget::Known { at, .. } | OpTarget::Brought { at, .. }) = target else { continue };
            if !self.stands(at) && self.is_file(at)? {
                self.give(at, before, Which::All)?;
            }
        }
        Ok(())
    }

    /// The same of files that the commit changed by names which it then took away.
    fn names_alone(&mut self, steps: &Steps) -> io::Result<()> {
        let inode = |number: &u32| {
            steps.stage.iter().find_map(|op| match op {
                Op::StageLink { origin, slot } if slot == number => Some(origin.ino),
                _ => None,
            })
        };
        let place = |number: &u32| inode(number).and_then(|ino| Some((self.files.put_back(ino)?, ino)));
        for op in &steps.change {
            if let Op::Update { target: OpTarget::Staged(number), .. } = op
                && let Some((at, ino)) = place(number)
            {
                self.content(&at, ino)?;
            }
        }
        let updated = steps.updated();
        let mut changed = Vec::new();
        for (op, before) in steps.finish.iter().zip(&self.kept.before) {
            if let (Op::Attributes { target: target @ OpTarget::Staged(number), .. }, Some(before)) = (op, before)
                && let Some((at, _)) = place(number)
            {
                // The file lives on, and others may have written to it by its other names.
                let since = if updated.contains(target) { None } else { of_content(before, self.view.object(&at)?)? };
                match since {
                    Some(since) => changed.push((at, since)),
                    None => self.give(&at, before, Which::All)?,
                }
            }
        }
        self.standing.extend(changed);
        Ok(())
    }

    fn is_file(&self, at: &TreePath) -> io::Result<bool> {
        let found = there(self.view.stat(at))?;
        Ok(found.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory))
    }

    fn content(&self, at: &TreePath, ino: u64) -> io::Result<()> {
        if self.stands(at) || !self.is_file(at)? {
            return Ok(());
        }
        let image = self.images.file(&place(CONTENT, ino), false)?;
        bring(&image, &self.lifted.around(at, || self.view.file(at, true))?)
    }

    fn give(&self, at: &TreePath, before: &ObjectBefore, which: Which) -> io::Result<()> {
        let mut attributes = before.attributes.clone();
        self.translate(&mut attributes);
        let object = CallPath::of(self.view.object(at)?)?;
        self.lifted.around(at, || attributes.give(&object, which, || ()))
    }

    fn take_back(&mut self, op: &Op) -> io::Result<()> {
        match op {
            Op::Move { at, over, .. } => {
                self.remove(at)?;
                self.restore_replaced(at, *over)
            }
            Op::MakeDirectory { at, .. } => self.remove(at),
            Op::Place { at, slot, directory: true, .. } => {
                if !self.stands(at) {
                    self.files.take_directory(at, *slot)?;
                }
                Ok(())
            }
            Op::Place { at, over, .. } => {
                self.remove(at)?;
                self.restore_replaced(at, *over)
            }
            Op::Remove { at, slot, .. } => {
                let image = place(REMOVED, u64::from(*slot));
                // A directory that had been moved out before was not there to be removed.
                if there(self.images.stat(&image))?.is_some() { self.restore(&image, at) } else { Ok(()) }
            }
            Op::Update { .. }
            | Op::Attributes { .. }
            | Op::Protect { .. }
            | Op::Restrict { .. }
            | Op::StageDirectory { .. }
            | Op::StageLink { .. } => Ok(()),
        }
    }

    /// Removes what the commit has brought to a place; what others have changed or put there stays, and the directories
    /// that it lies in.
    fn remove(&self, at: &TreePath) -> io::Result<()> {
        let Some(stat) = there(self.view.stat(at))?.filter(|_| !self.stands(at)) else { return Ok(()) };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory {
            for name in self.view.names(at)? {
                self.remove(&at.join(&name))?;
            }
        }
        let (parent, name) = self.view.place(at)?;
        let how = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let remove = || match rustix::fs::unlinkat(&*parent, name, how) {
            // Something in it stands.
            Err(Errno::NOTEMPTY) if is_directory => Ok(()),
            removed => Ok(removed?),
        };
        self.lifted.around(at, remove)?;
        if is_directory {
            self.view.forget();
        }
        Ok(())
    }

    fn restore_replaced(&mut self, at: &TreePath, over: Option<Replaced>) -> io::Result<()> {
        let Some(over) = over.filter(|_| !self.stands(at)) else { return Ok(()) };
        let image = place(REPLACED, over.ino);
        if there(self.images.stat(&image))?.is_none() {
            // What a directory takes the place of is removed before, and comes back with that.
            if !self.removed.contains(at) {
                self.standing.insert(at.clone(), Since::NotKept);
            }
            return Ok(());
        }
        self.restore(&image, at)
    }

    fn restore(&mut self, image: &TreePath, at: &TreePath) -> io::Result<()> {
        // What was there has gone with what is removed: where a part of that stands, so does all of it.
        if self.stands(at) || there(self.view.stat(at))?.is_some() {
            self.standing.entry(at.clone()).or_insert(Since::ThereAgain);
            return Ok(());
        }
        match self.files.restore(image, at, &|attributes| self.translate(attributes)) {
            Err(error) if has_no_directory(&error) && there(self.images.stat(image))?.is_some() => {
                self.standing.insert(at.clone(), Since::NoDirectory);
                Ok(())
            }
            restored => {
                self.standing.extend(restored?);
                Ok(())
            }
        }
    }

    fn unstage(&mut self, op: &Op) -> io::Result<()> {
        let Op::StageDirectory { from, slot, .. } = op else { return Ok(()) };
        match self.files.place_directory(*slot, from) {
            Ok(_) => {}
            Err(error) if has_no_directory(&error) => {
                self.standing.insert(from.clone(), Since::NoDirectory);
            }
            Err(error) => return Err(error),
        }
        self.emptied.extend(from.split().map(|(parent, _)| parent));
        Ok(())
    }

    /// Attributes of directories, from the leaves up.
    fn directories(&self, steps: &Steps, times: &TimesLeft) -> io::Result<()> {
        for directory in &self.emptied {
            self.time_of_removed(steps, directory)?;
        }
        for ((op, before), is_left) in steps.finish.iter().zip(&self.kept.before).zip(&times.0) {
            let (Op::Attributes { target, which, .. }, Some(before)) = (op, before) else { continue };
            let at = match target {
                OpTarget::Root => TreePath::ROOT,
                OpTarget::Known { at, .. } | OpTarget::Brought { at, .. } if !self.stands(at) => self.places.before(at),
                OpTarget::Known { .. } | OpTarget::Brought { .. } | OpTarget::Staged(_) => continue,
            };
            // A directory may be there again where the commit had put a file: that has its own attributes.
            let found = there(self.view.stat(&at))?;
            let is_there = found.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
            if !is_there || !before.attributes.are_of_directory() || self.stands(&at) {
                continue;
            }
            match (which, is_left) {
                (Which::TimeAlone, false) => {}
                (Which::TimeAlone, true) => self.give(&at, before, Which::TimeAlone)?,
                (_, true) => self.give(&at, before, Which::All)?,
                (_, false) => self.give(&at, before, Which::ButTime)?,
            }
        }
        Ok(())
    }

    /// A directory that was put back has the time of that, once others were moved into it again.
    fn time_of_removed(&self, steps: &Steps, directory: &TreePath) -> io::Result<()> {
        for op in &steps.change {
            let Op::Remove { at, slot, .. } = op else { continue };
            let at = self.places.name_before(at);
            if !directory.is_within(&at) {
                continue;
            }
            let removed = place(REMOVED, u64::from(*slot));
            let image = directory.parts().skip(at.depth()).fold(removed.clone(), |image, name| image.join(name));
            if let (Some(time), Some(object)) =
                (self.files.time_of(&removed, &image)?, there(self.view.object(directory))?)
            {
                Attributes::give_time(&object, time)?;
            }
        }
        Ok(())
    }

    /// Protects again what was protected before.
    fn protect_all(&self) -> io::Result<()> {
        for entry in &self.kept.entries {
            let Some(old) = entry.old.as_ref().filter(|old| !old.protection().is_empty()) else { continue };
            let at = if entry.replaced || entry.sign == Sign::Removed {
                // The object that was at the name, whatever has come there since.
                self.places.name_before(&entry.path)
            } else if let Some(from) = entry.moved_from.as_ref().or(entry.linked_to.as_ref()) {
                from.clone()
            } else if entry.sign == Sign::Added {
                // A file that has got this name and has others, which nobody knows: it loses this one.
                continue;
            } else {
                self.places.before(&entry.path)
            };
            if !self.stands(&entry.path)
                && let Some(object) = there(self.view.object(&at))?
            {
                old.protected().give(object.as_fd())?;
            }
        }
        Ok(())
    }
}

pub(super) fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if is_missing(&error) || leads_elsewhere(&error) => Ok(None),
        found => found.map(Some),
    }
}

//! What is different where a commit is a user's who is not root: names change in no directory but those that were
//! judged, and what he or others put in its way is left as it is.

use super::names::beside;
use super::{Apply, PLACE, slot_name};
use crate::change::{Op, OpTarget, Replaced, Steps};
use crate::crash::step;
use crate::tree::attributes::{Attributes, Moment};
use crate::tree::confined::{is_missing, leads_elsewhere};
use crate::tree::identity::{Directories, Identity, is_gone};
use crate::tree::path::TreePath;
use rustix::fs::{Mode, RenameFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// A directory is none of those in which a user's commit may change names.
#[derive(Debug, thiserror::Error)]
#[error("a directory was replaced by one that may not be changed")]
struct NotWithin;

/// What a user's commit keeps to on one part.
pub(super) struct Within {
    /// The directories that names may be changed in.
    directories: Directories,
    /// The files that are given another name aside, by their numbers there.
    aside: HashMap<u32, Identity>,
    /// The directories that the commit makes, which are root's until they get their attributes.
    made: HashSet<TreePath>,
}

impl Within {
    pub(super) fn new(directories: Directories, steps: &Steps) -> Self {
        let link = |op: &Op| match op {
            Op::StageLink { origin, slot } => Some((*slot, origin.identity.clone())),
            _ => None,
        };
        let new = |op: &Op| match op {
            Op::MakeDirectory { at, .. } => Some(at.clone()),
            _ => None,
        };
        let (aside, made) = (steps.stage.iter().filter_map(link), steps.change.iter().filter_map(new));
        Self { directories, aside: aside.collect(), made: made.collect() }
    }
}

/// Whether an error of a user's commit says that others, or he himself, have meanwhile put something in its way which
/// it must not clear away: then the operation is left out, as if that had happened right after it. What was to be
/// written is never left out.
fn is_his_own_matter(op: &Op, error: &io::Error) -> bool {
    if matches!(op, Op::Update { .. }) {
        return false;
    }
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    // There are as many extended attributes as fit, and he can change them while they are.
    let is_of_attributes = matches!(op, Op::Attributes { .. })
        && matches!(errno, Some(Errno::NOSPC | Errno::RANGE | Errno::NODATA | Errno::DQUOT));
    error.get_ref().is_some_and(|inner| inner.is::<NotWithin>())
        || is_of_attributes
        || matches!(
            errno,
            Some(
                Errno::PERM
                    | Errno::ACCESS
                    | Errno::EXIST
                    | Errno::NOTEMPTY
                    | Errno::ISDIR
                    | Errno::MLINK
                    | Errno::BUSY
                    | Errno::STALE
            )
        )
        || is_missing(error)
        || leads_elsewhere(error)
}

impl Apply {
    /// The directory that a path is in, where a name is about to be changed, and that name.
    ///
    /// # Errors
    ///
    /// [`NotWithin`], where the user whose commit it is was not found to be allowed to change that directory: it has
    /// taken the place of the one that he may.
    pub(super) fn place_to_change<'a>(&self, at: &'a TreePath) -> io::Result<(Rc<OwnedFd>, &'a OsStr)> {
        let (directory, name) = self.live.place(at)?;
        let Some(within) = &self.within else { return Ok((directory, name)) };
        let its = |one: BorrowedFd<'_>| rustix::fs::fstat(one).map(|found| (found.st_dev, found.st_ino));
        let here = its(directory.as_fd())?;
        let judged = within.directories.get(&here.1).ok_or_else(|| io::Error::other(NotWithin))?;
        // A number is given to another as soon as it is free: the one that was judged must be there, and be this one.
        // By its own handle this one is not known again, where an overlay has copied it up.
        match judged.open(&self.live) {
            Ok(known) if its(known.as_fd())? == here => Ok((directory, name)),
            Err(error) if !is_gone(&error) => Err(error),
            _ => Err(io::Error::other(NotWithin)),
        }
    }

    /// What came of an operation, where it is a user's: what is his own matter is left out.
    pub(super) fn came_for_user(&self, op: &Op, done: io::Result<()>) -> io::Result<()> {
        if done.as_ref().is_err_and(|error| is_his_own_matter(op, error)) { Ok(()) } else { done }
    }

    /// A file that could not be given one more name aside, since he has given it as many as there can be; nothing where
    /// it is gone.
    pub(super) fn not_aside(&self, slot: u32) -> io::Result<Option<OwnedFd>> {
        let file = self.within.as_ref().and_then(|within| within.aside.get(&slot)).ok_or(io::ErrorKind::NotFound)?;
        match file.open(&self.live) {
            Err(error) if is_gone(&error) => Ok(None),
            object => object.map(Some),
        }
    }

    /// Whether somebody else has got an object since it was judged: then it keeps its attributes. What the commit has
    /// made itself has no owner yet.
    pub(super) fn is_anothers_by_now(
        &self,
        object: impl AsFd,
        target: &OpTarget,
        wanted: &Attributes,
    ) -> io::Result<bool> {
        let Some(within) = &self.within else { return Ok(false) };
        let is_made = target.place().is_some_and(|at| within.made.contains(at));
        Ok(!is_made && rustix::fs::fstat(object)?.st_uid != wanted.uid)
    }

    /// Removes a name. In a directory that others may write to, something of theirs may have got it since that was
    /// looked at: what was taken by mistake is given back.
    pub(super) fn remove_for_user(&self, at: &TreePath, ino: u64, changed: Moment, slot: u32) -> io::Result<()> {
        let (directory, name) = self.place_to_change(at)?;
        let (trash, slot) = (self.trash_tree()?, slot_name(slot));
        step();
        rustix::fs::renameat(&*directory, name, trash.root(), &*slot)?;
        self.live.forget();
        step();
        self.give_back((trash.root(), &slot), (directory.as_fd(), name), (ino, changed))
    }

    /// Gives something back that an earlier process has taken by mistake, before it was killed.
    pub(super) fn give_back_removed(&self, at: &TreePath, ino: u64, changed: Moment, slot: u32) -> io::Result<()> {
        let slot = slot_name(slot);
        match self.place_to_change(at) {
            Ok((directory, name)) => {
                self.give_back((self.trash_tree()?.root(), &slot), (directory.as_fd(), name), (ino, changed))
            }
            Err(_) => Ok(()),
        }
    }

    fn give_back(
        &self,
        (from, taken): (BorrowedFd<'_>, &OsStr),
        (directory, name): (BorrowedFd<'_>, &OsStr),
        meant: (u64, Moment),
    ) -> io::Result<()> {
        match self.is_it((from, taken), meant)? {
            None | Some(true) => Ok(()),
            Some(false) => {
                beside((from, taken), (directory, name), Some(name))?;
                self.live.forget();
                Ok(())
            }
        }
    }

    /// Whether what has a name is what was meant; nothing where nothing has it.
    fn is_it(&self, (from, name): (BorrowedFd<'_>, &OsStr), (ino, changed): (u64, Moment)) -> io::Result<Option<bool>> {
        let object = match rustix::fs::openat(from, name, PLACE, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            object => object?,
        };
        let found = self.live.ident_of(&object, &rustix::fs::fstat(&object)?)?;
        Ok(Some(found == ino && !self.is_born_after(&object, changed)?))
    }

    /// Gives something its name: what others have put there is not moved away, but left, and what was to come is not
    /// put there. What it takes the place of is looked at once both have changed places, since until then others may
    /// put something of theirs there.
    pub(super) fn put_for_user(
        &self,
        (from, name): (BorrowedFd<'_>, &OsStr),
        (directory, to): (BorrowedFd<'_>, &OsStr),
        over: Option<Replaced>,
    ) -> io::Result<()> {
        let put = |flags| rustix::fs::renameat_with(from, name, directory, to, flags);
        let Some(over) = over else { return Ok(put(RenameFlags::NOREPLACE)?) };
        let meant = (over.ino, over.changed);
        match self.is_it((directory, to), meant)? {
            Some(true) => {}
            _ => return Ok(put(RenameFlags::NOREPLACE)?),
        }
        step();
        match put(RenameFlags::EXCHANGE) {
            // It was removed since.
            Err(Errno::NOENT) => return Ok(put(RenameFlags::NOREPLACE)?),
            exchanged => exchanged?,
        }
        self.live.forget();
        step();
        if self.is_it((from, name), meant)? == Some(true) {
            return Ok(());
        }
        put(RenameFlags::EXCHANGE)?;
        Err(Errno::EXIST.into())
    }
}

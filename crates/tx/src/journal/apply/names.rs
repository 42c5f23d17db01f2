//! Names of the live tree, which others may take while a commit is under way: nothing of theirs is deleted, and nothing
//! that is theirs is taken for what was validated.

use super::disarming::Armed;
use super::{Apply, ApplyError, PLACE, slot_name};
use crate::change::{Op, OpTarget, Replaced, Source, Steps};
use crate::crash::step;
use crate::tree::attributes::Moment;
use crate::tree::confined::{CallPath, Tree, is_missing, leads_elsewhere};
use crate::tree::content::{fill, same_content};
use crate::tree::path::TreePath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, StatxFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// What stands behind the name of something that others have put where a commit had to put something else.
const KEPT: &str = ".pando-kept";

impl Apply {
    /// Brings the names of what was put aside to the disk. Others wait at a gate meanwhile: to sync all of the file
    /// system could take long.
    pub(crate) fn sync_stage(&self) -> Result<(), ApplyError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let sync = || match rustix::fs::fsync(rustix::fs::openat(self.stage_tree()?.root(), ".", flags, Mode::empty())?)
        {
            // Its file system has nothing that could be waited for.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(errno.into()),
        };
        let what = || format!("bringing what was put aside on {} to the disk", self.live.path().display());
        sync().map_err(|source| ApplyError::new(what(), source))
    }

    /// Puts those files aside once more that a loss of power has taken from there: what is removed of them from now on
    /// would have no name at all. What is protected was not needed there any more.
    pub(crate) fn stage_links_again(&self, steps: &Steps) -> Result<(), ApplyError> {
        let is_protected = |number: u32| {
            steps.finish.iter().any(|op| matches!(op, Op::Protect { slot: Some(slot), .. } if *slot == number))
        };
        let links = steps.stage.iter().filter(|op| matches!(op, Op::StageLink { slot, .. } if !is_protected(*slot)));
        links.filter(|_| self.target.is_none()).try_for_each(|op| self.operate(op))
    }

    /// Moves a directory to where others do not come, if it is the one that is meant: since it was looked at, others
    /// may have put one in its place that they could not take away by themselves.
    pub(super) fn take_away(&self, at: &TreePath, ino: u64, into: &Tree, slot: u32) -> io::Result<()> {
        let (directory, name) = self.place_to_change(at)?;
        rustix::fs::renameat(&*directory, name, into.root(), slot_name(slot))?;
        self.live.forget();
        let taken = rustix::fs::openat(into.root(), slot_name(slot), PLACE, Mode::empty())?;
        if self.target.is_none() && self.live.ident_of(&taken, &rustix::fs::fstat(&taken)?)? != ino {
            // Nothing is ever done to what lies aside under another's number.
            beside((into.root(), &slot_name(slot)), (directory.as_fd(), name), Some(name))?;
            self.live.forget();
        }
        Ok(())
    }

    /// Gives something its name. What others have put there meanwhile is nobody's to delete: it gets another name
    /// beside it.
    pub(super) fn put(
        &self,
        from: BorrowedFd<'_>,
        name: &OsStr,
        at: &TreePath,
        over: Option<Replaced>,
    ) -> io::Result<()> {
        let (directory, to) = self.place_to_change(at)?;
        self.keep_replaced(at, over)?;
        if self.within.is_some() {
            return self.put_for_user((from, name), (directory.as_fd(), to), over);
        }
        if self.target.is_some() || !self.again || !self.is_anothers(at, over)? {
            let armed = if over.is_some() { self.armed(at, 0)? } else { None };
            match rustix::fs::renameat(from, name, &*directory, to) {
                // A directory that has something in it by now, or a file where there was none.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR | Errno::NOTDIR) if self.target.is_none() => {}
                renamed => {
                    renamed?;
                    armed.into_iter().for_each(Armed::disarm);
                    return Ok(());
                }
            }
        }
        self.keep_theirs(directory.as_fd(), to)?;
        step();
        Ok(rustix::fs::renameat(from, name, &*directory, to)?)
    }

    /// Gives what a rename is about to take the place of another name, where that is kept. One that has as many names
    /// as a file can have is lost.
    fn keep_replaced(&self, at: &TreePath, over: Option<Replaced>) -> io::Result<()> {
        let (Some(replaced), Some(over)) = (&self.replaced, over) else { return Ok(()) };
        if self.live.look_ident(at)?.is_none_or(|(_, ino)| ino != over.ino) {
            return Ok(());
        }
        let ((directory, name), kept) = (self.live.place(at)?, over.ino.to_string());
        match rustix::fs::linkat(&*directory, name, replaced.root(), &*kept, AtFlags::empty()) {
            Ok(()) => step(),
            Err(Errno::EXIST | Errno::MLINK) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// What is at a path, and what tells it from all others; nothing where others have put something else in the place
    /// of a directory on the way.
    pub(super) fn found(&self, at: &TreePath) -> io::Result<Option<(Stat, u64)>> {
        match self.live.look_ident(at) {
            Err(error) if self.target.is_none() && (is_missing(&error) || leads_elsewhere(&error)) => Ok(None),
            found => found,
        }
    }

    /// Makes the directories on the way to a path that others have moved or removed after the commit point, root's
    /// alone; what they have put in the place of one gets another name beside it.
    pub(super) fn make_way(&self, at: &TreePath) -> io::Result<()> {
        let parts: Vec<&OsStr> = at.parts().collect();
        let mut way = TreePath::ROOT;
        for name in &parts[..parts.len().saturating_sub(1)] {
            let around = self.live.directory(&way)?;
            way = way.join(name);
            let is_directory = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            match self.live.look(&way)? {
                Some(stat) if is_directory(stat) => continue,
                Some(_) => self.keep_theirs(around.as_fd(), name)?,
                None => {}
            }
            step();
            match rustix::fs::mkdirat(&*around, *name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            self.live.forget();
        }
        Ok(())
    }

    /// Gives what has this inode another name, beside it, if others have written to it since a moment, or to what lies
    /// in it. A file that has more names keeps those, and what was made after `changed` is another one.
    pub(super) fn keep_named(&self, at: &TreePath, (ino, changed): (u64, Moment), since: Moment) -> io::Result<()> {
        let Some((stat, _)) = self.found(at)?.filter(|(_, found)| *found == ino) else { return Ok(()) };
        if self.is_younger(at, changed)? {
            return Ok(());
        }
        let is_newer = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.has_newer(at, since)?,
            FileType::RegularFile => stat.st_nlink == 1 && was_written(&stat, since),
            _ => false,
        };
        if !is_newer {
            return Ok(());
        }
        let (directory, name) = self.live.place(at)?;
        self.keep_theirs(directory.as_fd(), name)
    }

    /// Whether something in a directory was made, or written to, since a moment, however deep it lies.
    fn has_newer(&self, at: &TreePath, since: Moment) -> io::Result<bool> {
        let mut directories = vec![at.clone()];
        while let Some(directory) = directories.pop() {
            for name in self.live.names(&directory)? {
                let child = directory.join(&name);
                let Some((stat, ino)) = self.live.look_ident(&child)? else { continue };
                let kind = FileType::from_raw_mode(stat.st_mode);
                // What the commit has written to lives on by another name.
                let is_own = self.written.contains(&ino);
                let is_written = kind == FileType::RegularFile && !is_own && was_written(&stat, since);
                if is_written || self.is_younger(&child, since)? {
                    return Ok(true);
                }
                if kind == FileType::Directory {
                    directories.push(child);
                }
            }
        }
        Ok(false)
    }

    /// Keeps a copy of a file that others have written to since a moment, beside it, before its content becomes
    /// another; with `size` only if it has more bytes than that, and than it will have.
    pub(super) fn keep_content(
        &self,
        (source, target): (&Source, &OpTarget),
        at: &TreePath,
        size: Option<u64>,
        since: Moment,
    ) -> io::Result<()> {
        let Some(object) = self.object(target)? else { return Ok(()) };
        let stat = rustix::fs::fstat(&object)?;
        if !was_written(&stat, since) {
            return Ok(());
        }
        let (tree, path) = self.source(source)?;
        let call = CallPath::of(object)?;
        let new = tree.file(&path, false)?;
        let (comes, has) = (tree.stat(&path)?.st_size.cast_unsigned(), stat.st_size.cast_unsigned());
        if size.is_some_and(|size| has <= size.max(comes)) || comes == has && same_content(&new, &call)? {
            return Ok(());
        }
        let theirs = rustix::fs::open(call.text.as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into();
        self.keep_copy(at, &theirs, &stat)
    }

    /// Keeps a copy of a file that others have appended to while its new content came, before it is cut.
    pub(super) fn keep_appended(&self, (new, to): (&File, &File), target: &OpTarget, before: i64) -> io::Result<()> {
        let OpTarget::Known { at, .. } = target else { return Ok(()) };
        // Of what a user's commit overwrites, root makes no copies: nobody has judged the directory that `at` leads to.
        if self.within.is_some() {
            return Ok(());
        }
        let (comes, stat) = (rustix::fs::fstat(new)?, rustix::fs::fstat(to)?);
        if self.progress.since().is_none() || self.target.is_some() || stat.st_size <= before.max(comes.st_size) {
            return Ok(());
        }
        self.keep_copy(at, to, &stat)
    }

    /// Keeps a copy of a file beside the name that it has, or had.
    fn keep_copy(&self, at: &TreePath, theirs: &File, stat: &Stat) -> io::Result<()> {
        let Some((directory, name)) = self.live.place(at).ok() else { return Ok(()) };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (mut number, private) = (0, Mode::RUSR | Mode::WUSR);
        let copy = loop {
            match rustix::fs::openat(&*directory, kept_name(name, number), flags, private) {
                Err(Errno::EXIST) => number += 1,
                opened => break opened?.into(),
            }
        };
        fill(theirs, stat, &copy)
    }

    /// Whether what is at a path, if anything is, is not what was there when the commit was validated.
    fn is_anothers(&self, at: &TreePath, over: Option<Replaced>) -> io::Result<bool> {
        match (self.live.look_ident(at)?, over) {
            (None, _) => Ok(false),
            (Some((_, ino)), Some(over)) if over.ino == ino => self.is_younger(at, over.changed),
            (Some(_), _) => Ok(true),
        }
    }

    /// Whether what is at a path was made after a moment, as far as the file system tells: others have deleted what was
    /// there before a recovery, and what they made has got its number.
    pub(super) fn is_younger(&self, at: &TreePath, moment: Moment) -> io::Result<bool> {
        self.is_born_after(self.live.object(at)?, moment)
    }

    /// The same for an open object.
    pub(super) fn is_born_after(&self, object: impl AsFd, moment: Moment) -> io::Result<bool> {
        let told = rustix::fs::statx(object, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
        let born = Moment { seconds: told.stx_btime.tv_sec, nanoseconds: told.stx_btime.tv_nsec };
        Ok(self.target.is_none() && told.stx_mask & StatxFlags::BTIME.bits() != 0 && born > moment)
    }

    /// Gives what has a name another one, in the same directory.
    fn keep_theirs(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        beside((directory, name), (directory, name), None)?;
        self.live.forget();
        Ok(())
    }
}

/// Whether a file was written to since a moment. A time that is yet to come was set by hand.
fn was_written(stat: &Stat, since: Moment) -> bool {
    let modified = Moment::modified(stat);
    modified.is_since(since) && modified <= Moment::exactly_now()
}

/// Moves something to a name of a directory that is free: `first`, if one is given, or one that tells what it was
/// called there. Where it is gone there is nothing to do.
pub(super) fn beside(
    (from, old): (BorrowedFd<'_>, &OsStr),
    (directory, name): (BorrowedFd<'_>, &OsStr),
    first: Option<&OsStr>,
) -> io::Result<()> {
    let numbered = (0_u32..).map(|number| kept_name(name, number));
    for free in first.map(OsStr::to_owned).into_iter().chain(numbered) {
        match rustix::fs::renameat_with(from, old, directory, &free, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => break,
            renamed => return Ok(renamed?),
        }
    }
    Ok(())
}

/// The name of what was at a name, the first or a later one.
fn kept_name(name: &OsStr, number: u32) -> OsString {
    /// The longest name that file systems have, less the longest number.
    const LONGEST: usize = 255 - KEPT.len() - 10;
    let mut kept = OsStr::from_bytes(&name.as_bytes()[..name.len().min(LONGEST)]).to_owned();
    kept.push(KEPT);
    if number > 0 {
        kept.push(number.to_string());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moved_beside_takes_no_others_name() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let directory = std::fs::File::open(place.path()).unwrap();
        for content in ["one", "two", "three"] {
            std::fs::write(at("f"), content).unwrap();
            beside((directory.as_fd(), "f".as_ref()), (directory.as_fd(), "f".as_ref()), None).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
        assert_eq!(["f.pando-kept", "f.pando-kept1", "f.pando-kept2"].map(read), ["one", "two", "three"]);
        assert!(!at("f").exists());
        std::fs::write(at("aside"), "back").unwrap();
        let back =
            || beside((directory.as_fd(), "aside".as_ref()), (directory.as_fd(), "f".as_ref()), Some("f".as_ref()));
        back().unwrap();
        back().unwrap();
        assert_eq!(read("f"), "back");
        assert!(kept_name(OsStr::from_bytes(&[b'n'; 255]), u32::MAX).len() <= 255);
    }
}

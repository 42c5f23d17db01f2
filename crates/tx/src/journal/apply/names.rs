//! Names of the live tree, which others may take while a commit is under way: nothing of theirs is deleted, and nothing
//! that is theirs is taken for what was validated.

use super::{Apply, PLACE, slot_name};
use crate::change::Replaced;
use crate::crash::step;
use crate::tree::attributes::Moment;
use crate::tree::confined::Tree;
use crate::tree::path::TreePath;
use rustix::fs::{AtFlags, Mode, RenameFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// What stands behind the name of something that others have put where a commit had to put something else.
const KEPT: &str = ".pando-kept";

impl Apply {
    /// Moves a directory to where others do not come, if it is the one that is meant: since it was looked at, others
    /// may have put one in its place that they could not take away by themselves.
    pub(super) fn take_away(&self, at: &TreePath, ino: u64, into: &Tree, slot: u32) -> io::Result<()> {
        let (directory, name) = self.live.place(at)?;
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
        let (directory, to) = self.live.place(at)?;
        self.keep_replaced(at, over)?;
        if self.target.is_some() || !self.again || !self.is_anothers(at, over)? {
            match rustix::fs::renameat(from, name, &*directory, to) {
                // A directory that has something in it by now, or a file where there was none.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR | Errno::NOTDIR) if self.target.is_none() => {}
                renamed => return Ok(renamed?),
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
        let object = self.live.object(at)?;
        let told = rustix::fs::statx(&object, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
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

/// Moves something to a name of a directory that is free: `first`, if one is given, or one that tells what it was
/// called there. Where it is gone there is nothing to do.
fn beside(
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

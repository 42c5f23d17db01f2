//! Copying a tree of files as it lies, from a place where others rename, replace and write meanwhile.
//!
//! A guest's own files are copied while it runs. A copier that goes by paths is led by the guest's root: a directory
//! that was looked at is a link to one of the host's a moment later, and root reads, or writes, there. So both sides
//! are walked name by name through descriptors of directories ([`Chain`]), an object is opened once and then only asked
//! by its descriptor, no link is followed, and no mount is entered.
//!
//! ```text
//!   Copying::new(from, to, …)  ─▶ all()       everything in `from`, and what `from` itself has
//!                              ├─▶ names(…)   some of it, of one directory
//!   directory_below(top, path) ─▶ a directory on which no name of the way is a link
//!   Attributes::of(object)     ─▶ give(object)
//! ```
//!
//! As it lies: owner, mode, times, every extended attribute, hard links, holes, whiteouts, sockets. The caller says
//! what is shared with the source where the file system can: to share a file that was written to a moment ago waits for
//! the disk.

mod attributes;
mod content;
mod refusal;
#[cfg(test)]
mod tests;

pub use attributes::Attributes;
pub use refusal::TreeCopyError;

use crate::file::directory_chain::{Chain, Identity, identity, look_at};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, linkat, makedev, mkdirat, mknodat, openat, openat2,
    readlinkat, symlinkat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// `openat2` gives EAGAIN where a rename anywhere on the machine raced with it; the next try nearly always succeeds.
const MOST_TRIES: u32 = 64;

/// Bytes of names that are kept at a time: a tree may have as many as the disk has room for, and the process that
/// copies it pays for them.
pub const MOST_KEPT: usize = 256 << 20;

/// What keeping a name of some length takes, about.
const fn weight(length: usize) -> usize {
    length + 64
}

const CONFINED: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// The directory `path` below another, on whose way there is no link and no mount.
///
/// # Errors
///
/// Those of openat2(2): ELOOP for a link on the way, EXDEV for a mount.
pub fn directory_below(top: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    opened(top, path, DIRECTORY)
}

/// The object itself that has a name in a directory, to be asked about and copied: no link is followed, nothing is done
/// by opening it.
///
/// # Errors
///
/// Those of openat2(2): EXDEV where something is mounted on it.
pub fn object_in(directory: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    opened(directory, Path::new(name), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)
}

/// Copies the content of a regular file into an empty one, holes kept, as far as it goes when it is begun: who appends
/// to it meanwhile makes the copy no longer.
///
/// # Errors
///
/// Those of read(2) and write(2).
pub fn copy_content(from: &File, to: BorrowedFd<'_>) -> io::Result<()> {
    Ok(content::copy_open(from, to, u64::MAX)?)
}

fn opened(top: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    for _ in 1..MOST_TRIES {
        match openat2(top, path, flags, Mode::empty(), CONFINED) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    openat2(top, path, flags, Mode::empty(), CONFINED)
}

/// The names in an open directory. One that was removed and made again meanwhile comes once.
///
/// # Errors
///
/// Those of getdents64(2); E2BIG where there are more names than are worth keeping in memory.
pub fn names_in(directory: BorrowedFd<'_>) -> Result<Vec<OsString>, Errno> {
    let (mut names, mut bytes) = (Vec::new(), 0);
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            bytes += weight(name.to_bytes().len());
            if bytes > MOST_KEPT {
                return Err(Errno::TOOBIG);
            }
            names.push((entry.ino(), OsString::from_vec(name.to_bytes().to_vec())));
        }
    }
    names.sort_unstable_by(|a, b| a.1.cmp(&b.1));
    names.dedup_by(|a, b| a.1 == b.1);
    // The order in which a disk has them.
    names.sort_unstable_by_key(|(inode, _)| *inode);
    Ok(names.into_iter().map(|(_, name)| name).collect())
}

/// One copying: from a directory into another, in which nobody else writes.
pub struct Copying<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    share_from: u64,
    copied: &'a mut dyn FnMut(&Path, &Statx),
    /// Where the first name of each file with several names went.
    links: HashMap<Identity, PathBuf>,
    /// Bytes of names that are kept now.
    kept: usize,
}

impl std::fmt::Debug for Copying<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copying").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}

/// A directory on the way from where a walk began to where it stands.
struct Level {
    path: PathBuf,
    /// What it was like when it was entered; nothing for one that is not copied itself.
    own: Option<(Statx, Attributes)>,
    names: std::vec::IntoIter<OsString>,
    /// Bytes of these, as far as they are counted.
    kept: usize,
}

struct Sides {
    from: Chain,
    to: Chain,
}

impl<'a> Copying<'a> {
    /// Both directories are at the top: paths are relative to them. `share_from` bytes is the least that a file has
    /// whose blocks are shared (FICLONE) where the file system can. `copied` is told of each object that was copied, as
    /// it was before its content was read.
    pub fn new(
        from: BorrowedFd<'a>,
        to: BorrowedFd<'a>,
        share_from: u64,
        copied: &'a mut dyn FnMut(&Path, &Statx),
    ) -> Self {
        Self { from, to, share_from, copied, links: HashMap::new(), kept: 0 }
    }

    /// Copies everything into the empty directory at the top, which gets the attributes of the other. What goes away
    /// meanwhile is not copied.
    ///
    /// # Errors
    ///
    /// [`TreeCopyError`], with what was copied before it still there.
    pub fn all(mut self) -> Result<(), TreeCopyError> {
        let top = Path::new("");
        let failed = |errno| TreeCopyError::read(top, errno);
        let from = directory_below(self.from, top).map_err(failed)?;
        let to = directory_below(self.to, top).map_err(|errno| TreeCopyError::write("open", top, errno))?;
        let level = self.level(from.as_fd(), top.to_owned())?;
        self.walk(Sides { from: Chain::new(from), to: Chain::new(to) }, level)
    }

    /// Copies some names of a directory, with everything in them, into the directory of the same path. None of them may
    /// be there yet.
    ///
    /// # Errors
    ///
    /// [`TreeCopyError`], with what was copied before it still there.
    pub fn names(&mut self, directory: &Path, names: Vec<OsString>) -> Result<(), TreeCopyError> {
        let from = directory_below(self.from, directory).map_err(|errno| TreeCopyError::read(directory, errno))?;
        let to = directory_below(self.to, directory).map_err(|errno| TreeCopyError::write("open", directory, errno))?;
        let level = Level { path: directory.to_owned(), own: None, names: names.into_iter(), kept: 0 };
        self.walk(Sides { from: Chain::new(from), to: Chain::new(to) }, level)
    }

    fn walk(&mut self, mut sides: Sides, level: Level) -> Result<(), TreeCopyError> {
        let mut levels = vec![level];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.next() else {
                let Some(done) = levels.pop() else { break };
                self.leave(&mut sides, done)?;
                continue;
            };
            let path = level.path.join(&name);
            if let Some(below) = self.entry(&mut sides, path, &name)? {
                levels.push(below);
            }
        }
        Ok(())
    }

    /// Gives a directory its attributes, now that nothing in the copy changes any more, and goes up.
    fn leave(&mut self, sides: &mut Sides, level: Level) -> Result<(), TreeCopyError> {
        self.kept = self.kept.saturating_sub(level.kept);
        if let Some((about, attributes)) = level.own {
            let given = attributes.give(sides.to.deepest());
            given.map_err(|errno| TreeCopyError::write("give its attributes to", &level.path, errno))?;
            (self.copied)(&level.path, &about);
        }
        sides.to.leave().map_err(|errno| TreeCopyError::write("leave", &level.path, errno))?;
        sides.from.leave().map_err(|errno| TreeCopyError::read(&level.path, errno))
    }

    /// Copies one name; gives what is to be gone down into if it is a directory.
    fn entry(&mut self, sides: &mut Sides, path: PathBuf, name: &OsStr) -> Result<Option<Level>, TreeCopyError> {
        let object = match object_in(sides.from.deepest(), name) {
            Err(Errno::NOENT) => return Ok(None),
            object => object.map_err(|errno| TreeCopyError::read(&path, errno))?,
        };
        let about = look_at(object.as_fd()).map_err(|errno| TreeCopyError::read(&path, errno))?;
        let kind = FileType::from_raw_mode(about.stx_mode.into());
        if kind == FileType::Directory {
            return self.enter(sides, path, name, &object).map(Some);
        }
        let to = sides.to.deepest();
        if self.link(to, &path, name, &about)? {
            (self.copied)(&path, &about);
            return Ok(None);
        }
        let attributes = Attributes::of(object.as_fd()).map_err(|errno| TreeCopyError::read(&path, errno))?;
        let made = self.make(to, &path, name, (kind, &object, &about))?;
        attributes.give(made.as_fd()).map_err(|errno| TreeCopyError::write("give its attributes to", &path, errno))?;
        if about.stx_nlink > 1 {
            self.keep(weight(path.as_os_str().len()), &path)?;
            self.links.insert(identity(&about), path.clone());
        }
        (self.copied)(&path, &about);
        Ok(None)
    }

    fn enter(
        &mut self,
        sides: &mut Sides,
        path: PathBuf,
        name: &OsStr,
        object: &OwnedFd,
    ) -> Result<Level, TreeCopyError> {
        let from = directory_below(object.as_fd(), Path::new("")).map_err(|errno| TreeCopyError::read(&path, errno))?;
        let below = self.level(from.as_fd(), path.clone())?;
        let read = |errno| TreeCopyError::read(&path, errno);
        let written = |errno| TreeCopyError::write("make", &path, errno);
        // Only its owner may enter it until it is complete.
        mkdirat(sides.to.deepest(), name, Mode::RWXU).map_err(written)?;
        let to = openat(sides.to.deepest(), name, DIRECTORY, Mode::empty()).map_err(written)?;
        sides.from.enter(from).map_err(read)?;
        sides.to.enter(to).map_err(written)?;
        Ok(below)
    }

    /// Gives a file that is already in the copy its second name. False: it has to be copied.
    fn link(&self, to: BorrowedFd<'_>, path: &Path, name: &OsStr, about: &Statx) -> Result<bool, TreeCopyError> {
        let Some(first) = self.links.get(&identity(about)).filter(|_| about.stx_nlink > 1) else { return Ok(false) };
        let (parent, old) = (first.parent().unwrap_or(Path::new("")), first.file_name().unwrap_or_default());
        let linked =
            directory_below(self.to, parent).and_then(|parent| linkat(&parent, old, to, name, AtFlags::empty()));
        match linked {
            Ok(()) => Ok(true),
            // This file system allows fewer names a file than the source's: a second copy begins.
            Err(Errno::MLINK) => Ok(false),
            Err(errno) => Err(TreeCopyError::write("link", path, errno)),
        }
    }

    /// Makes what is no directory, with its content; gives a descriptor of it.
    fn make(
        &self,
        to: BorrowedFd<'_>,
        path: &Path,
        name: &OsStr,
        (kind, object, about): (FileType, &OwnedFd, &Statx),
    ) -> Result<OwnedFd, TreeCopyError> {
        let failed = |errno| TreeCopyError::write("make", path, errno);
        match kind {
            FileType::RegularFile => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
                content::copy(object.as_fd(), made.as_fd(), self.share_from).map_err(|error| error.at(path))?;
                return Ok(made);
            }
            FileType::Symlink => {
                let target = readlinkat(object, "", Vec::new()).map_err(|errno| TreeCopyError::read(path, errno))?;
                symlinkat(target, to, name).map_err(failed)?;
            }
            _ => {
                let device = makedev(about.stx_rdev_major, about.stx_rdev_minor);
                mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, device).map_err(failed)?;
            }
        }
        object_in(to, name).map_err(failed)
    }

    fn level(&mut self, directory: BorrowedFd<'_>, path: PathBuf) -> Result<Level, TreeCopyError> {
        let read = || -> Result<_, Errno> {
            let about = look_at(directory)?;
            Ok(((about, Attributes::of(directory)?), names_in(directory)?))
        };
        let (own, names) = read().map_err(|errno| TreeCopyError::read(&path, errno))?;
        let kept = names.iter().map(|name| weight(name.len())).sum();
        self.keep(kept, &path)?;
        Ok(Level { path, own: Some(own), names: names.into_iter(), kept })
    }

    /// Takes memory for names.
    fn keep(&mut self, bytes: usize, path: &Path) -> Result<(), TreeCopyError> {
        self.kept = self.kept.saturating_add(bytes);
        if self.kept <= MOST_KEPT { Ok(()) } else { Err(TreeCopyError::read(path, Errno::TOOBIG)) }
    }
}

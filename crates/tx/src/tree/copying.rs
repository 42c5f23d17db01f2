//! What lies in one tree, copied into another where it cannot be moved: content with its holes, owner, mode, time,
//! extended attributes, devices, links.

use crate::crash::step;
use crate::tree::attributes::{Attributes, Which};
use crate::tree::confined::{CallPath, Tree};
use crate::tree::content::fill;
use crate::tree::path::TreePath;
use crate::tree::xattr;
use rustix::fs::{FileType, IFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// What becomes of a file that has several names, at each of them.
pub(crate) type Several<'a> = dyn Fn(&Copying<'_>, &TreePath, &Stat, &TreePath) -> io::Result<()> + 'a;

/// From where to where, and how.
pub(crate) struct Copying<'a> {
    pub(crate) from: &'a Tree,
    pub(crate) to: &'a Tree,
    /// Makes of an object's attributes those that its copy gets.
    pub(crate) attributes: &'a dyn Fn(&mut Attributes),
    /// Whether the marks that an overlay has left come along.
    pub(crate) with_marks: bool,
    pub(crate) several: &'a Several<'a>,
}

impl Copying<'_> {
    /// Copies an object, with everything below it, to where nothing is.
    pub(crate) fn copy(&self, from: &TreePath, stat: &Stat, to: &TreePath) -> io::Result<()> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let (parent, name) = self.to.place(to)?;
                rustix::fs::mkdirat(&*parent, name, Mode::RWXU)?;
                self.names(from, to)?;
                self.attributes(from, stat, to)
            }
            _ if stat.st_nlink > 1 => (self.several)(self, from, stat, to),
            _ => self.file(from, stat, to),
        }
    }

    /// Copies all that is in a directory.
    pub(crate) fn names(&self, from: &TreePath, to: &TreePath) -> io::Result<()> {
        for name in self.from.names(from)? {
            let child = from.join(&name);
            self.copy(&child, &self.from.stat(&child)?, &to.join(&name))?;
        }
        Ok(())
    }

    /// Copies what is no directory.
    pub(crate) fn file(&self, from: &TreePath, stat: &Stat, to: &TreePath) -> io::Result<()> {
        let (parent, name) = self.to.place(to)?;
        let private = Mode::RUSR | Mode::WUSR;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let new: OwnedFd = rustix::fs::openat(&*parent, name, flags, private)?;
                let (old, new) = (self.from.file(from, false)?, File::from(new));
                copy_flags(&old, &new)?;
                fill(&old, stat, &new)?;
                return self.give(from, stat, &CallPath::of(new.into())?);
            }
            FileType::Symlink => {
                let (directory, old) = self.from.place(from)?;
                let target = rustix::fs::readlinkat(&*directory, old, Vec::new())?;
                rustix::fs::symlinkat(target.as_c_str(), &*parent, name)?;
            }
            kind => rustix::fs::mknodat(&*parent, name, kind, private, stat.st_rdev)?,
        }
        self.attributes(from, stat, to)
    }

    /// Gives a copy the attributes of what it is a copy of.
    pub(crate) fn attributes(&self, from: &TreePath, stat: &Stat, to: &TreePath) -> io::Result<()> {
        self.give(from, stat, &CallPath::of(self.to.object(to)?)?)
    }

    fn give(&self, from: &TreePath, stat: &Stat, copy: &CallPath) -> io::Result<()> {
        let xattrs = xattr::read(&self.from.call_path(from)?)?;
        let mut attributes = Attributes::new(stat, xattrs.own);
        (self.attributes)(&mut attributes);
        if self.with_marks {
            xattr::mark(copy, &xattrs.overlay)?;
        }
        attributes.give(copy, Which::All, step)
    }
}

/// What else chattr(1) says of a file that every file system can keep: not to be dumped, no times of access, to be
/// written at once.
const FLAGS: IFlags = IFlags::NODUMP.union(IFlags::NOATIME).union(IFlags::SYNC);

fn copy_flags(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    // Not every file system has any.
    let Ok(flags) = rustix::fs::ioctl_getflags(from).map(|flags| flags & FLAGS) else { return Ok(()) };
    if flags.is_empty() {
        return Ok(());
    }
    let set = rustix::fs::ioctl_getflags(&to).and_then(|now| rustix::fs::ioctl_setflags(&to, now | flags));
    match set {
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(()),
        set => Ok(set?),
    }
}

//! What lies in one tree, copied into another where it cannot be moved: content with its holes, owner, mode, time,
//! extended attributes, devices, links.
//!
//! Others may exchange names in the tree that is copied from, or write to what lies there. So each object is opened
//! once: what it is, its content and its attributes are read by that alone, and it is looked at again at the end.

use crate::crash::step;
use crate::tree::attributes::{Attributes, Which};
use crate::tree::confined::{CallPath, Tree, is_missing, names_in};
use crate::tree::content::fill;
use crate::tree::identity::Identity;
use crate::tree::path::TreePath;
use crate::tree::xattr;
use rustix::fs::{AtFlags, FileType, IFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What becomes of a file that has several names, at each of them.
pub(crate) type Several<'a> = dyn Fn(&Copying<'_>, &TreePath, &Original, &TreePath) -> io::Result<()> + 'a;

/// Whether an object is to be copied that was like this when it was opened, and is like that now.
pub(crate) type Admits<'a> = dyn Fn(&TreePath, &Stat, &Stat) -> bool + 'a;

/// An object that is copied, opened as a mere place.
pub(crate) struct Original {
    object: CallPath,
    /// What it was like when it was opened.
    pub(crate) stat: Stat,
}

impl Original {
    pub(crate) fn open(tree: &Tree, path: &TreePath) -> io::Result<Self> {
        let object = tree.object(path)?;
        let stat = rustix::fs::fstat(&object)?;
        Ok(Self { object: CallPath::of(object)?, stat })
    }

    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(crate) fn identity(&self) -> io::Result<Identity> {
        Identity::of(self.object.held())
    }

    /// What tells it from all others of its tree.
    pub(crate) fn ident(&self, tree: &Tree) -> io::Result<u64> {
        tree.ident_of(self.object.held(), &self.stat)
    }

    /// The names in it, sorted.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        names_in(rustix::fs::openat(self.object.held(), ".", flags, Mode::empty())?)
    }

    fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.object.text.as_c_str(), flags, Mode::empty())?.into())
    }
}

/// From where to where, and how.
pub(crate) struct Copying<'a> {
    pub(crate) from: &'a Tree,
    pub(crate) to: &'a Tree,
    /// Makes of an object's attributes those that its copy gets.
    pub(crate) attributes: &'a dyn Fn(&mut Attributes),
    /// Whether the marks that an overlay has left come along.
    pub(crate) with_marks: bool,
    pub(crate) several: &'a Several<'a>,
    pub(crate) admits: &'a Admits<'a>,
}

/// Has everything copied.
pub(crate) fn whatever(_: &TreePath, _: &Stat, _: &Stat) -> bool {
    true
}

impl Copying<'_> {
    /// Copies an object, with everything below it, to where nothing is.
    pub(crate) fn copy(&self, from: &TreePath, original: &Original, to: &TreePath) -> io::Result<()> {
        if !(self.admits)(from, &original.stat, &original.stat) {
            return Ok(());
        }
        match original.kind() {
            FileType::Directory => {
                let (parent, name) = self.to.place(to)?;
                rustix::fs::mkdirat(&*parent, name, Mode::RWXU)?;
                self.names(from, original, to)?;
                self.attributes(original, to)
            }
            _ if original.stat.st_nlink > 1 => (self.several)(self, from, original, to),
            _ => self.file(from, original, to),
        }
    }

    /// Copies all that is in a directory.
    pub(crate) fn names(&self, from: &TreePath, original: &Original, to: &TreePath) -> io::Result<()> {
        for name in original.names()? {
            let child = from.join(&name);
            match Original::open(self.from, &child) {
                // Somebody has taken the name away since it was listed.
                Err(error) if is_missing(&error) => {}
                opened => self.copy(&child, &opened?, &to.join(&name))?,
            }
        }
        Ok(())
    }

    /// Copies what is no directory. What was changed meanwhile, and is not to be copied so, is not there afterwards.
    pub(crate) fn file(&self, from: &TreePath, original: &Original, to: &TreePath) -> io::Result<()> {
        let xattrs = xattr::read(&original.object)?;
        let (parent, name) = self.to.place(to)?;
        make(original, parent.as_fd(), name)?;
        if !(self.admits)(from, &original.stat, &rustix::fs::fstat(original.object.held())?) {
            return Ok(rustix::fs::unlinkat(&*parent, name, AtFlags::empty())?);
        }
        self.give(original, xattrs, to)
    }

    /// Gives a copy the attributes of what it is a copy of.
    pub(crate) fn attributes(&self, original: &Original, to: &TreePath) -> io::Result<()> {
        self.give(original, xattr::read(&original.object)?, to)
    }

    fn give(&self, original: &Original, xattrs: xattr::Both, to: &TreePath) -> io::Result<()> {
        let copy = CallPath::of(self.to.object(to)?)?;
        let mut attributes = Attributes::new(&original.stat, xattrs.own);
        (self.attributes)(&mut attributes);
        if self.with_marks {
            xattr::mark(&copy, &xattrs.overlay)?;
        }
        attributes.give(&copy, Which::All, step)
    }
}

/// Makes an object of the same kind, with the same content.
fn make(original: &Original, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let private = Mode::RUSR | Mode::WUSR;
    match original.kind() {
        FileType::RegularFile => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let new: OwnedFd = rustix::fs::openat(parent, name, flags, private)?;
            let (old, new) = (original.file()?, File::from(new));
            copy_flags(&old, &new)?;
            fill(&old, &original.stat, &new)
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(original.object.held(), "", Vec::new())?;
            Ok(rustix::fs::symlinkat(target.as_c_str(), parent, name)?)
        }
        kind => Ok(rustix::fs::mknodat(parent, name, kind, private, original.stat.st_rdev)?),
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

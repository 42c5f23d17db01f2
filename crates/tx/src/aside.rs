//! Bringing what is new into a realm: copied to where things are put aside in its own file system, and moved from there to its place.

use crate::attributes::{Attributes, Moment};
use crate::change::{Op, Steps, Target};
use crate::content::bring;
use crate::crash::step;
use crate::realm::Realm;
use crate::tree::{CallPath, Tree};
use crate::tree_path::TreePath;
use crate::xattr;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The hidden directory of a commit in a realm.
#[derive(Debug)]
pub(crate) struct Aside {
    path: PathBuf,
    realm: Realm,
    /// When names in the root directory last changed, before the hidden directory came.
    root_modified: Moment,
}

impl Aside {
    /// Makes it.
    pub(crate) fn prepare(realm: &Realm, live: &Tree) -> io::Result<Self> {
        let root_modified = Moment::modified(&live.stat(&TreePath::ROOT)?);
        let path = realm.aside()?;
        match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(Self { path, realm: realm.clone(), root_modified })
    }

    /// Removes it, and gives the root directory the time that it has without it.
    pub(crate) fn clear(&self, live: &Tree, steps: &Steps) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let of_root = steps.finish.iter().find_map(|op| match op {
            Op::Attributes { target: Target::Live(path), modified, .. } if *path == TreePath::ROOT => *modified,
            _ => None,
        });
        let modified = of_root.unwrap_or(self.root_modified);
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let last_modification = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() };
        Ok(rustix::fs::futimens(live.root(), &Timestamps { last_access: omit, last_modification })?)
    }

    /// Makes owners of the realm's earlier life those of its present one.
    pub(crate) fn translate(&self, attributes: &mut Attributes) {
        attributes.uid = self.realm.now(attributes.uid);
        attributes.gid = self.realm.now(attributes.gid);
    }
}

/// What it takes to bring something in.
pub(crate) struct BringIn<'a> {
    pub(crate) upper: &'a Tree,
    pub(crate) stage: &'a Tree,
    pub(crate) live: &'a Tree,
    pub(crate) aside: &'a Aside,
}

impl BringIn<'_> {
    /// Brings one object, with everything below it, to the same place in the live tree. What it finds there is what an earlier run has brought: if
    /// that is a directory it is whole, since it came by one rename.
    pub(crate) fn bring(&self, at: &TreePath, stat: &Stat) -> io::Result<()> {
        let is_directory = kind(stat) == FileType::Directory;
        if is_directory && self.live.look(at)?.is_some_and(|found| kind(&found) == FileType::Directory) {
            return Ok(());
        }
        let name = TreePath::ROOT.join("new".as_ref());
        self.remove(&name)?;
        self.copy(at, stat, &name)?;
        step();
        let (to, to_name) = self.live.place(at)?;
        rustix::fs::renameat(self.stage.root(), "new", &*to, to_name)?;
        if is_directory {
            self.live.forget();
            self.stage.forget();
        }
        Ok(())
    }

    /// Removes what an earlier run left half made.
    fn remove(&self, name: &TreePath) -> io::Result<()> {
        let Some(found) = self.stage.look(name)? else { return Ok(()) };
        self.stage.forget();
        let path = self.aside.path.join("stage").join(name.as_path());
        if kind(&found) == FileType::Directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
    }

    /// Copies an object of the upper directory to `to` in the stage.
    fn copy(&self, from: &TreePath, stat: &Stat, to: &TreePath) -> io::Result<()> {
        match kind(stat) {
            FileType::Directory => {
                let (parent, name) = self.stage.place(to)?;
                rustix::fs::mkdirat(&*parent, name, Mode::RWXU)?;
                for name in self.upper.names(from)? {
                    let child = from.join(&name);
                    self.copy(&child, &self.upper.stat(&child)?, &to.join(&name))?;
                }
                self.attributes(from, stat, to)
            }
            _ if stat.st_nlink > 1 => self.link(from, stat, to),
            _ => self.file(from, stat, to),
        }
    }

    /// One of several names of a file: the file is copied once, to a name of its own in the stage.
    fn link(&self, from: &TreePath, stat: &Stat, to: &TreePath) -> io::Result<()> {
        let kept = TreePath::ROOT.join(format!("file-{}", stat.st_ino).as_ref());
        if self.stage.look(&kept)?.is_none() {
            let half = TreePath::ROOT.join("half".as_ref());
            self.remove(&half)?;
            self.file(from, stat, &half)?;
            let (directory, name) = self.stage.place(&kept)?;
            rustix::fs::renameat(self.stage.root(), "half", &*directory, name)?;
        }
        let (directory, name) = self.stage.place(&kept)?;
        let (parent, new) = self.stage.place(to)?;
        Ok(rustix::fs::linkat(&*directory, name, &*parent, new, AtFlags::empty())?)
    }

    fn file(&self, from: &TreePath, stat: &Stat, to: &TreePath) -> io::Result<()> {
        let (parent, name) = self.stage.place(to)?;
        let private = Mode::RUSR | Mode::WUSR;
        match kind(stat) {
            FileType::RegularFile => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let new: OwnedFd = rustix::fs::openat(&*parent, name, flags, private)?;
                bring(&self.upper.file(from, false)?, &new.into())?;
            }
            FileType::Symlink => {
                let (directory, old) = self.upper.place(from)?;
                let target = rustix::fs::readlinkat(&*directory, old, Vec::new())?;
                rustix::fs::symlinkat(target.as_c_str(), &*parent, name)?;
            }
            kind => rustix::fs::mknodat(&*parent, name, kind, private, stat.st_rdev)?,
        }
        self.attributes(from, stat, to)
    }

    fn attributes(&self, from: &TreePath, stat: &Stat, to: &TreePath) -> io::Result<()> {
        let mut attributes = Attributes::new(stat, xattr::read(&self.upper.call_path(from)?)?.own);
        self.aside.translate(&mut attributes);
        attributes.give(&CallPath::of(self.stage.object(to)?)?)
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

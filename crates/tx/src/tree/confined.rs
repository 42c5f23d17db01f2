//! A directory tree that is read and changed by paths below its root, none of which can lead out of it.
//!
//! While a transaction commits, others rename and replace directories around it. Every path is therefore resolved by
//! the kernel from the root's descriptor, without following links and without entering another mount (openat2(2), since
//! Linux 5.6): what cannot be reached so is an error, and never another file.

use crate::tree::path::TreePath;
use pando_kernel::file::handle::FileHandle;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat, openat2};
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How long a path may be for one call (PATH_MAX, with its closing zero and some room); longer ones are walked in
/// pieces.
const LONGEST: usize = 4000;

const CONFINED: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// The tree.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Rc<OwnedFd>,
    path: PathBuf,
    /// Whether its objects are told apart by their handles, since the numbers of its inodes do not last.
    by_handle: bool,
    /// The directory that was used last: work goes directory by directory.
    last: RefCell<Option<(TreePath, Rc<OwnedFd>)>>,
}

impl Tree {
    /// Opens the tree at `path`.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { root: Rc::new(root), path: path.to_owned(), by_handle: false, last: RefCell::default() })
    }

    /// A tree whose root is open already. `path` is what it is called for people; `by_handle` says that its objects are
    /// told apart by their handles.
    pub(crate) fn opened(root: OwnedFd, path: &Path, by_handle: bool) -> Self {
        Self { root: Rc::new(root), path: path.to_owned(), by_handle, last: RefCell::default() }
    }

    /// A directory in it as a tree of its own. No link leads there.
    pub(crate) fn subtree(&self, path: &TreePath) -> io::Result<Self> {
        let root = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
        Ok(Self {
            root: Rc::new(root),
            path: self.path.join(path.as_path()),
            by_handle: false,
            last: RefCell::default(),
        })
    }

    /// What tells an open object from all others of the tree, now and after a crash. `stat` is its own.
    pub(crate) fn ident_of(&self, object: impl AsFd, stat: &Stat) -> io::Result<u64> {
        if !self.by_handle {
            return Ok(stat.st_ino);
        }
        Ok(ident_of_handle(&FileHandle::of(object)?))
    }

    /// The same for what is at a path.
    pub(crate) fn ident(&self, path: &TreePath, stat: &Stat) -> io::Result<u64> {
        if self.by_handle { self.ident_of(self.object(path)?, stat) } else { Ok(stat.st_ino) }
    }

    /// What is at a path, and what tells it from all others; nothing if there is nothing.
    pub(crate) fn look_ident(&self, path: &TreePath) -> io::Result<Option<(Stat, u64)>> {
        let found = self.look(path)?;
        found.map(|stat| Ok((stat, self.ident(path, &stat)?))).transpose()
    }

    /// Whether numbers of inodes tell nothing about it.
    pub(crate) fn is_by_handle(&self) -> bool {
        self.by_handle
    }

    /// Where it is, for people.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of one of its files, for people.
    pub(crate) fn shown(&self, path: &TreePath) -> String {
        self.path.join(path.as_path()).display().to_string()
    }

    /// Its root.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A directory in it, as a mere place.
    pub(crate) fn directory(&self, path: &TreePath) -> io::Result<Rc<OwnedFd>> {
        if path.as_bytes().is_empty() {
            return Ok(Rc::clone(&self.root));
        }
        if let Some((known, fd)) = &*self.last.borrow()
            && known == path
        {
            return Ok(Rc::clone(fd));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = Rc::new(self.resolve(path, flags)?);
        *self.last.borrow_mut() = Some((path.clone(), Rc::clone(&fd)));
        Ok(fd)
    }

    fn resolve(&self, path: &TreePath, flags: OFlags) -> io::Result<OwnedFd> {
        let open = |at: BorrowedFd<'_>, path: &Path, flags| Ok(openat2(at, path, flags, Mode::empty(), CONFINED)?);
        if path.as_bytes().len() < LONGEST {
            return open(self.root.as_fd(), path.as_path(), flags);
        }
        let mut at: Option<OwnedFd> = None;
        let parts: Vec<&OsStr> = path.parts().collect();
        for (number, part) in parts.iter().enumerate() {
            let flags = if number + 1 == parts.len() { flags } else { OFlags::PATH | OFlags::CLOEXEC };
            let next = open(at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd), Path::new(part), flags)?;
            at = Some(next);
        }
        at.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// The directory that a path is in, and its name there. The root has neither.
    pub(crate) fn place<'a>(&self, path: &'a TreePath) -> io::Result<(Rc<OwnedFd>, &'a OsStr)> {
        let bytes = path.as_bytes();
        let name = bytes.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty());
        let (parent, _) = path.split().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.directory(&parent)?, OsStr::from_bytes(name.ok_or(io::ErrorKind::InvalidInput)?)))
    }

    /// Forgets which directory is where: after a directory was renamed.
    pub(crate) fn forget(&self) {
        *self.last.borrow_mut() = None;
    }

    /// What is at a path, links not followed.
    pub(crate) fn stat(&self, path: &TreePath) -> io::Result<Stat> {
        if path.as_bytes().is_empty() {
            return Ok(rustix::fs::fstat(&*self.root)?);
        }
        let (directory, name) = self.place(path)?;
        Ok(rustix::fs::statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// What is at a path, or nothing if there is nothing.
    pub(crate) fn look(&self, path: &TreePath) -> io::Result<Option<Stat>> {
        match self.stat(path) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens what is at a path as a mere place (O_PATH), also a symbolic link itself.
    pub(crate) fn object(&self, path: &TreePath) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if path.as_bytes().is_empty() {
            return self.root.try_clone();
        }
        let (directory, name) = self.place(path)?;
        Ok(openat2(&*directory, name, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_XDEV)?)
    }

    /// Opens a regular file.
    pub(crate) fn file(&self, path: &TreePath, write: bool) -> io::Result<File> {
        let (directory, name) = self.place(path)?;
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(openat2(&*directory, name, flags, Mode::empty(), CONFINED)?.into())
    }

    /// The names in a directory, sorted.
    pub(crate) fn names(&self, path: &TreePath) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        names_in(rustix::fs::openat(&*self.directory(path)?, ".", flags, Mode::empty())?)
    }

    /// A path for the calls that know no descriptors of directories; links at its end are not followed by `l…xattr(2)`.
    pub(crate) fn call_path(&self, path: &TreePath) -> io::Result<CallPath> {
        if path.as_bytes().is_empty() {
            let text = format!("/proc/self/fd/{}/.", self.root.as_raw_fd());
            return Ok(CallPath { text: CString::new(text)?, follow: false, held: Rc::clone(&self.root) });
        }
        let (directory, name) = self.place(path)?;
        let mut text = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
        text.extend_from_slice(name.as_bytes());
        Ok(CallPath { text: CString::new(text)?, follow: false, held: directory })
    }
}

/// The names in an open directory, sorted.
pub(crate) fn names_in(directory: OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// What tells the object of a handle from all others of its file system.
pub(crate) fn ident_of_handle(handle: &FileHandle) -> u64 {
    fnv1a(handle.bytes.iter().chain(&handle.kind.to_le_bytes()))
}

/// A hash (FNV-1a) that is the same from one run to the next.
pub(crate) fn fnv1a<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// A path that is valid as long as it is held.
#[derive(Debug)]
pub(crate) struct CallPath {
    pub(crate) text: CString,
    /// Whether its end is the kernel's own link to an open object, which is to be followed; it leads no further.
    pub(crate) follow: bool,
    held: Rc<OwnedFd>,
}

impl CallPath {
    /// The path of an object that is open, be it a symbolic link.
    pub(crate) fn of(object: OwnedFd) -> io::Result<Self> {
        let text = CString::new(format!("/proc/self/fd/{}", object.as_raw_fd()))?;
        Ok(Self { text, follow: true, held: Rc::new(object) })
    }

    /// The open object, or the directory that the path leads on from.
    pub(crate) fn held(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

/// Whether an error says that there is nothing at a path.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOENT | Errno::NOTDIR))
}

/// Whether an error says that a directory on the way has become a link, or was mounted over.
pub(crate) fn leads_elsewhere(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::LOOP | Errno::XDEV))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_leads_out_of_a_tree() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("in/deep")).unwrap();
        std::fs::write(directory.path().join("secret"), "").unwrap();
        std::os::unix::fs::symlink("..", directory.path().join("in/up")).unwrap();
        let tree = Tree::open(&directory.path().join("in")).unwrap();
        let path = |text: &str| TreePath::new(text.as_bytes()).unwrap();
        assert!(tree.stat(&path("up/secret")).is_err());
        assert!(tree.stat(&path("up")).is_ok() && tree.object(&path("up")).is_ok());
        assert!(tree.look(&path("deep/none")).unwrap().is_none());
        assert_eq!(tree.names(&TreePath::ROOT).unwrap(), ["deep", "up"]);
    }

    #[test]
    fn a_path_longer_than_the_kernel_takes_is_walked() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        let (name, mut path) = (OsString::from("n".repeat(200)), TreePath::ROOT);
        for _ in 0..25 {
            let parent = tree.directory(&path).unwrap();
            rustix::fs::mkdirat(&*parent, name.as_os_str(), Mode::RWXU).unwrap();
            path = path.join(&name);
        }
        assert!(path.as_bytes().len() > 4096);
        tree.forget();
        assert!(tree.stat(&path).is_ok());
    }
}

//! A directory as the root of a tree: every path is resolved by the kernel below it, and cannot leave it.
//!
//! A path inside an archive is the archive's word. `RESOLVE_IN_ROOT` gives it the meaning that it has inside the guest:
//! a symbolic link to `/etc` leads to the tree's own `/etc`, `..` stops at the top. So an archive in which `bin` is a
//! link to `usr/bin` and `bin/sh` an entry unpacks as its maker meant it, and one in which `x` is a link to the host's
//! `/etc` and `x/passwd` an entry harms only itself.

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, mkdirat, openat2, readlinkat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Below PATH_MAX (4096) with a margin: longer paths are resolved in pieces.
const LONGEST_PIECE: usize = 3_000;

/// As many symbolic links in one path as the kernel follows.
const MAX_LINKS: u32 = 40;

/// As often a path may lead up again and down elsewhere, by its links: each time costs a walk from the top.
const MAX_RETURNS: u32 = 4 * MAX_LINKS;

/// `openat2` gives EAGAIN when a rename anywhere on the machine raced with a `..`; the next try nearly always succeeds.
const MAX_TRIES: u32 = 64;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What every resolution here has in common: no leaving through /proc's links, no entering of mounts.
const CONFINED: ResolveFlags = ResolveFlags::NO_MAGICLINKS.union(ResolveFlags::NO_XDEV);

/// The root of a tree that is being made.
pub(crate) struct Root {
    fd: OwnedFd,
}

impl Root {
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let fd = rustix::fs::open(path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { fd })
    }

    /// The directory `path`, with symbolic links followed inside the tree.
    pub(crate) fn directory(&self, path: &Path) -> Result<OwnedFd, Errno> {
        if path.as_os_str().len() <= LONGEST_PIECE {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            return retried(|| openat2(&self.fd, path, DIRECTORY, Mode::empty(), CONFINED | ResolveFlags::IN_ROOT));
        }
        // In pieces the meaning of an absolute link would change from one to the next: so such long paths follow none.
        self.strict_directory(path)
    }

    /// The directory `path`, without following any symbolic link.
    pub(crate) fn strict_directory(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let mut at = open_below(self.fd.as_fd(), Path::new("."))?;
        let mut piece = PathBuf::new();
        for component in path.components() {
            if piece.as_os_str().len() + component.as_os_str().len() > LONGEST_PIECE {
                at = open_below(at.as_fd(), &piece)?;
                piece.clear();
            }
            piece.push(component);
        }
        if piece.as_os_str().is_empty() { Ok(at) } else { open_below(at.as_fd(), &piece) }
    }

    /// The directory `path`, made where it is missing, with mode 0755. `made` is told before each directory that may
    /// have to be made.
    ///
    /// The work grows with the length of the path and no faster: an archive may have a great many deep ones.
    pub(crate) fn make_directory<E: From<Errno>>(
        &self,
        path: &Path,
        made: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<OwnedFd, E> {
        match self.directory(path) {
            Err(Errno::NOENT) => {}
            done => return Ok(done?),
        }
        let (start, missing) = self.deepest(path)?;
        match make_below(start, &missing, made)? {
            Some(directory) => Ok(directory),
            // A link on the way leads to what is missing as well.
            None => self.make_through_links(path, made),
        }
    }

    /// A directory on the way to `path` that is there, and the names that follow it. Steps that become twice as long
    /// find it: the first names of deep paths are mostly there.
    fn deepest(&self, path: &Path) -> Result<(OwnedFd, VecDeque<OsString>), Errno> {
        let all: Vec<OsString> = names(path.as_os_str()).into();
        let mut step = 1;
        loop {
            let kept = all.len().saturating_sub(step);
            match self.directory(&all[..kept].iter().collect::<PathBuf>()) {
                Ok(start) => return Ok((start, all[kept..].iter().cloned().collect())),
                Err(Errno::NOENT) if kept > 0 => step *= 2,
                Err(error) => return Err(error),
            }
        }
    }

    /// The same, name by name, with every link followed here. The kernel follows none that leads to what is missing.
    fn make_through_links<E: From<Errno>>(
        &self,
        path: &Path,
        made: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<OwnedFd, E> {
        let mut todo: VecDeque<OsString> = names(path.as_os_str());
        let (mut links, mut returns) = (0, 0);
        let mut real = PathBuf::new();
        // The directory `real`, while it is known.
        let mut at = None;
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                real.pop();
                at = None;
                continue;
            }
            let parent = match at.take() {
                Some(parent) => parent,
                None => {
                    returns += 1;
                    if returns > MAX_RETURNS {
                        return Err(Errno::LOOP.into());
                    }
                    self.strict_directory(&real)?
                }
            };
            match readlinkat(&parent, &*name, Vec::new()) {
                Ok(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    if target.as_bytes().starts_with(b"/") {
                        real = PathBuf::new();
                    } else {
                        at = Some(parent);
                    }
                    for part in names(OsStr::from_bytes(target.as_bytes())).into_iter().rev() {
                        todo.push_front(part);
                    }
                    continue;
                }
                // Not a symbolic link.
                Err(Errno::INVAL) => {}
                Err(Errno::NOENT) => {
                    made()?;
                    mkdirat(&parent, &*name, Mode::from_raw_mode(0o755))?;
                }
                Err(error) => return Err(error.into()),
            }
            at = Some(open_below(parent.as_fd(), Path::new(&name))?);
            real.push(name);
        }
        Ok(match at {
            Some(at) => at,
            None => self.strict_directory(&real)?,
        })
    }
}

/// Makes the directories `missing`, one in the other, below `at`. `None`: one of the names is a link.
fn make_below<E: From<Errno>>(
    mut at: OwnedFd,
    missing: &VecDeque<OsString>,
    made: &mut dyn FnMut() -> Result<(), E>,
) -> Result<Option<OwnedFd>, E> {
    for name in missing {
        made()?;
        match mkdirat(&at, &**name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = match open_below(at.as_fd(), Path::new(name)) {
            Ok(below) => below,
            Err(Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
    }
    Ok(Some(at))
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The names of a path in order, `..` among them, without `/` and `.`.
fn names(path: &OsStr) -> VecDeque<OsString> {
    Path::new(path)
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

/// The directory `path` below `at`, through no link. LOOP: there is one on the way.
pub(crate) fn open_below(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let strict = CONFINED | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    retried(|| openat2(at, path, DIRECTORY, Mode::empty(), strict))
}

fn retried<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..MAX_TRIES {
        match attempt() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    attempt()
}

/// The object `name` of `directory` itself, be it a symbolic link: a handle to look at it and to change its attributes
/// by.
pub(crate) fn object(directory: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// A new, empty regular file `name` in `directory`, which must not have that name yet.
pub(crate) fn new_file(directory: BorrowedFd<'_>, name: &OsStr) -> Result<File, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600))?))
}

/// A regular file of a tree for reading. Nothing is followed on the way; the last name must be a regular file.
pub(crate) fn read_file(root: &Root, path: &Path) -> Result<File, Errno> {
    let parent = root.strict_directory(path.parent().unwrap_or(Path::new("")))?;
    let name = path.file_name().ok_or(Errno::ISDIR)?;
    // NONBLOCK: opening a fifo that someone put there must not wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
    let stat = rustix::fs::statat(&file, "", AtFlags::EMPTY_PATH)?;
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => Ok(File::from(file)),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn make(root: &Root, path: &Path) -> Result<OwnedFd, Errno> {
        root.make_directory(path, &mut || Ok(()))
    }

    #[test]
    fn what_is_made_is_told_before_and_may_be_refused() {
        let place = tempfile::tempdir().unwrap();
        let root = Root::open(place.path()).unwrap();
        symlink("far/away", place.path().join("link")).unwrap();
        for (path, wanted) in [("a/b/c", 3), ("a/b/c", 0), ("a/b/d/e", 2), ("link/x", 4), ("link/y", 1)] {
            let mut told = 0;
            let count = || -> Result<(), Errno> {
                told += 1;
                Ok(())
            };
            let mut count = count;
            root.make_directory(Path::new(path), &mut count).unwrap();
            assert!(told == wanted || (path == "link/x" && told == 4), "{path}: {told}");
        }
        let refused = root.make_directory(Path::new("a/new"), &mut || Err(Errno::NOSPC));
        assert_eq!(refused.unwrap_err(), Errno::NOSPC);
        assert!(!place.path().join("a/new").exists() && place.path().join("far/away/y").is_dir());
    }

    #[test]
    fn links_stay_inside_and_missing_directories_are_made_behind_them() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("top");
        std::fs::create_dir(&top).unwrap();
        symlink("/a/../../b", top.join("absolute")).unwrap();
        symlink("../../..", top.join("up")).unwrap();
        let root = Root::open(&top).unwrap();
        make(&root, Path::new("absolute/c")).unwrap();
        make(&root, Path::new("up/d")).unwrap();
        assert!(top.join("b/c").is_dir() && top.join("d").is_dir());
        let names: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["top"]);
    }

    #[test]
    fn a_ring_of_links_ends() {
        let place = tempfile::tempdir().unwrap();
        symlink("y", place.path().join("x")).unwrap();
        symlink("x", place.path().join("y")).unwrap();
        let root = Root::open(place.path()).unwrap();
        assert_eq!(make(&root, Path::new("x/z")).unwrap_err(), Errno::LOOP);
        symlink("/loop/a", place.path().join("loop")).unwrap();
        assert_eq!(make(&root, Path::new("loop/z")).unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn paths_may_be_longer_than_the_kernel_takes_at_once() {
        let place = tempfile::tempdir().unwrap();
        let root = Root::open(place.path()).unwrap();
        let deep: PathBuf = std::iter::repeat_n("n".repeat(200), 60).collect();
        make(&root, &deep).unwrap();
        assert!(root.strict_directory(&deep).is_ok());
        assert!(root.directory(&deep).is_ok());
        pando_kernel::file::tree_removal::empty_directory(place.path()).unwrap();
    }
}

//! Directories in which nobody but root can put something in the place of what is there.
//!
//! Root that makes or opens a file by a path does so for any user that can write to one of the directories on the way:
//! that user puts a link in its place, and the file is another. So the way is gone directory by directory, by
//! descriptor, and each is looked at: it belongs to root, or to the user that this process acts as, and others cannot
//! write to it, unless it is sticky (as /tmp is), where they can add names, and not replace those of others. A link on
//! the way is followed where it is root's, as /var/run is. What lies in such a directory is then opened relative to its
//! descriptor.
//!
//! ```text
//!   open(path)  ─▶ TrustedDirectory ─▶ below(names, mode)  one of Pando's own, made where it is missing:
//!                                  │                       nobody else can write to it at all
//!                                  ├─▶ private(name)       the same, closed to others
//!                                  └─▶ file(name, …)       a plain file with no other name
//! ```

use rustix::fs::{FileType, Mode, OFlags, Stat, mkdirat, openat, readlinkat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// As many links in one path as the kernel follows.
const MOST_LINKS: u32 = 40;

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const ALL_WRITE: u32 = 0o002;
const OPEN_TO_OTHERS: u32 = 0o077;

/// A directory that was reached in this way.
#[derive(Debug)]
pub struct TrustedDirectory {
    directory: OwnedFd,
    path: PathBuf,
}

/// Why a directory or a file is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// The directory belongs to another user.
    #[error("'{at}' belongs to user {user}, who could have root write elsewhere by it: {advice}", at = .at.display(), advice = for_owner(*.is_directory, .at))]
    Owner {
        /// The directory, the link or the file.
        at: PathBuf,
        /// The id of the user that owns it.
        user: u32,
        /// Whether it is a directory, which may be made root's. What else lies there had better go.
        is_directory: bool,
    },
    /// Others can write to it. Access lists show in the group's bits.
    #[error(
        "'{at}' can be written to by {whom} (its mode is {mode:o}), who could have root write elsewhere by it: close it with chmod go-w '{at}', or use another --root",
        at = .at.display()
    )]
    Writable {
        /// The path of the directory.
        at: PathBuf,
        /// The users that can write to it, in words.
        whom: String,
        /// The permission bits of the directory.
        mode: u32,
    },
    /// Others can read what only one user may.
    #[error("'{at}' is open to others (its mode is {mode:o}): close it with chmod go= '{at}', or remove it", at = .at.display())]
    Open {
        /// The path of the directory.
        at: PathBuf,
        /// The permission bits of the directory.
        mode: u32,
    },
    /// It is a link, or something else that has no business there.
    #[error("'{at}' is {what}, where a {wanted} is wanted: remove it", at = .at.display())]
    Kind {
        /// The path that is of another kind.
        at: PathBuf,
        /// The kind that it is.
        what: &'static str,
        /// The kind that it should be.
        wanted: &'static str,
    },
    /// What is written to it would be written to another name, too.
    #[error("'{at}' has {links} names, one of which may be elsewhere: remove it", at = .at.display())]
    Linked {
        /// The path of the file.
        at: PathBuf,
        /// How many names the file has.
        links: u64,
    },
    /// A system call failed.
    #[error("{at}: {source}", at = .at.display())]
    Call {
        /// The path that the call was about.
        at: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

fn for_owner(is_directory: bool, at: &Path) -> String {
    match is_directory {
        true => format!(
            "give it to root (chown root: '{}'), if nothing in it is that user's, or use another --root",
            at.display()
        ),
        false => "remove it".to_owned(),
    }
}

impl From<Distrust> for io::Error {
    /// A system call's error stays what it is; all else is [`io::ErrorKind::PermissionDenied`].
    fn from(error: Distrust) -> Self {
        match error {
            Distrust::Call { source, .. } => source,
            error => Self::new(io::ErrorKind::PermissionDenied, error),
        }
    }
}

impl TrustedDirectory {
    /// Opens a directory. It may be sticky and everybody's.
    ///
    /// # Errors
    ///
    /// [`Distrust`], for it or for one on the way.
    pub fn open(path: &Path) -> Result<Self, Distrust> {
        let mut walk = Walk::from_top()?;
        walk.go(&absolute(path)?, None)?;
        Ok(Self { directory: walk.at, path: walk.path })
    }

    /// Opens a directory that Pando keeps its own in, and makes what is missing of the way to it.
    ///
    /// # Errors
    ///
    /// [`Distrust`], for it or for one on the way; here also where it is sticky and everybody's.
    pub fn make(path: &Path, mode: Mode) -> Result<Self, Distrust> {
        let mut walk = Walk::from_top()?;
        walk.go(&absolute(path)?, Some(mode))?;
        walk.is_closed_to_writers()?;
        Ok(Self { directory: walk.at, path: walk.path })
    }

    /// The same below this one.
    ///
    /// # Errors
    ///
    /// As [`make`](Self::make).
    pub fn below(&self, names: &Path, mode: Mode) -> Result<Self, Distrust> {
        let at = self.directory.try_clone().map_err(|source| Distrust::Call { at: self.path.clone(), source })?;
        let mut walk = Walk { at, path: self.path.clone(), links: 0 };
        walk.go(names, Some(mode))?;
        walk.is_closed_to_writers()?;
        Ok(Self { directory: walk.at, path: walk.path })
    }

    /// Opens a directory in this one that others can neither write to nor read. No link is followed to it.
    ///
    /// # Errors
    ///
    /// [`Distrust`].
    pub fn private(&self, name: &OsStr) -> Result<Self, Distrust> {
        let path = self.path.join(name);
        let call = |errno: Errno| Distrust::Call { at: path.clone(), source: errno.into() };
        let directory = openat(&self.directory, name, PLACE, Mode::empty()).map_err(call)?;
        let found = rustix::fs::fstat(&directory).map_err(call)?;
        is_directory(&found, &path)?;
        is_own(&found, &path)?;
        match found.st_mode & OPEN_TO_OTHERS {
            0 => Ok(Self { directory, path }),
            _ => Err(Distrust::Open { at: path, mode: found.st_mode & 0o7777 }),
        }
    }

    /// Opens a plain file in it that is this user's, or root's, and that has no other name; nothing is done to another
    /// one. With CREATE among the flags it is made where it is missing.
    ///
    /// # Errors
    ///
    /// [`Distrust`].
    pub fn file(&self, name: &str, flags: OFlags, mode: Mode) -> Result<File, Distrust> {
        let at = || self.path.join(name);
        // NONBLOCK: of a pipe that lies there nobody waits for the other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.directory, name, flags, mode).map_err(|errno| match errno {
            Errno::LOOP => Distrust::Kind { at: at(), what: "a link", wanted: "file" },
            Errno::NXIO => Distrust::Kind { at: at(), what: "a pipe or a socket", wanted: "file" },
            Errno::ISDIR => Distrust::Kind { at: at(), what: "a directory", wanted: "file" },
            errno => Distrust::Call { at: at(), source: errno.into() },
        })?;
        let found = rustix::fs::fstat(&file).map_err(|errno| Distrust::Call { at: at(), source: errno.into() })?;
        is_untouched_file(&found, &at())?;
        Ok(file.into())
    }

    /// Looks at all that lies in it, not below: each belongs to root, or to this user, and what is a file has no other
    /// name. In a directory that others could write to once they may have left something.
    ///
    /// # Errors
    ///
    /// [`Distrust`], for the first that another user may have put there.
    pub fn holds_nothing_foreign(&self) -> Result<(), Distrust> {
        let call = |errno: Errno| Distrust::Call { at: self.path.clone(), source: errno.into() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(&self.directory, ".", flags, Mode::empty()).map_err(call)?;
        for entry in rustix::fs::Dir::new(opened).map_err(call)? {
            let entry = entry.map_err(call)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let found = match rustix::fs::statat(&self.directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                found => found.map_err(call)?,
            };
            let at = self.path.join(OsStr::from_bytes(name.to_bytes()));
            match FileType::from_raw_mode(found.st_mode) {
                FileType::RegularFile => is_untouched_file(&found, &at)?,
                _ => is_own(&found, &at)?,
            }
        }
        Ok(())
    }

    /// Where it is, with links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl From<TrustedDirectory> for OwnedFd {
    fn from(trusted: TrustedDirectory) -> Self {
        trusted.directory
    }
}

impl AsFd for TrustedDirectory {
    /// As a mere place (O_PATH).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn absolute(path: &Path) -> Result<PathBuf, Distrust> {
    std::path::absolute(path).map_err(|source| Distrust::Call { at: path.to_owned(), source })
}

/// A way, and where it has come to.
struct Walk {
    at: OwnedFd,
    path: PathBuf,
    links: u32,
}

impl Walk {
    fn from_top() -> Result<Self, Distrust> {
        let path = PathBuf::from("/");
        let call = |errno: Errno| Distrust::Call { at: PathBuf::from("/"), source: errno.into() };
        let at = rustix::fs::open("/", PLACE, Mode::empty()).map_err(call)?;
        cannot_be_replaced(&rustix::fs::fstat(&at).map_err(call)?, &path)?;
        Ok(Self { at, path, links: 0 })
    }

    /// Goes on. Directories that are missing are made with `mode`, if there is one.
    fn go(&mut self, names: &Path, mode: Option<Mode>) -> Result<(), Distrust> {
        let mut todo: VecDeque<OsString> = steps(names).collect();
        while let Some(name) = todo.pop_front() {
            let path = if name == ".." { self.above() } else { self.path.join(&name) };
            let call = |errno: Errno| Distrust::Call { at: path.clone(), source: errno.into() };
            let open = || openat(&self.at, &name, PLACE, Mode::empty());
            let next = match (open(), mode) {
                (Err(Errno::NOENT), Some(mode)) => {
                    match mkdirat(&self.at, &name, mode) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(call(errno)),
                    }
                    open()
                }
                (opened, _) => opened,
            };
            let next = next.map_err(call)?;
            let found = rustix::fs::fstat(&next).map_err(call)?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
                is_own(&found, &path)?;
                self.links += 1;
                if self.links > MOST_LINKS {
                    return Err(call(Errno::LOOP));
                }
                let target =
                    PathBuf::from(OsString::from_vec(readlinkat(&next, "", Vec::new()).map_err(call)?.into_bytes()));
                if target.is_absolute() {
                    *self = Self { links: self.links, ..Self::from_top()? };
                }
                for step in steps(&target).collect::<Vec<_>>().into_iter().rev() {
                    todo.push_front(step);
                }
                continue;
            }
            cannot_be_replaced(&found, &path)?;
            (self.at, self.path) = (next, path);
        }
        Ok(())
    }

    fn above(&self) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("/")).to_owned()
    }

    fn is_closed_to_writers(&self) -> Result<(), Distrust> {
        let found = rustix::fs::fstat(&self.at);
        let found = found.map_err(|errno| Distrust::Call { at: self.path.clone(), source: errno.into() })?;
        is_written_by_nobody_else(&found, &self.path)
    }
}

/// The names of a path that lead somewhere.
fn steps(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

/// Only its owner, who is trusted, can put something else in the place of what another has made in it.
fn cannot_be_replaced(found: &Stat, at: &Path) -> Result<(), Distrust> {
    is_directory(found, at)?;
    is_own(found, at)?;
    if found.st_mode & STICKY != 0 { Ok(()) } else { is_written_by_nobody_else(found, at) }
}

fn is_written_by_nobody_else(found: &Stat, at: &Path) -> Result<(), Distrust> {
    let whom = match found.st_mode & (GROUP_WRITES | ALL_WRITE) {
        0 => return Ok(()),
        GROUP_WRITES => format!("its group {}", found.st_gid),
        _ => "everybody".to_owned(),
    };
    Err(Distrust::Writable { at: at.to_owned(), whom, mode: found.st_mode & 0o7777 })
}

fn is_directory(found: &Stat, at: &Path) -> Result<(), Distrust> {
    let what = match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => return Ok(()),
        FileType::Symlink => "a link",
        _ => "a file",
    };
    Err(Distrust::Kind { at: at.to_owned(), what, wanted: "directory" })
}

/// It belongs to this user, or to root.
fn is_own(found: &Stat, at: &Path) -> Result<(), Distrust> {
    if found.st_uid == 0 || found.st_uid == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let is_directory = FileType::from_raw_mode(found.st_mode).is_dir();
    Err(Distrust::Owner { at: at.to_owned(), user: found.st_uid, is_directory })
}

fn is_untouched_file(found: &Stat, at: &Path) -> Result<(), Distrust> {
    if !FileType::from_raw_mode(found.st_mode).is_file() {
        return Err(Distrust::Kind { at: at.to_owned(), what: "no plain file", wanted: "file" });
    }
    is_own(found, at)?;
    // One that was unlinked meanwhile has none.
    if found.st_nlink > 1 {
        return Err(Distrust::Linked { at: at.to_owned(), links: found.st_nlink });
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! Paths of the host that the operator names and root opens, perhaps much later: volumes, what is exposed, trees to
//! run on.
//!
//! Whoever can write to a directory on the way can put a link there, and root would open what it leads to. So a link is
//! followed only where nobody but root, or the user that this process acts as, could have put it: one of theirs, in
//! directories of theirs all the way. A guest's root writes as root to what it is shown; those directories are named by
//! the caller. What was found is held by a descriptor, and asked and shown by it: no path is looked up twice.
//!
//! ```text
//!   open(path, shared) ─▶ openat2(RESOLVE_NO_SYMLINKS) ─▶ there is no link: whoever owns what is on the way
//!                              │ there is one
//!                              ▼
//!                         directory by directory ─▶ a link: followed, or refused by name
//! ```

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, openat, openat2, readlinkat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// As many links in one path as the kernel follows.
const MOST_LINKS: u32 = 40;

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const ALL_WRITE: u32 = 0o002;
/// File systems of FUSE (`FUSE_SUPER_MAGIC`): a program of anybody's says who owns what is there.
const FUSE: i64 = 0x6573_5546;

/// A directory or file of the host that was found without being led elsewhere.
#[derive(Debug)]
pub struct OperatorPath {
    object: OwnedFd,
    path: PathBuf,
}

/// A directory that a guest can write to as root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The guest, in the words that a refusal names it by.
    pub by: String,
    /// The path of the directory on the host.
    pub path: PathBuf,
}

/// Why a path is not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misled {
    /// A link that others have put there, or can put another one in the place of.
    #[error(
        "'{at}' is a link {}; name what is meant by a path without links",
        .by.of_link(*.owner),
        at = .at.display()
    )]
    Link {
        /// The path of the link.
        at: PathBuf,
        /// The id of the user that owns the link.
        owner: u32,
        /// Those who can put something else there.
        by: Others,
    },
    /// A link that came after the path had been found to have none.
    #[error("there is a link on the way to '{at}' now, where there was none; name what is meant by a path without links", at = .at.display())]
    Appeared {
        /// The path that was found before.
        at: PathBuf,
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

/// Those who can put something else into a directory, and which directory that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Others {
    /// The owner of the link alone: the directory is sticky.
    Owner,
    /// A user that owns a directory on the way.
    User(u32, PathBuf),
    /// The members of a group, by a directory on the way.
    Group(u32, PathBuf),
    /// Everybody, by a directory on the way.
    Everybody(PathBuf),
    /// Whoever serves a file system, which is mounted on the way.
    Server(PathBuf),
    /// A guest that is shown a directory on the way.
    Guest(String, PathBuf),
}

impl Others {
    fn of_link(&self, owner: u32) -> String {
        match self {
            Self::Guest(name, at) => format!("below '{}', where {name} can put one", at.display()),
            _ if !is_trusted(owner) => format!("that user {owner} has put there"),
            Self::Owner => format!("of user {owner}"),
            Self::User(user, at) => format!("below '{}', where user {user} can put one", at.display()),
            Self::Group(group, at) => format!("below '{}', where group {group} can put one", at.display()),
            Self::Everybody(at) => format!("below '{}', where everybody can put one", at.display()),
            Self::Server(at) => format!("below '{}', a file system that a program serves", at.display()),
        }
    }
}

impl From<Misled> for io::Error {
    /// A system call's error stays what it is; all else is [`io::ErrorKind::PermissionDenied`].
    fn from(error: Misled) -> Self {
        match error {
            Misled::Call { source, .. } => source,
            error => Self::new(io::ErrorKind::PermissionDenied, error),
        }
    }
}

impl OperatorPath {
    /// Finds what a path of the host's leads to. `shared` are the directories that guests can write to; they are looked
    /// for where there is a link on the way.
    ///
    /// # Errors
    ///
    /// [`Misled`]: by a link of others; by system calls, as when nothing is there.
    pub fn open(path: &Path, shared: &[Shared]) -> Result<Self, Misled> {
        let path = std::path::absolute(path).map_err(|source| Misled::Call { at: path.to_owned(), source })?;
        if let Ok(object) = without_links(&path) {
            return Self::of(object, path);
        }
        // A link, or an error: the walk names it.
        let mut walk = Walk::begin()?;
        walk.go(&path, &mut |passed| beneath_shared(passed, shared))?;
        let object = walk.stack.pop().map_or(walk.top, |place| place.directory);
        Self::of(object, path)
    }

    /// Finds what a path leads to that [`open`](Self::open) has given before: no link is followed, whosever it is.
    ///
    /// # Errors
    ///
    /// [`Misled`]: where a link is on the way by now; by system calls, as when nothing is there any more.
    pub fn open_again(path: &Path) -> Result<Self, Misled> {
        let object = without_links(path).map_err(|errno| match errno {
            Errno::LOOP => Misled::Appeared { at: path.to_owned() },
            errno => Misled::Call { at: path.to_owned(), source: errno.into() },
        })?;
        Self::of(object, path.to_owned())
    }

    fn of(object: OwnedFd, named: PathBuf) -> Result<Self, Misled> {
        let shown = crate::file::confined::by_descriptor(object.as_fd());
        let path = std::fs::read_link(shown).map_err(|source| Misled::Call { at: named, source })?;
        Ok(Self { object, path })
    }

    /// Whether it is a directory.
    ///
    /// # Errors
    ///
    /// Those of fstat(2).
    pub fn is_directory(&self) -> io::Result<bool> {
        Ok(FileType::from_raw_mode(fstat(&self.object)?.st_mode).is_dir())
    }

    /// Where it lay when it was found, with links resolved. It says what was found, and is not for opening it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for OperatorPath {
    /// As a mere place (O_PATH).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.object.as_fd()
    }
}

/// What an absolute path leads to where no link is on the way, and none at its end.
fn without_links(path: &Path) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let from = |place: BorrowedFd<'_>, path: &OsStr| find(|flags| openat2(place, path, flags, Mode::empty(), resolve));
    if !path.components().any(|step| step == Component::ParentDir) {
        return from(CWD, path.as_os_str());
    }
    // The kernel's parent of a directory may be another than the one it was come from, once others have moved it.
    let mut passed = vec![from(CWD, OsStr::new("/"))?];
    for step in steps(path) {
        let here = passed.last().ok_or(Errno::NOENT)?;
        if step != ".." {
            passed.push(from(here.as_fd(), &step)?);
        } else if !FileType::from_raw_mode(fstat(here)?.st_mode).is_dir() {
            return Err(Errno::NOTDIR);
        } else {
            passed.truncate((passed.len() - 1).max(1));
        }
    }
    passed.pop().ok_or(Errno::NOENT)
}

/// As a directory first: only so are file systems mounted that are mounted when they are needed (autofs).
fn find(open: impl Fn(OFlags) -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    let place = OFlags::PATH | OFlags::CLOEXEC;
    match open(place | OFlags::DIRECTORY) {
        Err(Errno::NOTDIR | Errno::LOOP) => open(place),
        found => found,
    }
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// The guest that can write to one of the directories that were passed. Those of `shared` are found the shorter ones
/// first, so that none of them is looked for by a link in another.
fn beneath_shared(passed: &[(u64, u64)], shared: &[Shared]) -> Option<Others> {
    let mut shared: Vec<_> = shared.iter().collect();
    shared.sort_by_key(|one| one.path.components().count());
    let mut known: Vec<((u64, u64), &Shared)> = Vec::new();
    let within = |passed: &[(u64, u64)], known: &[((u64, u64), &Shared)]| {
        let found = known.iter().find(|(identity, _)| passed.contains(identity));
        found.map(|(_, one)| Others::Guest(one.by.clone(), one.path.clone()))
    };
    for one in shared {
        let Ok(mut walk) = Walk::begin() else { continue };
        // What cannot be found lies in another, or nowhere. Whoever has the top has the host, links or none.
        if walk.go(&one.path, &mut |passed| within(passed, &known)).is_ok()
            && let Some(last) = walk.stack.last()
        {
            known.push((last.identity, one));
        }
    }
    within(passed, &known)
}

/// A directory on the way, or what was found at its end.
struct Passed {
    directory: OwnedFd,
    path: PathBuf,
    identity: (u64, u64),
    /// Those who can put something else into it, or in its place.
    others: Option<Others>,
}

/// A way, and where it has come to.
struct Walk {
    top: OwnedFd,
    stack: Vec<Passed>,
    links: u32,
}

/// Which others can write to one of these directories, if any.
type Asked<'a> = &'a mut dyn FnMut(&[(u64, u64)]) -> Option<Others>;

impl Walk {
    fn begin() -> Result<Self, Misled> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open("/", flags, Mode::empty());
        let top = top.map_err(|errno| Misled::Call { at: PathBuf::from("/"), source: errno.into() })?;
        Ok(Self { top, stack: Vec::new(), links: 0 })
    }

    fn go(&mut self, path: &Path, shared: Asked<'_>) -> Result<(), Misled> {
        let mut todo: VecDeque<OsString> = steps(path).collect();
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                // Where it was come from. The kernel's parent may be another, once others have moved it.
                self.stack.pop();
                continue;
            }
            let path = self.stack.last().map_or(Path::new("/"), |here| &here.path).join(&name);
            let call = |errno: Errno| Misled::Call { at: path.clone(), source: errno.into() };
            let next =
                find(|flags| openat(self.here(), &name, flags | OFlags::NOFOLLOW, Mode::empty())).map_err(call)?;
            let found = fstat(&next).map_err(call)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
                self.enter(next, path, &found)?;
                continue;
            }
            self.may_follow(&found, &path, shared)?;
            self.links += 1;
            if self.links > MOST_LINKS {
                return Err(call(Errno::LOOP));
            }
            let target = readlinkat(&next, "", Vec::new()).map_err(call)?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            if target.is_absolute() {
                self.stack.clear();
            }
            for step in steps(&target).collect::<Vec<_>>().into_iter().rev() {
                todo.push_front(step);
            }
        }
        Ok(())
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.stack.last().map_or(self.top.as_fd(), |here| here.directory.as_fd())
    }

    /// Goes into what was opened. What others can replace stays theirs however deep the way leads.
    fn enter(&mut self, directory: OwnedFd, path: PathBuf, found: &Stat) -> Result<(), Misled> {
        let others = match self.stack.last().and_then(|above| above.others.clone()) {
            Some(others) => Some(others),
            None if fstatfs(&directory).is_ok_and(|system| system.f_type == FUSE) => Some(Others::Server(path.clone())),
            None => others(found, &path),
        };
        self.stack.push(Passed { directory, path, identity: (found.st_dev, found.st_ino), others });
        Ok(())
    }

    fn may_follow(&self, link: &Stat, at: &Path, shared: Asked<'_>) -> Result<(), Misled> {
        let passed: Vec<_> = self.stack.iter().map(|one| one.identity).collect();
        let others = self.stack.last().and_then(|here| here.others.clone());
        let others = others.or_else(|| (!is_trusted(link.st_uid)).then_some(Others::Owner));
        match others.or_else(|| shared(&passed)) {
            Some(by) => Err(Misled::Link { at: at.to_owned(), owner: link.st_uid, by }),
            None => Ok(()),
        }
    }
}

/// Those who can put something else in the place of what root has made in a directory.
fn others(found: &Stat, at: &Path) -> Option<Others> {
    if !is_trusted(found.st_uid) {
        return Some(Others::User(found.st_uid, at.to_owned()));
    }
    match found.st_mode & (STICKY | GROUP_WRITES | ALL_WRITE) {
        mode if mode & STICKY != 0 => None,
        0 => None,
        GROUP_WRITES => Some(Others::Group(found.st_gid, at.to_owned())),
        _ => Some(Others::Everybody(at.to_owned())),
    }
}

/// The names of a path that lead somewhere.
fn steps(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    })
}

#[cfg(test)]
#[path = "operator_path/tests.rs"]
mod tests;

//! A copy of a tree of files, live or not, that keeps everything a guest could notice.
//!
//! Owner, mode, times, extended attributes, hard links, holes, names of any bytes, any depth. The walk goes name by
//! name through directory descriptors ([`Chain`]), so a process that renames things in the source while it runs can
//! make it copy old or new files, never files from elsewhere; and only root can reach the destination.

mod attributes;
mod content;
mod node;

pub(crate) use attributes::{Attributes, is_carried};

use super::meter::{Cancelled, Meter};
use super::mounts::{Mounts, Standing};
use super::root::Root;
use super::write_error::WriteError;
use super::{Progress, Summary};
use pando_kernel::file::directory_chain::{Chain, Identity, identity, look_at};
use pando_kernel::filesystem::spare_room::SpareRoom;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What happens to one name of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is copied, and what is in it is asked about.
    Copy,
    /// The path is left out.
    Absent,
    /// A directory stays, empty; a file stays, empty.
    Hollow,
    /// Directories stay, with the directories in them; files do not.
    Skeleton,
}

/// Decides what of a tree is copied; paths are relative to its root.
pub(crate) trait Chooser {
    fn verdict(&self, path: &Path) -> Verdict;

    /// Whether the user named this path, or one below it: then it is copied even if it is a mount of its own.
    fn insists(&self, _path: &Path) -> bool {
        false
    }
}

/// Chooses everything.
struct Everything;

impl Chooser for Everything {
    fn verdict(&self, _: &Path) -> Verdict {
        Verdict::Copy
    }
}

/// Why a tree was not copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// There is no such directory.
    #[error(
        "cannot copy the directory '{from}': {source}; a source of files is a directory, or a tarball whose name ends in .tar, .tar.gz, .tar.zst or .tar.xz"
    )]
    Source {
        /// The directory that is copied.
        from: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something in the source could not be read.
    #[error(
        "cannot copy '{from}': reading '{path}' in it failed: {source}; repair or remove that file, then try again"
    )]
    Read {
        /// The tree that is copied.
        from: PathBuf,
        /// The path of the file in it.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A directory moved away under the walk.
    #[error(
        "cannot copy '{from}': the directory '{path}' in it was moved while it was copied; try again when nothing moves directories there"
    )]
    Moved {
        /// The tree that is copied.
        from: PathBuf,
        /// The path of the directory in it.
        path: PathBuf,
    },
    /// The destination takes no more.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The user stopped the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// Copies the directory `from` into the empty directory `into`.
pub(crate) fn copy_directory(from: &Path, into: &Path, progress: &dyn Progress) -> Result<Summary, CopyError> {
    progress.stage(&format!("copying {}", from.display()));
    copy_tree(from, into, &Everything, progress)
}

/// Copies a tree that is attached nowhere: `from` is the link in /proc of an open descriptor of it. To read that link
/// would lead astray, since it says "/" of whatever such tree; opening it does not.
pub(crate) fn copy_detached(from: &Path, into: &Path, progress: &dyn Progress) -> Result<Summary, CopyError> {
    progress.stage("copying the guest's files");
    let missing = |error: Errno| CopyError::Source { from: from.to_owned(), source: error.into() };
    let source = rustix::fs::open(from, OPEN_DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty()).map_err(missing)?;
    copy_opened(from, source, Mounts::default(), into, &Everything, progress)
}

/// Copies what `chooser` chooses of `from` into the empty directory `into`.
pub(crate) fn copy_tree(
    from: &Path,
    into: &Path,
    chooser: &dyn Chooser,
    progress: &dyn Progress,
) -> Result<Summary, CopyError> {
    let missing = |source: io::Error| CopyError::Source { from: from.to_owned(), source };
    let from = &from.canonicalize().map_err(missing)?;
    let source = rustix::fs::open(from, OPEN_DIRECTORY, Mode::empty()).map_err(|error| missing(error.into()))?;
    let mounts = Mounts::read(from).map_err(|error| missing(error.source))?;
    copy_opened(from, source, mounts, into, chooser, progress)
}

fn copy_opened(
    from: &Path,
    source: OwnedFd,
    mounts: Mounts,
    into: &Path,
    chooser: &dyn Chooser,
    progress: &dyn Progress,
) -> Result<Summary, CopyError> {
    let unwritable = |error: Errno| WriteError::new("open", Path::new("."), into, error);
    let target = rustix::fs::open(into, OPEN_DIRECTORY, Mode::empty()).map_err(unwritable)?;
    let mut copier = Copier {
        from,
        into,
        chooser,
        mounts,
        destination: identity(&look_at(target.as_fd()).map_err(unwritable)?),
        root: Root::open(into).map_err(unwritable)?,
        links: HashMap::new(),
        room: SpareRoom::at(&target).map_err(unwritable)?,
        meter: Meter::new(progress, None),
        summary: Summary::default(),
    };
    copier.walk(source, target)?;
    copier.meter.report()?;
    Ok(copier.summary)
}

const OPEN_DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

struct Copier<'a> {
    from: &'a Path,
    into: &'a Path,
    chooser: &'a dyn Chooser,
    mounts: Mounts,
    /// The destination may lie inside the source: it is not copied into itself.
    destination: Identity,
    root: Root,
    /// Where the first name of each file with several names went.
    links: HashMap<Identity, PathBuf>,
    /// What it may take of the destination.
    room: SpareRoom,
    meter: Meter<'a>,
    summary: Summary,
}

/// A directory on the way from the root to where the walk stands.
struct Level {
    path: PathBuf,
    attributes: Attributes,
    /// What is still to do in it: names with the type that readdir gave.
    todo: std::vec::IntoIter<(OsString, FileType)>,
}

/// Both sides of the walk.
struct Sides {
    source: Chain,
    target: Chain,
}

impl Copier<'_> {
    fn walk(&mut self, source: OwnedFd, target: OwnedFd) -> Result<(), CopyError> {
        let top = Path::new("");
        let mut levels = vec![self.level(source.as_fd(), top)?];
        let mut sides = Sides { source: Chain::new(source), target: Chain::new(target) };
        while let Some(level) = levels.last_mut() {
            let Some((name, kind)) = level.todo.next() else {
                let Some(done) = levels.pop() else { break };
                self.finish(&mut sides, done)?;
                continue;
            };
            let path = level.path.join(&name);
            self.meter.add(0)?;
            if let Some(below) = self.entry(&mut sides, path, &name, kind)? {
                levels.push(below);
            }
        }
        Ok(())
    }

    /// Gives a directory its attributes, now that nothing in it changes any more, and goes up.
    fn finish(&mut self, sides: &mut Sides, level: Level) -> Result<(), CopyError> {
        let applied = level.attributes.apply(sides.target.deepest(), FileType::Directory);
        self.summary.left.attributes +=
            applied.map_err(|(action, error)| self.unwritten(action, &level.path, error))?;
        sides.target.leave().map_err(|error| self.unwritten("go up from", &level.path, error))?;
        sides.source.leave().map_err(|_| CopyError::Moved { from: self.from.to_owned(), path: level.path.clone() })
    }

    /// Copies one name; returns the level to go down into if it is a directory.
    fn entry(
        &mut self,
        sides: &mut Sides,
        path: PathBuf,
        name: &OsStr,
        kind: FileType,
    ) -> Result<Option<Level>, CopyError> {
        let mut verdict = self.chooser.verdict(&path);
        if verdict == Verdict::Absent {
            return Ok(None);
        }
        let mount =
            self.mounts.at(&path).map(|standing| if self.chooser.insists(&path) { Standing::Part } else { standing });
        if mount == Some(Standing::Foreign) {
            self.summary.left.mounts.push(path.clone());
            self.stand_in(sides, &path, name, kind)?;
            return Ok(None);
        }
        if mount == Some(Standing::Empty) {
            self.summary.left.mounts.push(path.clone());
            verdict = Verdict::Hollow;
        }
        let object = match open_object(sides.source.deepest(), name, mount.is_some()) {
            Ok(object) => object,
            Err(Errno::NOENT) => {
                self.summary.left.vanished += 1;
                return Ok(None);
            }
            // Mounted since the table was read.
            Err(Errno::XDEV) => {
                self.summary.left.mounts.push(path.clone());
                self.stand_in(sides, &path, name, kind)?;
                return Ok(None);
            }
            Err(error) => return Err(self.unread(&path, error)),
        };
        let stat = look_at(object.as_fd()).map_err(|error| self.unread(&path, error))?;
        if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
            self.node(sides.target.deepest(), &path, name, &object, &stat, verdict)?;
            return Ok(None);
        }
        if identity(&stat) == self.destination {
            verdict = Verdict::Hollow;
        }
        self.directory(sides, path, name, &object, verdict)
    }

    fn directory(
        &mut self,
        sides: &mut Sides,
        path: PathBuf,
        name: &OsStr,
        object: &OwnedFd,
        verdict: Verdict,
    ) -> Result<Option<Level>, CopyError> {
        self.take_name(&path)?;
        // Only its owner may enter it until it is complete.
        rustix::fs::mkdirat(sides.target.deepest(), name, Mode::RWXU)
            .map_err(|error| self.unwritten("make", &path, error))?;
        let made = rustix::fs::openat(sides.target.deepest(), name, OPEN_DIRECTORY, Mode::empty())
            .map_err(|error| self.unwritten("open", &path, error))?;
        if verdict == Verdict::Hollow {
            let stat = look_at(object.as_fd()).map_err(|error| self.unread(&path, error))?;
            let (attributes, _) = Attributes::read(object.as_fd(), &stat).map_err(|error| self.unread(&path, error))?;
            let applied = attributes.apply(made.as_fd(), FileType::Directory);
            self.summary.left.attributes += applied.map_err(|(action, error)| self.unwritten(action, &path, error))?;
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let source = openat2(object, ".", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .map_err(|error| self.unread(&path, error))?;
        let level = self.level(source.as_fd(), &path)?;
        sides.source.enter(source).map_err(|error| self.unread(&path, error))?;
        sides.target.enter(made).map_err(|error| self.unwritten("open", &path, error))?;
        Ok(Some(level))
    }

    fn level(&mut self, directory: BorrowedFd<'_>, path: &Path) -> Result<Level, CopyError> {
        let read = || -> Result<_, Errno> {
            let (attributes, dropped) = Attributes::read(directory, &look_at(directory)?)?;
            let mut names = Vec::new();
            for entry in Dir::read_from(directory)? {
                let entry = entry?;
                let name = entry.file_name().to_owned();
                if name.as_c_str() != c"." && name.as_c_str() != c".." {
                    names.push((entry.ino(), OsString::from_vec(name.into_bytes()), entry.file_type()));
                }
            }
            // A name that was removed and made again meanwhile can come twice.
            names.sort_unstable_by(|a, b| a.1.cmp(&b.1));
            names.dedup_by(|a, b| a.1 == b.1);
            // The order in which a disk has them.
            names.sort_unstable_by_key(|(inode, ..)| *inode);
            Ok((attributes, dropped, names))
        };
        let (attributes, dropped, names) = read().map_err(|error| self.unread(path, error))?;
        self.summary.left.attributes += dropped;
        let todo: Vec<_> = names.into_iter().map(|(_, name, kind)| (name, kind)).collect();
        Ok(Level { path: path.to_owned(), attributes, todo: todo.into_iter() })
    }

    /// Makes the place on which a mount that is not copied could stand.
    fn stand_in(&self, sides: &Sides, path: &Path, name: &OsStr, kind: FileType) -> Result<(), CopyError> {
        let target = sides.target.deepest();
        let made = match kind {
            FileType::Directory => rustix::fs::mkdirat(target, name, Mode::from_raw_mode(0o755)),
            _ => super::root::new_file(target, name).map(drop),
        };
        made.map_err(|error| self.unwritten("make", path, error))
    }

    /// Takes room for one thing that is made at `path`.
    fn take_name(&mut self, path: &Path) -> Result<(), CopyError> {
        let taken = self.room.take_files(1);
        Ok(taken.map_err(|refusal| WriteError::refused(path, self.into, refusal))?)
    }

    fn unread(&self, path: &Path, source: impl Into<io::Error>) -> CopyError {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        CopyError::Read { from: self.from.to_owned(), path: path.to_owned(), source: source.into() }
    }

    fn unwritten(&self, action: &'static str, path: &Path, source: impl Into<io::Error>) -> CopyError {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        WriteError::new(action, path, self.into, source).into()
    }
}

/// The object `name` of `directory` itself. EXDEV: something is mounted on it, and that is not expected.
fn open_object(directory: BorrowedFd<'_>, name: &OsStr, mounted: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let confined = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    let resolve = if mounted { confined } else { confined | ResolveFlags::NO_XDEV };
    openat2(directory, name, flags, Mode::empty(), resolve)
}

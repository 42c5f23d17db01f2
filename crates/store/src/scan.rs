//! A tree of files at rest, read once and by several threads: its metadata as an image will hold it, and what became of
//! the content of its files.
//!
//! Every step goes through a directory's descriptor and follows no link, so that nothing outside the tree is ever read.
//! A task reads one directory, or some of the files in it, and waits for no other; a directory stays open until the
//! last of its tasks is done. The threads take the newest task first, so that as many directories are open as a tree is
//! deep, and not as it is wide.

use crate::assembly::{Found, Met, Parts};
use crate::crash::{Mistake, planted};
use crate::known::Fingerprint;
use crate::{ImportError, attributes, readers};
use composefs::INLINE_CONTENT_MAX_V0;
use composefs::fsverity::Sha256HashValue;
use composefs::generic_tree::{Leaf, LeafContent, Stat};
use composefs::tree::{FileSystem, RegularFile};
use pando_kernel::Context;
use rayon::Scope;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How deep directories may lie: each level holds a descriptor while what is below it is read. No path that a program
/// can name in one piece is deeper with names of more than eight bytes.
const DEEPEST: usize = 450;

/// How many files of one directory make a task.
const TOGETHER: usize = 32;

/// What becomes of the content of files that an image does not hold itself.
pub(crate) trait Contents: Sync {
    /// The content of a file that need not be opened: all that there is about it is known, and it has no extended
    /// attributes that are kept.
    fn unopened(&self, fingerprint: &Fingerprint, size: u64) -> Option<Sha256HashValue>;

    /// That of one that was opened, with its length.
    fn opened(&self, file: &Opened<'_>) -> Result<(Sha256HashValue, u64), ImportError>;
}

/// A file whose content is asked for.
pub(crate) struct Opened<'a> {
    pub(crate) file: File,
    pub(crate) stat: rustix::fs::Stat,
    pub(crate) attributes: &'a Stat,
    place: Place<'a>,
}

impl Opened<'_> {
    /// Where it lies in the tree.
    pub(crate) fn path(&self) -> PathBuf {
        self.place.path()
    }
}

/// A directory that is open.
struct Directory {
    opened: OwnedFd,
    name: OsString,
    above: Option<Arc<Directory>>,
    depth: usize,
    /// By which the parts know it.
    number: usize,
}

/// A name in a directory, or the tree itself.
#[derive(Clone, Copy)]
struct Place<'a> {
    directory: Option<&'a Arc<Directory>>,
    name: &'a OsStr,
}

impl Place<'_> {
    fn path(&self) -> PathBuf {
        let mut names = vec![self.name];
        let mut directory = self.directory;
        while let Some(below) = directory.filter(|below| below.above.is_some()) {
            names.push(&below.name);
            directory = below.above.as_ref();
        }
        names.iter().rev().collect()
    }

    fn failed(&self, error: Errno) -> ImportError {
        ImportError::Read { path: self.path(), source: error.into() }
    }

    fn unfit(&self, reason: &str) -> ImportError {
        ImportError::Unfit { path: self.path(), reason: reason.into() }
    }

    fn open(&self, at: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, ImportError> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match openat(at, self.name, flags | OFlags::NOATIME, Mode::empty()) {
            // Not ours, and we are not root.
            Err(Errno::PERM) => openat(at, self.name, flags, Mode::empty()),
            opened => opened,
        };
        opened.map_err(|error| self.failed(error))
    }
}

/// Reads the tree below `root`. To be called on a deep stack.
///
/// # Errors
///
/// What `contents` answers with stops the scan.
pub(crate) fn scan(root: BorrowedFd<'_>, contents: &dyn Contents) -> Result<FileSystem<Sha256HashValue>, ImportError> {
    let scanner = Scanner {
        contents,
        parts: Mutex::new(Parts::default()),
        claimed: Mutex::default(),
        failure: OnceLock::new(),
        may_link: !planted(Mistake::LostHardLink),
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(readers::count()).thread_name(|_| "store".into()).build();
    let pool = pool.map_err(std::io::Error::other).context(|| "starting threads".into())?;
    pool.scope(|scope| scanner.tell(scanner.directory(scope, root, Place { directory: None, name: OsStr::new(".") })));
    match scanner.failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(scanner.parts.into_inner().unwrap_or_else(PoisonError::into_inner).assemble()),
    }
}

struct Scanner<'a> {
    contents: &'a dyn Contents,
    parts: Mutex<Parts>,
    /// Files with several names that are being read or were read, by device and inode.
    claimed: Mutex<HashSet<(u64, u64)>>,
    /// Why it is given up.
    failure: OnceLock<ImportError>,
    may_link: bool,
}

impl Scanner<'_> {
    fn parts(&self) -> std::sync::MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first failure is the one that is told.
    fn tell(&self, done: Result<(), ImportError>) {
        if let Err(error) = done {
            let _ = self.failure.set(error);
        }
    }

    fn directory<'s>(&'s self, scope: &Scope<'s>, at: BorrowedFd<'_>, place: Place<'_>) -> Result<(), ImportError> {
        if self.failure.get().is_some() {
            return Ok(());
        }
        let depth = place.directory.map_or(0, |above| above.depth + 1);
        if depth > DEEPEST {
            return Err(place.unfit("it lies too deep"));
        }
        let opened = place.open(at, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let stat = fstat(&opened).map_err(|error| place.failed(error))?;
        let attributes = attributes::read(opened.as_fd(), &stat).map_err(|error| place.failed(error))?;
        let (below, files) = entries(&opened, place)?;
        let number = self.parts().directory(place.directory.map(|above| above.number), place.name, attributes);
        let (above, name) = (place.directory.cloned(), place.name.to_owned());
        let directory = Arc::new(Directory { opened, name, above, depth, number });
        for name in below {
            let directory = Arc::clone(&directory);
            scope.spawn(move |scope| {
                let place = Place { directory: Some(&directory), name: &name };
                self.tell(self.directory(scope, directory.opened.as_fd(), place));
            });
        }
        let mut files = files.into_iter().peekable();
        while files.peek().is_some() {
            let some: Vec<_> = files.by_ref().take(TOGETHER).collect();
            let directory = Arc::clone(&directory);
            scope.spawn(move |_| self.tell(self.files(&directory, some)));
        }
        Ok(())
    }

    fn files(&self, directory: &Arc<Directory>, files: Vec<(OsString, FileType)>) -> Result<(), ImportError> {
        let mut met = Vec::with_capacity(files.len());
        for (name, kind) in files {
            if self.failure.get().is_some() {
                return Ok(());
            }
            let leaf = self.leaf(directory.opened.as_fd(), kind, Place { directory: Some(directory), name: &name })?;
            met.push((name, leaf));
        }
        self.parts().files(directory.number, met);
        Ok(())
    }

    fn leaf(&self, at: BorrowedFd<'_>, kind: FileType, place: Place<'_>) -> Result<Met, ImportError> {
        let stat = statat(at, place.name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| place.failed(error))?;
        let identity = (stat.st_dev, stat.st_ino);
        let has_several = stat.st_nlink > 1 && self.may_link;
        if has_several && !self.claimed.lock().unwrap_or_else(PoisonError::into_inner).insert(identity) {
            return Ok(Met::Again(identity));
        }
        let leaf = match self.unopened(&stat) {
            Some(leaf) if FileType::from_raw_mode(stat.st_mode) == kind => leaf,
            _ => self.opened(at, kind, identity, place)?,
        };
        Ok(if has_several { Met::First(identity, leaf) } else { Met::Only(leaf) })
    }

    fn unopened(&self, stat: &rustix::fs::Stat) -> Option<Found> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let size = stat.st_size.cast_unsigned();
        let digest = self.contents.unopened(&Fingerprint::of(stat), size)?;
        let content = LeafContent::Regular(RegularFile::External(digest, size));
        Some(Leaf { stat: attributes::plain(stat), content })
    }

    fn opened(
        &self,
        at: BorrowedFd<'_>,
        kind: FileType,
        identity: (u64, u64),
        place: Place<'_>,
    ) -> Result<Found, ImportError> {
        let flags = if kind == FileType::RegularFile { OFlags::RDONLY | OFlags::NONBLOCK } else { OFlags::PATH };
        let file = place.open(at, flags)?;
        let stat = fstat(&file).map_err(|error| place.failed(error))?;
        if FileType::from_raw_mode(stat.st_mode) != kind || (stat.st_dev, stat.st_ino) != identity {
            return Err(place.unfit("it became another file while it was read"));
        }
        let attributes = attributes::read(file.as_fd(), &stat).map_err(|error| place.failed(error))?;
        let content = self.content(file, stat, &attributes, place)?;
        Ok(Leaf { stat: attributes, content })
    }

    fn content(
        &self,
        file: OwnedFd,
        stat: rustix::fs::Stat,
        attributes: &Stat,
        place: Place<'_>,
    ) -> Result<LeafContent<RegularFile<Sha256HashValue>>, ImportError> {
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                LeafContent::Regular(self.regular(Opened { file: file.into(), stat, attributes, place })?)
            }
            FileType::Symlink => {
                let target = readlinkat(&file, "", Vec::new()).map_err(|error| place.failed(error))?;
                LeafContent::Symlink(OsStr::from_bytes(target.as_bytes()).into())
            }
            // In a layer it would hide what lies below.
            FileType::CharacterDevice if stat.st_rdev == 0 => return Err(place.unfit("it is an overlay's whiteout")),
            FileType::CharacterDevice => LeafContent::CharacterDevice(stat.st_rdev),
            FileType::BlockDevice => LeafContent::BlockDevice(stat.st_rdev),
            FileType::Fifo => LeafContent::Fifo,
            FileType::Socket => LeafContent::Socket,
            _ => return Err(place.unfit("it is of an unknown kind")),
        })
    }

    fn regular(&self, opened: Opened<'_>) -> Result<RegularFile<Sha256HashValue>, ImportError> {
        if opened.stat.st_size > INLINE_CONTENT_MAX_V0 as i64 {
            let (digest, size) = self.contents.opened(&opened)?;
            return Ok(RegularFile::External(digest, size));
        }
        let mut bytes = Vec::new();
        let limit = INLINE_CONTENT_MAX_V0 as u64 + 1;
        let read = (&opened.file).take(limit).read_to_end(&mut bytes);
        read.map_err(|source| ImportError::Read { path: opened.path(), source })?;
        if bytes.len() as i64 != opened.stat.st_size {
            return Err(opened.place.unfit("it changed while it was read"));
        }
        Ok(RegularFile::Inline(bytes.into_boxed_slice()))
    }
}

/// What lies in a directory: the directories, and all else.
type Entries = (Vec<OsString>, Vec<(OsString, FileType)>);

fn entries(directory: &OwnedFd, place: Place<'_>) -> Result<Entries, ImportError> {
    let (mut below, mut files) = Entries::default();
    for entry in Dir::read_from(directory).map_err(|error| place.failed(error))? {
        let entry = entry.map_err(|error| place.failed(error))?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            // Some file systems leave that to be asked.
            FileType::Unknown => {
                let stat = statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                FileType::from_raw_mode(stat.map_err(|error| place.failed(error))?.st_mode)
            }
            known => known,
        };
        let name = OsString::from_vec(name.to_vec());
        if kind == FileType::Directory { below.push(name) } else { files.push((name, kind)) }
    }
    Ok((below, files))
}

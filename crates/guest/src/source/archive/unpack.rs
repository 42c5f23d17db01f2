//! Entries of an archive become files, and only below the destination.
//!
//! The parent of each entry is resolved by the kernel with the destination as root ([`Root`]); the last name is never
//! followed. What stands there already is replaced, as in every archiver: the later entry counts. Directories get their
//! attributes at the end, since each file made in one changes its times, and a read-only one must take its files first.

use super::allowance::Allowance;
use super::entry::Entry;
use super::entry_path;
use crate::source::Summary;
use crate::source::copy::Attributes;
use crate::source::meter::Cancelled;
use crate::source::root::{Root, new_file, object, open_below};
use crate::source::write_error::WriteError;
use pando_kernel::file::tree_removal::remove_child;
use pando_reader::{ATTRIBUTE_EACH, Kind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, linkat, mkdirat, mknodat, openat, statat, symlinkat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const BUFFER: usize = 256 << 10;

/// The most that is kept in memory of directories' attributes until the end: a million of them without extended ones
/// take a third.
const MOST_KEPT: usize = 512 << 20;

/// What a directory without extended attributes takes besides its path.
const KEPT_EACH: usize = 160;

/// For a directory itself, and not what a link there leads to.
const ITSELF: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Why an entry was not unpacked.
#[derive(Debug)]
pub(crate) enum UnpackError {
    /// What the entry asks for, as the rest of a sentence.
    Refused(String),
    /// Its content could not be read.
    Read(io::Error),
    Write(WriteError),
    Cancelled(Cancelled),
}

/// Why a directory on the way to an entry was not made.
enum NotMade {
    Call(Errno),
    Refused(UnpackError),
}

impl From<Errno> for NotMade {
    fn from(error: Errno) -> Self {
        Self::Call(error)
    }
}

impl From<UnpackError> for NotMade {
    fn from(refused: UnpackError) -> Self {
        Self::Refused(refused)
    }
}

impl From<WriteError> for UnpackError {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

impl From<Cancelled> for UnpackError {
    fn from(cancelled: Cancelled) -> Self {
        Self::Cancelled(cancelled)
    }
}

/// A directory by its path and as it was found.
type Known = (PathBuf, Rc<OwnedFd>);

pub(crate) struct Unpacker<'a> {
    into: &'a Path,
    root: Root,
    allowance: Allowance,
    /// Of two entries for one directory the later counts.
    directories: BTreeMap<PathBuf, Attributes>,
    /// Bytes that they take, about.
    kept: usize,
    /// The last entry's parent: the next one's is mostly the same.
    parent: Option<Known>,
    /// The directory of that parent: a new neighbour of it needs no walk from the top, which takes its time two
    /// thousand levels down.
    above: Option<Known>,
    summary: Summary,
}

impl<'a> Unpacker<'a> {
    pub(crate) fn new(into: &'a Path) -> Result<Self, WriteError> {
        let unopened = |error| WriteError::new("open", Path::new("."), into, error);
        let root = Root::open(into).map_err(unopened)?;
        let allowance = Allowance::of(&root, into).map_err(unopened)?;
        Ok(Self {
            into,
            root,
            allowance,
            directories: BTreeMap::new(),
            kept: 0,
            parent: None,
            above: None,
            summary: Summary::default(),
        })
    }

    /// Makes the entry at `path`, which [`entry_path()`] made of its name.
    pub(crate) fn place(
        &mut self,
        path: &Path,
        entry: &Entry,
        content: &mut dyn Read,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<(), UnpackError> {
        match entry.kind {
            Kind::Device => {
                self.allowance.skip(entry)?;
                self.summary.left.devices += 1;
            }
            Kind::Unknown => {
                self.allowance.skip(entry)?;
                self.summary.left.unknown += 1;
            }
            Kind::Directory => self.directory(path, entry)?,
            _ => self.file(path, entry, content, step)?,
        }
        Ok(())
    }

    /// Notes an entry that nothing is made of.
    pub(crate) fn skip(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        self.allowance.skip(entry)
    }

    /// Gives the directories their attributes. Returns what was made.
    pub(crate) fn finish(mut self) -> Result<Summary, WriteError> {
        // Neighbours follow each other.
        let mut above: Option<(PathBuf, OwnedFd)> = None;
        for (path, attributes) in std::mem::take(&mut self.directories) {
            let wanted = path.parent().unwrap_or(Path::new(""));
            if above.as_ref().is_none_or(|(known, _)| known.as_os_str() != wanted.as_os_str()) {
                above = self.root.directory(wanted).ok().map(|directory| (wanted.to_owned(), directory));
            }
            let found = match (&above, path.file_name()) {
                (Some((_, above)), Some(name)) => openat(above, name, ITSELF, Mode::empty()),
                _ => self.exactly(&path),
            };
            let directory = match found {
                Ok(directory) => directory,
                // A later entry replaced it.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(self.unwritten("open", &path, error)),
            };
            self.attributes(&path, &directory, FileType::Directory, &attributes)?;
        }
        Ok(self.summary)
    }

    /// Removes what is at `path`, if anything is.
    pub(crate) fn remove(&mut self, path: &Path) -> Result<(), WriteError> {
        let Some(name) = path.file_name() else { return Ok(()) };
        let parent = match self.root.directory(path.parent().unwrap_or(Path::new(""))) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(error) => return Err(self.unwritten("open the directory of", path, error)),
        };
        self.replace(&parent, path, name).map(drop)
    }

    /// The names in the directory at `path`; none if it is not there.
    pub(crate) fn names(&self, path: &Path) -> Result<Vec<OsString>, WriteError> {
        let read = || -> Result<Vec<OsString>, Errno> {
            let directory = self.exactly(path)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let entries = rustix::fs::Dir::new(openat(&directory, ".", flags, Mode::empty())?)?;
            let names = entries.map(|entry| Ok(OsString::from_vec(entry?.file_name().to_bytes().to_vec())));
            names.filter(|name| !name.as_ref().is_ok_and(|name| name == "." || name == "..")).collect()
        };
        match read() {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Vec::new()),
            done => done.map_err(|error| self.unwritten("read", path, error)),
        }
    }

    /// The directory at `path` itself: if a link stands there now, it is not meant.
    fn exactly(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let Some(name) = path.file_name() else { return self.root.directory(path) };
        let parent = self.root.directory(path.parent().unwrap_or(Path::new("")))?;
        openat(&parent, name, ITSELF, Mode::empty())
    }

    fn directory(&mut self, path: &Path, entry: &Entry) -> Result<(), UnpackError> {
        self.summary.left.attributes = self.summary.left.attributes.saturating_add(entry.dropped);
        self.allowance.name(path)?;
        self.allowance.entry(path, entry)?;
        if let Some(name) = path.file_name() {
            self.in_parent(path, |this, parent| {
                match mkdirat(parent, name, Mode::RWXU) {
                    Ok(()) => return Ok(()),
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(UnpackError::from(this.unwritten("make", path, error))),
                }
                let there = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
                let there = there.map_err(|error| this.unwritten("look at", path, error))?;
                if FileType::from_raw_mode(there.st_mode) == FileType::Directory {
                    return Ok(());
                }
                this.replace(parent, path, name)?;
                Ok(mkdirat(parent, name, Mode::RWXU).map_err(|error| this.unwritten("make", path, error))?)
            })?;
        }
        self.keep(path, &entry.attributes)
    }

    /// Keeps a directory's attributes until the end.
    fn keep(&mut self, path: &Path, attributes: &Attributes) -> Result<(), UnpackError> {
        let size = |attributes: &Attributes| -> usize {
            let extended =
                attributes.xattrs.iter().map(|(name, value)| name.as_bytes().len() + value.len() + ATTRIBUTE_EACH);
            path.as_os_str().len() + KEPT_EACH + extended.sum::<usize>()
        };
        self.kept += size(attributes);
        if let Some(before) = self.directories.insert(path.to_owned(), attributes.clone()) {
            self.kept -= size(&before);
        }
        if self.kept <= MOST_KEPT {
            return Ok(());
        }
        let what = format!("is one directory too many: their attributes take more than {} MiB", MOST_KEPT >> 20);
        Err(UnpackError::Refused(what))
    }

    fn file(
        &mut self,
        path: &Path,
        entry: &Entry,
        content: &mut dyn Read,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<(), UnpackError> {
        let Some(name) = path.file_name() else {
            return Err(UnpackError::Refused(
                "would replace the root itself by something that is not a directory".to_owned(),
            ));
        };
        if let Kind::HardLink(target) = &entry.kind {
            return self.hard_link(path, name, target);
        }
        self.allowance.name(path)?;
        self.allowance.entry(path, entry)?;
        let kind = self.in_parent(path, |this, parent| {
            if this.replace(parent, path, name)? {
                this.allowance.again(entry)?;
            }
            this.make(parent, path, name, entry, content, step)
        })?;
        self.in_parent(path, |this, parent| {
            let made = object(parent, name).map_err(|error| this.unwritten("open", path, error))?;
            Ok(this.attributes(path, &made, kind, &entry.attributes)?)
        })?;
        self.summary.left.attributes = self.summary.left.attributes.saturating_add(entry.dropped);
        self.summary.files += 1;
        Ok(())
    }

    /// Makes something that is not there yet, without its attributes.
    fn make(
        &mut self,
        parent: BorrowedFd<'_>,
        path: &Path,
        name: &OsStr,
        entry: &Entry,
        content: &mut dyn Read,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<FileType, UnpackError> {
        match &entry.kind {
            Kind::Symlink(target) => {
                if target.is_empty() || target.contains(&0) || target.len() >= 4_096 {
                    return Err(UnpackError::Refused("is a symbolic link to no possible path".to_owned()));
                }
                symlinkat(&**target, parent, name)
                    .map_err(|error| self.unwritten("make the symbolic link", path, error))?;
                Ok(FileType::Symlink)
            }
            Kind::Fifo => {
                mknodat(parent, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                    .map_err(|error| self.unwritten("make the fifo", path, error))?;
                Ok(FileType::Fifo)
            }
            _ => {
                let file = new_file(parent, name).map_err(|error| self.unwritten("make", path, error))?;
                let whole = [(0, entry.size)];
                let (map, size) = match &entry.kind {
                    Kind::Sparse(map, size) => (&map[..], *size),
                    _ => (&whole[..], entry.size),
                };
                for (offset, length) in map {
                    self.run(path, &file, (*offset, *length), content, step)?;
                }
                if matches!(entry.kind, Kind::Sparse(..)) {
                    file.set_len(size).map_err(|error| self.unwritten("write", path, error))?;
                }
                self.summary.bytes = self.summary.bytes.saturating_add(size);
                Ok(FileType::RegularFile)
            }
        }
    }

    /// Writes one run of data.
    fn run(
        &mut self,
        path: &Path,
        file: &File,
        (offset, length): (u64, u64),
        content: &mut dyn Read,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<(), UnpackError> {
        let mut buffer = vec![0; usize::try_from(length).map_or(BUFFER, |length| length.min(BUFFER))];
        let (mut done, mut granted) = (0, self.allowance.block_start(offset));
        while done < length {
            let most = usize::try_from(length - done).map_or(BUFFER, |left| left.min(BUFFER));
            let count = content.read(&mut buffer[..most]).map_err(UnpackError::Read)?;
            if count == 0 {
                return Err(UnpackError::Read(io::ErrorKind::UnexpectedEof.into()));
            }
            let end = self.allowance.block_end(offset + done + count as u64);
            self.allowance.content(path, end.saturating_sub(granted))?;
            granted = end;
            file.write_all_at(&buffer[..count], offset + done).map_err(|error| self.unwritten("write", path, error))?;
            done += count as u64;
            step()?;
        }
        Ok(())
    }

    /// Gives a file another name. The target is what the archive calls by that path, inside the destination.
    fn hard_link(&mut self, path: &Path, name: &OsStr, target: &[u8]) -> Result<(), UnpackError> {
        let refused = |why: &str| {
            let target = String::from_utf8_lossy(target);
            UnpackError::Refused(format!("is a hard link to '{}', which {why}", target.escape_debug()))
        };
        let target = entry_path(target).map_err(|why| refused(&why))?;
        let Some(old) = target.file_name() else { return Err(refused("is the root")) };
        let from = match self.root.directory(target.parent().unwrap_or(Path::new(""))) {
            Ok(from) => from,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(refused("is not in the archive before it")),
            Err(error) => return Err(self.unwritten("open the directory of", &target, error).into()),
        };
        let stat = match statat(&from, old, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Err(refused("is not in the archive before it")),
            Err(error) => return Err(self.unwritten("look at", &target, error).into()),
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(refused("is a directory"));
        }
        self.allowance.link(path)?;
        self.in_parent(path, |this, parent| {
            let there = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
            // To itself, or once more: removing the old name first could remove the file.
            if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)) {
                return Ok(());
            }
            this.replace(parent, path, name)?;
            linkat(&from, old, parent, name, AtFlags::empty())
                .map_err(|error| UnpackError::from(this.unwritten("link", path, error)))
        })?;
        self.summary.files += 1;
        Ok(())
    }

    /// Runs `action` with the parent directory of `path`, made if it is missing.
    fn in_parent<T>(
        &mut self,
        path: &Path,
        action: impl FnOnce(&mut Self, BorrowedFd<'_>) -> Result<T, UnpackError>,
    ) -> Result<T, UnpackError> {
        let wanted = path.parent().unwrap_or(Path::new(""));
        let parent = match self.parent.take() {
            Some((known, parent)) if known.as_os_str() == wanted.as_os_str() => parent,
            _ => Rc::new(self.directory_of(path, wanted)?),
        };
        // `replace` clears both; then what was resolved may have changed its meaning.
        self.parent = Some((wanted.to_owned(), Rc::clone(&parent)));
        action(self, (*parent).as_fd())
    }

    /// The directory `wanted`, in which `path` is to lie, made if it is missing.
    fn directory_of(&mut self, path: &Path, wanted: &Path) -> Result<OwnedFd, UnpackError> {
        let above = wanted.parent().zip(wanted.file_name());
        if let (Some((known, directory)), Some((above, name))) = (&self.above, above)
            && known.as_os_str() == above.as_os_str()
        {
            let mut found = open_below(directory.as_fd(), Path::new(name));
            if matches!(found, Err(Errno::NOENT)) {
                self.allowance.name(wanted)?;
                let made = mkdirat(directory, name, Mode::from_raw_mode(0o755));
                found = made.and_then(|()| open_below(directory.as_fd(), Path::new(name)));
            }
            // Anything else is told by the walk, which follows links.
            if let Ok(found) = found {
                return Ok(found);
            }
        }
        let made = self.root.make_directory(wanted, &mut || Ok(self.allowance.name(wanted)?));
        let made = made.map_err(|error| match error {
            NotMade::Refused(refused) => refused,
            NotMade::Call(error) => self.unwritten("make the directory of", path, error).into(),
        })?;
        self.above = above.and_then(|(above, _)| Some((above.to_owned(), Rc::new(self.root.directory(above).ok()?))));
        Ok(made)
    }

    /// Makes room for a new `name`. Returns whether anything was there.
    fn replace(&mut self, parent: impl AsFd, path: &Path, name: &OsStr) -> Result<bool, WriteError> {
        match remove_child(parent.as_fd(), name).map_err(std::io::Error::from) {
            Ok(()) => {
                (self.parent, self.above) = (None, None);
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.unwritten("remove", path, error)),
        }
    }

    fn attributes(
        &mut self,
        path: &Path,
        made: &OwnedFd,
        kind: FileType,
        attributes: &Attributes,
    ) -> Result<(), WriteError> {
        let applied = attributes.apply(made.as_fd(), kind);
        self.summary.left.attributes += applied.map_err(|(action, error)| self.unwritten(action, path, error))?;
        Ok(())
    }

    fn unwritten(&self, action: &'static str, path: &Path, source: impl Into<io::Error>) -> WriteError {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        WriteError::new(action, path, self.into, source)
    }
}

//! A tree of files at rest, read once: its metadata as an image will hold it, its bigger files handed out to be digested.
//!
//! Every step goes through a directory's descriptor and follows no link, so that nothing outside the tree is ever read.

use crate::crash::{Mistake, planted};
use crate::known::{Extras, Fingerprint};
use crate::{ImportError, attributes};
use composefs::INLINE_CONTENT_MAX_V0;
use composefs::fsverity::Sha256HashValue;
use composefs::generic_tree::{Directory, FileSystem, Inode, Leaf, LeafContent, LeafId, Stat};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// How deep directories may lie: each level holds a descriptor while what is below it is read. No path that a program can name in one piece is deeper
/// with names of more than eight bytes.
const DEEPEST: usize = 450;

/// What a regular file contains, as far as the scan knows.
#[derive(Debug)]
pub(crate) enum Content {
    /// So little that the image holds it.
    Inline(Box<[u8]>),
    /// That of the file with this number, in the order of handing out.
    Object(usize),
    /// An object that the store has, with its length.
    Known(Sha256HashValue, u64),
}

/// Files that need not be opened: what is known of them is all that there is.
pub(crate) struct Unread<'a> {
    /// The object of a file that has no extended attributes that are kept.
    pub(crate) plain: &'a dyn Fn(&Fingerprint, u64) -> Option<Sha256HashValue>,
    /// Those that were met.
    pub(crate) files: &'a mut Vec<(Fingerprint, Sha256HashValue, Extras)>,
}

/// A file handed out to be digested.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) number: usize,
    pub(crate) file: File,
    pub(crate) stat: rustix::fs::Stat,
    pub(crate) attributes: Stat,
    /// Where it lies in the tree.
    pub(crate) path: PathBuf,
}

/// Reads the tree below `root`.
///
/// # Errors
///
/// What `hand_out` answers with stops the scan.
pub(crate) fn scan(
    root: BorrowedFd<'_>,
    unread: Unread<'_>,
    hand_out: &mut dyn FnMut(Handed) -> Result<(), ImportError>,
) -> Result<FileSystem<Content>, ImportError> {
    let (leaves, names, path) = (Vec::new(), HashMap::new(), PathBuf::new());
    let mut scanner = Scanner { leaves, names, path, handed: 0, depth: 0, unread, hand_out };
    let root = scanner.open(root, OsStr::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let root = scanner.directory(&root)?;
    Ok(FileSystem { root, leaves: scanner.leaves })
}

struct Scanner<'a> {
    leaves: Vec<Leaf<Content>>,
    /// Files by device and inode: what is found again is another name of it.
    names: HashMap<(u64, u64), LeafId>,
    path: PathBuf,
    handed: usize,
    depth: usize,
    unread: Unread<'a>,
    hand_out: &'a mut dyn FnMut(Handed) -> Result<(), ImportError>,
}

impl Scanner<'_> {
    fn failed(&self, error: Errno) -> ImportError {
        ImportError::Read { path: self.path.clone(), source: error.into() }
    }

    fn unfit(&self, reason: &str) -> ImportError {
        ImportError::Unfit { path: self.path.clone(), reason: reason.into() }
    }

    fn open(&self, directory: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd, ImportError> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match openat(directory, name, flags | OFlags::NOATIME, Mode::empty()) {
            // Not ours, and we are not root.
            Err(Errno::PERM) => openat(directory, name, flags, Mode::empty()),
            opened => opened,
        };
        opened.map_err(|error| self.failed(error))
    }

    fn directory(&mut self, directory: &OwnedFd) -> Result<Directory<Content>, ImportError> {
        if self.depth > DEEPEST {
            return Err(self.unfit("it lies too deep"));
        }
        let stat = fstat(directory).map_err(|error| self.failed(error))?;
        let attributes = attributes::read(directory.as_fd(), &stat).map_err(|error| self.failed(error))?;
        let mut made = Directory::new(attributes);
        let mut entries = self.entries(directory)?;
        // In one order whatever the file system: a list of leaves is part of what makes an image.
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (name, kind) in entries {
            self.path.push(&name);
            let inode = if kind == FileType::Directory {
                let below = self.open(directory.as_fd(), &name, OFlags::RDONLY | OFlags::DIRECTORY)?;
                self.depth += 1;
                let below = self.directory(&below)?;
                self.depth -= 1;
                Inode::Directory(Box::new(below))
            } else {
                Inode::leaf(self.leaf(directory.as_fd(), &name, kind)?)
            };
            made.insert(&name, inode);
            self.path.pop();
        }
        Ok(made)
    }

    fn entries(&self, directory: &OwnedFd) -> Result<Vec<(OsString, FileType)>, ImportError> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(directory).map_err(|error| self.failed(error))? {
            let entry = entry.map_err(|error| self.failed(error))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                entries.push((OsString::from_vec(name.to_vec()), self.kind(directory, &entry)?));
            }
        }
        Ok(entries)
    }

    /// What kind an entry is of; some file systems leave that to be asked.
    fn kind(&self, directory: &OwnedFd, entry: &rustix::fs::DirEntry) -> Result<FileType, ImportError> {
        match entry.file_type() {
            FileType::Unknown => {
                let stat = statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                Ok(FileType::from_raw_mode(stat.map_err(|error| self.failed(error))?.st_mode))
            }
            known => Ok(known),
        }
    }

    fn leaf(&mut self, directory: BorrowedFd<'_>, name: &OsStr, kind: FileType) -> Result<LeafId, ImportError> {
        if kind == FileType::RegularFile
            && let Some(id) = self.without_opening(directory, name)?
        {
            return Ok(id);
        }
        let flags = if kind == FileType::RegularFile { OFlags::RDONLY | OFlags::NONBLOCK } else { OFlags::PATH };
        let file = self.open(directory, name, flags)?;
        let stat = fstat(&file).map_err(|error| self.failed(error))?;
        if FileType::from_raw_mode(stat.st_mode) != kind {
            return Err(self.unfit("it became another kind of file while it was read"));
        }
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(known) = self.names.get(&identity).filter(|_| !planted(Mistake::LostHardLink)) {
            return Ok(*known);
        }
        let attributes = attributes::read(file.as_fd(), &stat).map_err(|error| self.failed(error))?;
        let content = self.content(file, &stat, &attributes)?;
        self.leaves.push(Leaf { stat: attributes, content });
        let id = LeafId(self.leaves.len() - 1);
        self.names.insert(identity, id);
        Ok(id)
    }

    /// A file of which everything is known.
    fn without_opening(&mut self, directory: BorrowedFd<'_>, name: &OsStr) -> Result<Option<LeafId>, ImportError> {
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = found.map_err(|error| self.failed(error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.unfit("it became another kind of file while it was read"));
        }
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(known) = self.names.get(&identity).filter(|_| !planted(Mistake::LostHardLink)) {
            return Ok(Some(*known));
        }
        let (fingerprint, size) = (Fingerprint::of(&stat), stat.st_size.cast_unsigned());
        let Some(digest) = (self.unread.plain)(&fingerprint, size) else { return Ok(None) };
        self.unread.files.push((fingerprint, digest.clone(), Extras::None));
        let content = LeafContent::Regular(Content::Known(digest, size));
        self.leaves.push(Leaf { stat: attributes::plain(&stat), content });
        let id = LeafId(self.leaves.len() - 1);
        self.names.insert(identity, id);
        Ok(Some(id))
    }

    fn content(
        &mut self,
        file: OwnedFd,
        stat: &rustix::fs::Stat,
        attributes: &Stat,
    ) -> Result<LeafContent<Content>, ImportError> {
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => LeafContent::Regular(self.regular(file, stat, attributes)?),
            FileType::Symlink => {
                let target = readlinkat(&file, "", Vec::new()).map_err(|error| self.failed(error))?;
                LeafContent::Symlink(OsStr::from_bytes(target.as_bytes()).into())
            }
            // In a layer it would hide what lies below.
            FileType::CharacterDevice if stat.st_rdev == 0 => return Err(self.unfit("it is an overlay's whiteout")),
            FileType::CharacterDevice => LeafContent::CharacterDevice(stat.st_rdev),
            FileType::BlockDevice => LeafContent::BlockDevice(stat.st_rdev),
            FileType::Fifo => LeafContent::Fifo,
            FileType::Socket => LeafContent::Socket,
            _ => return Err(self.unfit("it is of an unknown kind")),
        })
    }

    fn regular(&mut self, file: OwnedFd, stat: &rustix::fs::Stat, attributes: &Stat) -> Result<Content, ImportError> {
        let file = File::from(file);
        if stat.st_size > INLINE_CONTENT_MAX_V0 as i64 {
            let number = self.handed;
            self.handed += 1;
            let path = self.path.clone();
            (self.hand_out)(Handed { number, file, stat: *stat, attributes: attributes.clone(), path })?;
            return Ok(Content::Object(number));
        }
        let mut bytes = Vec::new();
        let limit = INLINE_CONTENT_MAX_V0 as u64 + 1;
        let read = file.take(limit).read_to_end(&mut bytes);
        read.map_err(|source| ImportError::Read { path: self.path.clone(), source })?;
        if bytes.len() as i64 != stat.st_size {
            return Err(self.unfit("it changed while it was read"));
        }
        Ok(Content::Inline(bytes.into_boxed_slice()))
    }
}

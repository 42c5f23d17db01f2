//! A tree of files at rest, read once: its metadata as an image will hold it, its bigger files handed out to be digested.
//!
//! Every step goes through a directory's descriptor and follows no link, so that nothing outside the tree is ever read.

use crate::crash::{Mistake, planted};
use crate::{ImportError, attributes};
use composefs::INLINE_CONTENT_MAX_V0;
use composefs::generic_tree::{Directory, FileSystem, Inode, Leaf, LeafContent, LeafId, Stat};
use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, openat, readlinkat};
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
    hand_out: &mut dyn FnMut(Handed) -> Result<(), ImportError>,
) -> Result<FileSystem<Content>, ImportError> {
    let mut scanner =
        Scanner { leaves: Vec::new(), names: HashMap::new(), path: PathBuf::new(), handed: 0, depth: 0, hand_out };
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
    hand_out: &'a mut dyn FnMut(Handed) -> Result<(), ImportError>,
}

impl Scanner<'_> {
    fn unread(&self, error: Errno) -> ImportError {
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
        opened.map_err(|error| self.unread(error))
    }

    fn directory(&mut self, directory: &OwnedFd) -> Result<Directory<Content>, ImportError> {
        if self.depth > DEEPEST {
            return Err(self.unfit("it lies too deep"));
        }
        let stat = fstat(directory).map_err(|error| self.unread(error))?;
        let attributes = attributes::read(directory.as_fd(), &stat).map_err(|error| self.unread(error))?;
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
        for entry in Dir::read_from(directory).map_err(|error| self.unread(error))? {
            let entry = entry.map_err(|error| self.unread(error))?;
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
                let stat = rustix::fs::statat(directory, entry.file_name(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
                Ok(FileType::from_raw_mode(stat.map_err(|error| self.unread(error))?.st_mode))
            }
            known => Ok(known),
        }
    }

    fn leaf(&mut self, directory: BorrowedFd<'_>, name: &OsStr, kind: FileType) -> Result<LeafId, ImportError> {
        let flags = if kind == FileType::RegularFile { OFlags::RDONLY | OFlags::NONBLOCK } else { OFlags::PATH };
        let file = self.open(directory, name, flags)?;
        let stat = fstat(&file).map_err(|error| self.unread(error))?;
        if FileType::from_raw_mode(stat.st_mode) != kind {
            return Err(self.unfit("it became another kind of file while it was read"));
        }
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(known) = self.names.get(&identity).filter(|_| !planted(Mistake::LostHardLink)) {
            return Ok(*known);
        }
        let attributes = attributes::read(file.as_fd(), &stat).map_err(|error| self.unread(error))?;
        let content = self.content(file, &stat, &attributes)?;
        self.leaves.push(Leaf { stat: attributes, content });
        let id = LeafId(self.leaves.len() - 1);
        self.names.insert(identity, id);
        Ok(id)
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
                let target = readlinkat(&file, "", Vec::new()).map_err(|error| self.unread(error))?;
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

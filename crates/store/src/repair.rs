//! Putting damaged objects right, from any file that has the content that they have to have.

use crate::staging::Staging;
use crate::{Damage, LayerId, Store, StoreError, digest, publish};
use composefs::fsverity::Sha256HashValue;
use pando_kernel::Context;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How deep copies are looked for.
const DEEPEST: usize = 200;

/// A damaged object that was put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The object's name: the digest of what it has to contain.
    pub object: String,
    /// Where its content was found.
    pub from: PathBuf,
}

impl Store {
    /// Looks for copies of damaged objects in the store's own farms and below `places`, and puts right what it finds
    /// one of. A guest that has the damaged object open keeps it until it opens it again.
    pub fn repair(&self, damages: &[Damage], places: &[PathBuf]) -> Result<Vec<Repaired>, StoreError> {
        let _lease = self.lease()?;
        let mut wanted: HashMap<u64, Vec<Sha256HashValue>> = HashMap::new();
        for damage in damages {
            let Ok(name) = damage.object.parse::<LayerId>() else { continue };
            let digest = name.digest();
            // What was damaged but not cut short tells its length itself: an image's stands nowhere else.
            let size = damage.size.or_else(|| self.object(&digest).metadata().ok().map(|object| object.len()));
            if let Some(size) = size {
                wanted.entry(size).or_default().push(digest);
            }
        }
        let staging = Staging::new(self)?;
        let mut search = Search { wanted, staging: &staging, repaired: Vec::new() };
        for place in [self.inodes(), self.farms()].iter().chain(places) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if let Ok(root) = rustix::fs::open(place, flags, Mode::empty()) {
                search.directory(&root, place, 0)?;
            }
        }
        let repaired = search.repaired;
        publish::name_objects(self, &staging)?;
        Ok(repaired)
    }
}

struct Search<'a> {
    /// By length in bytes: most files need not be read.
    wanted: HashMap<u64, Vec<Sha256HashValue>>,
    staging: &'a Staging<'a>,
    repaired: Vec<Repaired>,
}

impl Search<'_> {
    /// Looks below a directory. What cannot be read is passed over: it would be a copy by accident only.
    fn directory(&mut self, directory: &OwnedFd, path: &Path, depth: usize) -> Result<(), StoreError> {
        let Ok(entries) = Dir::read_from(directory) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || self.wanted.is_empty() || depth > DEEPEST {
                continue;
            }
            match entry.file_type() {
                FileType::Directory => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    if let Ok(below) = rustix::fs::openat(directory, name, flags, Mode::empty()) {
                        self.directory(&below, &path.join(name), depth + 1)?;
                    }
                }
                FileType::RegularFile => self.file(directory.as_fd(), name, &path.join(name))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, directory: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<(), StoreError> {
        let Ok(stat) = rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(());
        };
        let size = stat.st_size.cast_unsigned();
        if !self.wanted.contains_key(&size) {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(directory, name, flags, Mode::empty()) else { return Ok(()) };
        let file = File::from(file);
        let Ok((found, _)) = digest::of_file(&file) else { return Ok(()) };
        let Some(digests) = self.wanted.get_mut(&size) else { return Ok(()) };
        let Some(position) = digests.iter().position(|digest| *digest == found) else { return Ok(()) };
        let digest = digests.swap_remove(position);
        if digests.is_empty() {
            self.wanted.remove(&size);
        }
        self.stage(&digest, &file)?;
        let object = LayerId::from_digest(&digest).to_string();
        self.repaired.push(Repaired { object, from: path.to_owned() });
        Ok(())
    }

    /// Stages a copy, and digests that copy: the file that it was made of may be changing.
    fn stage(&self, digest: &Sha256HashValue, file: &File) -> Result<(), StoreError> {
        self.staging.replace(digest, file)?;
        let path = self.staging.path(digest);
        let again = || digest::of_file(&File::open(&path)?);
        let (copied, _) = again().context(|| format!("reading {}", path.display()))?;
        if copied == *digest {
            return Ok(());
        }
        Err(StoreError::repository("repairing an object")("the copy changed while it was read; try again"))
    }
}

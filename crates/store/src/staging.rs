//! Where new objects wait for the barrier: their content must be on the disk before anything has their name.

use crate::{Store, StoreError, attributes, content, digest};
use composefs::fsverity::{FsVerityHashValue, Sha256HashValue};
use composefs::generic_tree::Stat;
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, statat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A directory for the new objects of one import. It goes, with what is still in it, when it is dropped; but not while
/// objects have names that may not be on the disk: it then tells others so, until all that nobody relies on is
/// collected.
#[derive(Debug)]
pub(crate) struct Staging<'a> {
    store: &'a Store,
    /// The directory of the objects that have names.
    objects: OwnedFd,
    directory: TemporaryDirectory,
    staged: Mutex<HashSet<Sha256HashValue>>,
    is_unsettled: AtomicBool,
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        if *self.is_unsettled.get_mut() {
            self.directory.keep();
        }
    }
}

impl<'a> Staging<'a> {
    pub(crate) fn new(store: &'a Store) -> Result<Self, StoreError> {
        let staging = store.staging();
        let directory = temporary_directory(&staging)?;
        let objects = store.objects();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let objects =
            rustix::fs::open(&objects, flags, Mode::empty()).context(|| format!("opening {}", objects.display()))?;
        Ok(Self { store, objects, directory, staged: Mutex::default(), is_unsettled: AtomicBool::new(false) })
    }

    /// Whether nobody else stages anything, or has died over it: then all objects have names that are on the disk.
    pub(crate) fn is_alone(&self) -> bool {
        let entries = std::fs::read_dir(self.store.staging()).into_iter().flatten();
        let is_directory = |entry: &std::fs::DirEntry| entry.file_type().map_or(true, |kind| kind.is_dir());
        let mut others = entries.filter(|entry| {
            entry.as_ref().map_or(true, |entry| is_directory(entry) && entry.path() != self.directory.path())
        });
        others.next().is_none()
    }

    /// Objects get names from now on.
    pub(crate) fn unsettled(&self) {
        self.is_unsettled.store(true, Ordering::Relaxed);
    }

    /// Their names are on the disk.
    pub(crate) fn settled(&self) {
        self.is_unsettled.store(false, Ordering::Relaxed);
    }

    /// Whether an object has to be staged: the store lacks it, and nobody was told before that it has to be.
    pub(crate) fn wants(&self, digest: &Sha256HashValue, size: u64) -> bool {
        !self.has(digest, size)
            && self.staged.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(digest.clone())
    }

    /// Whether the store has an object. Its name means that its content is on the disk; a wrong length, that something
    /// outside has changed it since.
    pub(crate) fn has(&self, digest: &Sha256HashValue, size: u64) -> bool {
        let found = statat(&self.objects, digest.to_object_pathname(), AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|stat| stat.st_size.cast_unsigned() == size)
    }

    /// Takes over the inode of an open file of the same file system, which keeps what else it carries. False where that
    /// cannot be.
    pub(crate) fn take_over(&self, digest: &Sha256HashValue, file: &File) -> Result<bool, StoreError> {
        let path = self.path(digest);
        let from = attributes::by_descriptor(file.as_fd());
        match rustix::fs::linkat(CWD, from.as_str(), CWD, &path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(true),
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOENT) => Ok(false),
            Err(error) => Err(error).context(|| format!("taking over a file as {}", path.display()))?,
        }
    }

    /// Copies an open file, with what it carries: a hard-link farm can then use the object itself. False where the copy
    /// has another content than the digest says: a process that may write to the file did so since, and set its times
    /// back perhaps. An object is what its name says for all that have that content, so the copy is read, which no
    /// other can write to.
    pub(crate) fn copy(&self, digest: &Sha256HashValue, file: &File, stat: &Stat) -> Result<bool, StoreError> {
        let path = self.path(digest);
        let copy = || -> std::io::Result<bool> {
            let to = new_file(&path)?;
            content::copy(file, &to)?;
            if digest::of_file(&to)?.0 != *digest {
                std::fs::remove_file(&path)?;
                return Ok(false);
            }
            attributes::apply(stat, to.as_fd(), FileType::RegularFile)?;
            Ok(true)
        };
        Ok(copy().context(|| format!("copying a file to {}", path.display()))?)
    }

    /// Stages the content of a file that was read, with what the file carries.
    pub(crate) fn put(&self, digest: &Sha256HashValue, content: &[u8], stat: &Stat) -> Result<(), StoreError> {
        let path = self.path(digest);
        let put = || -> std::io::Result<()> {
            let mut to = new_file(&path)?;
            std::io::Write::write_all(&mut to, content)?;
            Ok(attributes::apply(stat, to.as_fd(), FileType::RegularFile)?)
        };
        Ok(put().context(|| format!("writing {}", path.display()))?)
    }

    /// Stages the content of an open file in the place of an object that is damaged.
    pub(crate) fn replace(&self, digest: &Sha256HashValue, file: &File) -> Result<(), StoreError> {
        self.staged.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(digest.clone());
        let path = self.path(digest);
        let copy = || content::copy(file, &new_file(&path)?);
        Ok(copy().context(|| format!("copying a file to {}", path.display()))?)
    }

    /// Stages bytes.
    pub(crate) fn write(&self, digest: &Sha256HashValue, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.path(digest);
        let write = || std::io::Write::write_all(&mut new_file(&path)?, bytes);
        Ok(write().context(|| format!("writing {}", path.display()))?)
    }

    /// Another directory that goes with this one, unless it is renamed.
    pub(crate) fn beside(&self, name: &str) -> Result<PathBuf, StoreError> {
        let path = self.directory.path().join(name);
        std::fs::create_dir(&path).context(|| format!("making {}", path.display()))?;
        Ok(path)
    }

    /// Where an object is staged.
    pub(crate) fn path(&self, digest: &Sha256HashValue) -> PathBuf {
        self.directory.path().join(digest.to_hex())
    }

    /// What was staged, in the order of names.
    pub(crate) fn staged(&self) -> Vec<Sha256HashValue> {
        let staged = self.staged.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut staged: Vec<_> = staged.iter().cloned().collect();
        staged.sort_by_cached_key(FsVerityHashValue::to_hex);
        staged
    }
}

/// A new directory beside others that are being made.
pub(crate) fn temporary_directory(beside: &Path) -> Result<TemporaryDirectory, CallError> {
    let made = tempfile::TempDir::new_in(beside).context(|| format!("making a directory in {}", beside.display()))?;
    Ok(TemporaryDirectory::of(made.keep()))
}

pub(crate) fn new_file(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?.into())
}

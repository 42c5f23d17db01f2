//! Looking through trees: each file is met, and read where it is not known from the last time.
//!
//! All threads work on all trees; each has a list of its own for each of them, so that nobody waits for another.

use crate::checkpoint::Checkpoint;
use crate::digest;
use crate::known::{Fingerprint, Known};
use composefs::fsverity::Sha256HashValue;
use rayon::prelude::*;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, openat2, statat};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Bytes in a block of stat(2).
const BLOCK: u64 = 512;

/// After how many files it is told again how many there were.
const TOLD: u64 = 1_000;

/// What a look through trees goes by.
pub(crate) struct Look<'a> {
    pub(crate) known: &'a Known,
    pub(crate) checkpoint: &'a Checkpoint<'a>,
    pub(crate) progress: &'a (dyn Fn(u64) + Sync),
    pub(crate) begun: SystemTime,
    /// Looked at so far.
    pub(crate) files: AtomicU64,
}

/// What one thread met in one tree.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Files that have not changed since the last time, by their places in the table.
    pub(crate) unchanged: Vec<(u32, Weight)>,
    /// Files that were read.
    pub(crate) read: Vec<Read>,
    /// Where the files are, on a file system that shares blocks.
    pub(crate) places: Vec<Place>,
    /// How many vanished, or were written to while they were read.
    pub(crate) lost: u64,
}

/// A file that was read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) content: Sha256HashValue,
    pub(crate) weight: Weight,
    /// Whether it is known from now on.
    pub(crate) lasts: bool,
}

/// What a file takes of the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) bytes: u64,
    /// It has several names, and takes its bytes once.
    pub(crate) several: bool,
}

/// A file, in a tree.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) content: Sha256HashValue,
}

/// A tree that is being looked through.
struct Tree<'a> {
    look: &'a Look<'a>,
    /// Whether times of change tell something in it.
    can_know: bool,
    /// Whether its file system may share blocks.
    shares: bool,
    /// One for each thread.
    slots: Vec<Mutex<Found>>,
    /// The files with several names that were read.
    several: Mutex<HashSet<u64>>,
}

impl Look<'_> {
    /// What each of the `threads` met in a tree. To be called on one of them.
    pub(crate) fn through(&self, tree: &Path, threads: usize) -> Vec<Found> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // It may have gone with its guest.
        let Ok(root) = rustix::fs::open(tree, flags, Mode::empty()) else { return Vec::new() };
        let root = root.as_fd();
        let slots = (0..threads).map(|_| Mutex::default()).collect();
        let (can_know, shares) = (Known::can_know(root), may_share(root));
        let tree = Tree { look: self, can_know, shares, slots, several: Mutex::default() };
        tree.directory(root, Path::new("."), Path::new("."));
        tree.slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    fn tell(&self, files: u64) {
        let before = self.files.fetch_add(files, Ordering::Relaxed);
        if before / TOLD != (before + files) / TOLD {
            (self.progress)(before + files);
        }
    }
}

/// Whether a file system is of a kind that shares blocks between files: whether this one does is seen when it is tried.
fn may_share(tree: BorrowedFd<'_>) -> bool {
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    rustix::fs::fstatfs(tree).is_ok_and(|found| [XFS, BTRFS].contains(&found.f_type))
}

pub(crate) fn inside(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(root, path, flags | OFlags::CLOEXEC | OFlags::NOATIME, Mode::empty(), confined)
}

/// PATH_MAX: bytes of a path, with the zero at its end.
const LONGEST_PATH: usize = 4096;

/// Bytes of names that are read at a time.
const NAMES: usize = 32 << 10;

impl Tree<'_> {
    /// One directory, which is called `name` in the one at `at` and `path` in the tree, and in parallel those below it.
    fn directory(&self, at: BorrowedFd<'_>, name: &Path, path: &Path) {
        // Too deep to be named, or gone: it is left as it is.
        if path.as_os_str().len() >= LONGEST_PATH {
            return;
        }
        let Ok(opened) = inside(at, name, OFlags::RDONLY | OFlags::DIRECTORY) else { return };
        let mut below = Vec::new();
        let slot = &self.slots[rayon::current_thread_index().unwrap_or(0)];
        // Nobody else wants it.
        let mut found = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files = 0;
        let mut names = Vec::with_capacity(NAMES);
        let mut entries = RawDir::new(&opened, names.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            match entry.file_type() {
                FileType::Directory if name != "." && name != ".." => below.push(PathBuf::from(name)),
                FileType::RegularFile => {
                    if let Ok(stat) = statat(&opened, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                        files += self.file(opened.as_fd(), path, Path::new(name), &stat, &mut found);
                    }
                }
                _ => {}
            }
        }
        drop((found, names));
        self.look.tell(files);
        let at = opened.as_fd();
        match below.as_slice() {
            [one] => self.directory(at, one, &path.join(one)),
            several => several.par_iter().for_each(|one| self.directory(at, one, &path.join(one))),
        }
    }

    /// One file; how many that makes.
    fn file(&self, at: BorrowedFd<'_>, path: &Path, name: &Path, stat: &Stat, found: &mut Found) -> u64 {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || stat.st_size <= composefs::INLINE_CONTENT_MAX_V0 as i64
        {
            return 0;
        }
        let fingerprint = Fingerprint::of(stat);
        let weight = Weight { bytes: stat.st_blocks.cast_unsigned() * BLOCK, several: stat.st_nlink > 1 };
        let known = self.look.known;
        let content = if let Some(place) = known.find(&fingerprint).filter(|_| self.can_know) {
            found.unchanged.push((place, weight));
            known.content(known.files()[place as usize].content).clone()
        } else {
            let mut several = self.several.lock().unwrap_or_else(PoisonError::into_inner);
            if weight.several && !several.insert(stat.st_ino) {
                return 0;
            }
            drop(several);
            let Some(content) = unchanged(at, name, fingerprint) else {
                found.lost += 1;
                return 1;
            };
            let lasts = self.can_know && !fingerprint.is_fresh_at(self.look.begun);
            if lasts {
                self.look.checkpoint.add(fingerprint, content.clone(), stat.st_size.cast_unsigned());
            }
            found.read.push(Read { fingerprint, content: content.clone(), weight, lasts });
            content
        };
        if self.shares {
            found.places.push(Place { path: path.join(name), fingerprint, content });
        }
        1
    }
}

/// The digest of a file that is the same after it was read as it was before.
fn unchanged(at: BorrowedFd<'_>, name: &Path, before: Fingerprint) -> Option<Sha256HashValue> {
    let file = File::from(inside(at, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW).ok()?);
    let (digest, _) = digest::of_file(&file).ok()?;
    let after = rustix::fs::fstat(&file).ok()?;
    (Fingerprint::of(&after) == before).then_some(digest)
}

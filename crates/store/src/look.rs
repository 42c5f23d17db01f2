//! Looking through trees: each file is met, and read where it is not known from the last time.
//!
//! All threads work on all trees; each has a list of its own for each of them, so that nobody waits for another.

use crate::checkpoint::Checkpoint;
use crate::digest;
use crate::known::{Fingerprint, Known};
use composefs::fsverity::Sha256HashValue;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, openat2, statat};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// What each of the `threads` met in each of the trees. To be called on one of them.
    pub(crate) fn through(&self, trees: &[PathBuf], threads: usize) -> Vec<Vec<Found>> {
        let trees: Vec<Option<(OwnedFd, Tree)>> = trees.iter().map(|tree| self.tree(tree, threads)).collect();
        rayon::scope(|scope| {
            for (root, tree) in trees.iter().flatten() {
                if let Ok(root) = root.try_clone() {
                    scope.spawn(move |scope| {
                        tree.directory(scope, &Arc::new(root), Path::new("."), PathBuf::from("."));
                    });
                }
            }
        });
        let found = |tree: Tree| tree.slots.into_iter().map(|slot| slot.into_inner().unwrap_or_default());
        trees.into_iter().map(|tree| tree.into_iter().flat_map(|(_, tree)| found(tree)).collect()).collect()
    }

    /// A tree, open; none if it has gone with its guest.
    fn tree(&self, tree: &Path, threads: usize) -> Option<(OwnedFd, Tree<'_>)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(tree, flags, Mode::empty()).ok()?;
        let slots = (0..threads).map(|_| Mutex::default()).collect();
        let (can_know, shares) = (Known::can_know(root.as_fd()), may_share(root.as_fd()));
        Some((root, Tree { look: self, can_know, shares, slots, several: Mutex::default() }))
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

/// Whether a file is large and next to nothing but holes. To read it may take hours, and sharing it saves nothing.
fn is_hollow(stat: &Stat) -> bool {
    const LARGE: u64 = 1 << 30;
    let (size, held) = (stat.st_size.cast_unsigned(), stat.st_blocks.cast_unsigned() * BLOCK);
    size > LARGE && held < size / 16
}

/// PATH_MAX: bytes of a path, with the zero at its end.
const LONGEST_PATH: usize = 4096;

/// Bytes of names that are read at a time.
const NAMES: usize = 32 << 10;

impl Tree<'_> {
    /// One directory, which is called `name` in the one at `at` and `path` in the tree, and in parallel those below it:
    /// each is a task of its own, so that no stack is as deep as the tree, and no directory stays open but for those in
    /// it.
    fn directory<'a>(&'a self, scope: &rayon::Scope<'a>, at: &Arc<OwnedFd>, name: &Path, path: PathBuf) {
        // Too deep to be named, or gone: it is left as it is.
        if path.as_os_str().len() >= LONGEST_PATH {
            return;
        }
        let Ok(opened) = inside(at.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY) else { return };
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
                        files += self.file(opened.as_fd(), &path, Path::new(name), &stat, &mut found);
                    }
                }
                _ => {}
            }
        }
        drop((found, names));
        self.look.tell(files);
        let at = Arc::new(opened);
        for one in below {
            let (at, path) = (Arc::clone(&at), path.join(&one));
            scope.spawn(move |scope| self.directory(scope, &at, &one, path));
        }
    }

    /// One file; how many that makes.
    fn file(&self, at: BorrowedFd<'_>, path: &Path, name: &Path, stat: &Stat, found: &mut Found) -> u64 {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || stat.st_size <= composefs::INLINE_CONTENT_MAX_V0 as i64
            || is_hollow(stat)
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

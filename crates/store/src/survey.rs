//! Which files of several trees others have too, without changing anything.
//!
//! The trees may be those of guests that run: every path is resolved inside its tree by the kernel, nothing is written, and what changes or goes
//! meanwhile is counted as it was met. So an answer is an estimate; whoever acts on it reads again.

use crate::checkpoint::Checkpoint;
use crate::known::{Extras, Fingerprint, Known};
use crate::{Store, StoreError, digest};
use composefs::fsverity::Sha256HashValue;
use pando_kernel::{Context, io_priority};
use rayon::prelude::*;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in a block of stat(2).
const BLOCK: u64 = 512;

/// The name of the table of what is known of guests' files.
const TABLE: &str = "guests";

/// What was found in several trees.
#[derive(Debug, Default)]
pub struct Survey {
    /// Files that were looked at.
    pub files: u64,
    /// How many of them were read: the others are known from the last time.
    pub read: u64,
    /// What is in each tree, in the order in which they were given.
    trees: Vec<Contents>,
    /// Where it is, likewise, in trees whose file systems share blocks.
    pub(crate) places: Vec<Vec<Place>>,
}

/// A file, in a tree.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) content: Sha256HashValue,
}

/// Contents of one tree, with how many files have it and how many bytes of disk these take.
type Contents = HashMap<Sha256HashValue, (u64, u64)>;

/// What sharing means for one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worth {
    /// Its files whose content the store, or a tree before it, has too.
    pub files: u64,
    /// Bytes of disk that these take now.
    pub saves: u64,
    /// Bytes of disk of all its other files.
    pub rest: u64,
}

impl Store {
    /// Looks at every file of the trees, and tells how many it has looked at. Who waits for the disk goes first. What it has read is kept now and then,
    /// so that after a kill the next one goes on from there.
    pub fn survey(&self, trees: &[PathBuf], progress: &(dyn Fn(u64) + Sync)) -> Result<Survey, StoreError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .start_handler(|_| {
                // Where the kernel does not let it, it is as greedy as anybody.
                let _ = io_priority::idle();
            })
            .build()
            .map_err(std::io::Error::other)
            .context(|| "starting threads".into())?;
        let known = Known::load(self, TABLE);
        let checkpoint = Checkpoint::new(self, TABLE, &known);
        let look = Look { known: &known, checkpoint: &checkpoint, progress, files: AtomicU64::new(0) };
        let seen: Vec<Seen> = pool.install(|| trees.par_iter().map(|tree| look.through(tree)).collect());
        let mut survey = Survey::default();
        let mut next = Known::default();
        for seen in seen {
            survey.files += seen.files;
            survey.read += seen.read;
            survey.trees.push(seen.contents);
            survey.places.push(seen.places);
            seen.known.into_iter().for_each(|(file, digest)| next.add(file, digest, Extras::Perhaps));
        }
        next.save(self, TABLE)?;
        Ok(survey)
    }
}

impl Survey {
    /// What sharing means for each tree.
    pub fn worth(&self, store: &Store) -> Vec<Worth> {
        let mut met: HashSet<&Sha256HashValue> = HashSet::new();
        let mut worth = Vec::new();
        for tree in &self.trees {
            let mut one = Worth::default();
            for (content, (files, bytes)) in tree {
                // Of several files with one content a layer still needs one copy, unless somebody has it already.
                let paid = if met.contains(content) || store.object(content).exists() { 0 } else { bytes / files };
                if paid < *bytes {
                    one.files += files;
                    one.saves += bytes - paid;
                }
                one.rest += paid;
            }
            met.extend(tree.keys());
            worth.push(one);
        }
        worth
    }
}

/// What one tree, or a part of it, showed.
#[derive(Default)]
struct Seen {
    files: u64,
    read: u64,
    contents: Contents,
    known: Vec<(Fingerprint, Sha256HashValue)>,
    places: Vec<Place>,
    /// Files with several names, which take their bytes once.
    several: HashSet<u64>,
}

impl Seen {
    fn and(mut self, other: Self) -> Self {
        self.files += other.files;
        self.read += other.read;
        for (content, (files, bytes)) in other.contents {
            let sum = self.contents.entry(content).or_default();
            *sum = (sum.0 + files, sum.1 + bytes);
        }
        self.known.extend(other.known);
        self.places.extend(other.places);
        self
    }
}

/// What a look through trees goes by.
struct Look<'a> {
    known: &'a Known,
    checkpoint: &'a Checkpoint<'a>,
    progress: &'a (dyn Fn(u64) + Sync),
    /// Looked at so far.
    files: AtomicU64,
}

/// A tree that is being looked through.
struct Tree<'a> {
    look: &'a Look<'a>,
    root: BorrowedFd<'a>,
    /// Whether times of change tell something in it.
    can_know: bool,
    /// Whether its file system may share blocks.
    shares: bool,
}

impl Look<'_> {
    fn through(&self, tree: &Path) -> Seen {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // It may have gone with its guest.
        let Ok(root) = rustix::fs::open(tree, flags, Mode::empty()) else { return Seen::default() };
        let root = root.as_fd();
        Tree { look: self, root, can_know: Known::can_know(root), shares: may_share(root) }.directory(Path::new("."))
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

impl Tree<'_> {
    /// One directory, and in parallel those below it.
    fn directory(&self, path: &Path) -> Seen {
        let mut seen = Seen::default();
        // Too deep to be named, or gone: it is left as it is.
        let Ok(opened) = inside(self.root, path, OFlags::RDONLY | OFlags::DIRECTORY) else { return seen };
        let Ok(entries) = Dir::read_from(&opened) else { return seen };
        let mut below = Vec::new();
        for entry in entries.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            match entry.file_type() {
                FileType::Directory if name != "." && name != ".." => below.push(path.join(name)),
                FileType::RegularFile => {
                    if let Ok(stat) = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
                        self.file(opened.as_fd(), path, Path::new(name), &stat, &mut seen);
                    }
                }
                _ => {}
            }
        }
        drop(opened);
        (self.look.progress)(self.look.files.fetch_add(seen.files, Ordering::Relaxed) + seen.files);
        below.par_iter().map(|path| self.directory(path)).reduce(Seen::default, Seen::and).and(seen)
    }

    fn file(&self, at: BorrowedFd<'_>, path: &Path, name: &Path, stat: &Stat, seen: &mut Seen) {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || stat.st_size <= composefs::INLINE_CONTENT_MAX_V0 as i64
            || stat.st_nlink > 1 && !seen.several.insert(stat.st_ino)
        {
            return;
        }
        seen.files += 1;
        let fingerprint = Fingerprint::of(stat);
        let known = self.look.known.get(&fingerprint).filter(|_| self.can_know).cloned();
        let content = known.or_else(|| {
            seen.read += 1;
            let opened = inside(at, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW).ok()?;
            let content = unchanged(&File::from(opened), fingerprint)?;
            if self.can_know && !fingerprint.is_fresh() {
                self.look.checkpoint.add(fingerprint, content.clone(), stat.st_size.cast_unsigned());
            }
            Some(content)
        });
        let Some(content) = content else { return };
        let sum = seen.contents.entry(content.clone()).or_default();
        *sum = (sum.0 + 1, sum.1 + stat.st_blocks.cast_unsigned() * BLOCK);
        if self.shares {
            seen.places.push(Place { path: path.join(name), fingerprint, content: content.clone() });
        }
        if self.can_know && !fingerprint.is_fresh() {
            seen.known.push((fingerprint, content));
        }
    }
}

/// The digest of a file that is the same after it was read as it was before.
fn unchanged(file: &File, before: Fingerprint) -> Option<Sha256HashValue> {
    let (digest, _) = digest::of_file(file).ok()?;
    let after = rustix::fs::fstat(file).ok()?;
    (Fingerprint::of(&after) == before).then_some(digest)
}

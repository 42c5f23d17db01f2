//! A tree becomes a layer.

use crate::known::{Extras, Fingerprint, Known};
use crate::scan::{Contents, Opened, scan};
use crate::staging::Staging;
use crate::store::Lease;
use crate::{ImportError, LayerId, Store, crash, deep_stack, digest, image, publish};
use composefs::fsverity::{Sha256HashValue, compute_verity};
use pando_kernel::{CallError, Context};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What becomes of the tree's own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// They stay as they are: new content is copied.
    Copy,
    /// The store may have them, where they lie on its file system: nothing is copied, and the tree must be thrown away
    /// afterwards without being written to again.
    Over,
}

/// A tree that became a layer.
#[derive(Debug)]
pub struct Imported {
    /// The layer that the tree became.
    pub layer: LayerId,
    /// The lease to hold until the layer is noted as in use.
    pub lease: Lease,
    /// How many contents the store did not have before; the image is not counted.
    pub new_objects: u64,
    /// Bytes of these new contents.
    pub new_bytes: u64,
}

impl Store {
    /// Makes a layer of the tree at `tree`, which nobody may change meanwhile: a link in /proc of an open directory
    /// will do.
    ///
    /// The layer keeps names, modes, owners, times of modification, hard links, the extended attributes of users,
    /// capabilities, access control lists and `trusted.*` (but not those that steer overlays), fifos, sockets and
    /// devices. When it returns, the layer survives a power cut.
    ///
    /// # Errors
    ///
    /// [`ImportError::Unfit`] for what an image cannot hold. The store is then as it was.
    pub fn import(&self, tree: &Path, taking: Taking) -> Result<Imported, ImportError> {
        self.import_telling(tree, taking, &|_| ())
    }

    /// The same, telling now and then how many bytes of the tree's files it has dealt with.
    pub fn import_telling(
        &self,
        tree: &Path,
        taking: Taking,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Imported, ImportError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(tree, flags, Mode::empty()).context(|| format!("opening {}", tree.display()))?;
        let lease = self.lease()?;
        let meter = Meter { progress, bytes: AtomicU64::new(0) };
        deep_stack::run(|| self.import_opened(&root, taking, lease, &meter))
    }

    fn import_opened(
        &self,
        root: &OwnedFd,
        taking: Taking,
        lease: Lease,
        meter: &Meter<'_>,
    ) -> Result<Imported, ImportError> {
        let staging = Staging::new(self)?;
        // What is taken over is never seen again.
        let table = (taking == Taking::Copy && Known::can_know(root.as_fd())).then(|| table_of(root)).flatten();
        let known = table.as_ref().map_or_else(Known::default, |table| Known::load(self, table));
        let keeper = Keeper { staging: &staging, taking, known: &known, meter, found: Mutex::default() };
        let tree = scan(root.as_fd(), &keeper)?;
        let Found { new_bytes, files, learned } = keeper.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = table {
            note(self, &table, &known, learned, &files)?;
        }
        let new_objects = staging.staged().len() as u64;
        let image = image::write(tree)?;
        let name = compute_verity(&image);
        if staging.wants(&name, image.len() as u64) {
            staging.write(&name, &image)?;
        }
        crash::point("store.scanned");
        let layer = publish::publish(self, &staging, &name)?;
        Ok(Imported { layer, lease, new_objects, new_bytes })
    }
}

/// The table of what is known of a tree: named by its root directory.
fn table_of(root: &OwnedFd) -> Option<String> {
    rustix::fs::fstat(root).ok().map(|stat| format!("{:x}-{:x}", stat.st_dev, stat.st_ino))
}

/// Notes for the next time what is known of a tree's files.
fn note(store: &Store, table: &str, known: &Known, learned: bool, files: &[Noted]) -> Result<(), CallError> {
    if !learned && files.len() == known.files().len() {
        Known::touch(store, table);
        return Ok(());
    }
    let mut known = Known::default();
    for (file, digest, extras) in files {
        known.add(*file, digest, *extras);
    }
    known.save(store, table)
}

/// A file that is not read again.
type Noted = (Fingerprint, Sha256HashValue, Extras);

/// What became of the files of a tree.
#[derive(Default)]
struct Found {
    /// Bytes that the store did not have.
    new_bytes: u64,
    /// Those that need not be read again for as long as they do not change.
    files: Vec<Noted>,
    /// Whether any of those is new.
    learned: bool,
}

/// Bytes of a file that is kept in memory from its reading to its writing.
const SMALL: usize = 256 << 10;

/// Bytes of a block, as file systems count them.
const BLOCK: i64 = 512;

/// After how many bytes it is told again how many there were.
const TOLD: u64 = 8 << 20;

/// How much was dealt with, and whom to report that to.
struct Meter<'a> {
    progress: &'a (dyn Fn(u64) + Sync),
    bytes: AtomicU64,
}

impl Meter<'_> {
    fn add(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before / TOLD != (before + bytes) / TOLD {
            (self.progress)(before + bytes);
        }
    }
}

/// Digests files, and stages those that are new.
struct Keeper<'a> {
    staging: &'a Staging<'a>,
    taking: Taking,
    known: &'a Known,
    meter: &'a Meter<'a>,
    found: Mutex<Found>,
}

impl Keeper<'_> {
    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content of a file that did not change since it was last read, where the store still has it.
    fn unread(&self, opened: &Opened<'_>, fingerprint: Fingerprint) -> Option<Sha256HashValue> {
        let digest = self.known.get(&fingerprint)?;
        self.staging.has(digest, opened.stat.st_size.cast_unsigned()).then(|| {
            self.found().files.push((fingerprint, digest.clone(), extras(opened)));
            digest.clone()
        })
    }
}

impl Contents for Keeper<'_> {
    fn unopened(&self, fingerprint: &Fingerprint, size: u64) -> Option<Sha256HashValue> {
        let digest = self.known.get_plain(fingerprint).filter(|digest| self.staging.has(digest, size))?;
        self.found().files.push((*fingerprint, digest.clone(), Extras::None));
        Some(digest.clone())
    }

    fn opened(&self, opened: &Opened<'_>) -> Result<(Sha256HashValue, u64), ImportError> {
        let unread = |source| ImportError::Read { path: opened.path(), source };
        let fingerprint = Fingerprint::of(&opened.stat);
        let size = opened.stat.st_size.cast_unsigned();
        self.meter.add(size);
        if let Some(digest) = self.unread(opened, fingerprint) {
            return Ok((digest, size));
        }
        let written_to =
            || ImportError::Unfit { path: opened.path(), reason: "it was written to while it was read".into() };
        // What has holes is copied with them.
        let is_whole = opened.stat.st_blocks * BLOCK >= opened.stat.st_size;
        let small = digest::of_small_file(&opened.file, size, if is_whole { SMALL } else { 0 }).map_err(unread)?;
        let (digest, read) = match &small {
            Some((digest, content)) => (digest.clone(), content.len() as u64),
            None => digest::of_file(&opened.file).map_err(unread)?,
        };
        if self.staging.wants(&digest, read) {
            let is_over = self.taking == Taking::Over && self.staging.take_over(&digest, &opened.file)?;
            match &small {
                _ if is_over => {}
                Some((digest, content)) => self.staging.put(digest, content, opened.attributes)?,
                None if !self.staging.copy(&digest, &opened.file, opened.attributes)? => return Err(written_to()),
                None => {}
            }
            self.found().new_bytes += read;
        }
        let after = rustix::fs::fstat(&opened.file).map_err(|error| unread(error.into()))?;
        let same = |stat: &rustix::fs::Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        if same(&opened.stat) != same(&after) || read != after.st_size.cast_unsigned() {
            return Err(written_to());
        }
        if !fingerprint.is_fresh() {
            let mut found = self.found();
            found.files.push((fingerprint, digest.clone(), extras(opened)));
            found.learned = true;
        }
        Ok((digest, read))
    }
}

fn extras(opened: &Opened<'_>) -> Extras {
    if opened.attributes.xattrs.is_empty() { Extras::None } else { Extras::Perhaps }
}

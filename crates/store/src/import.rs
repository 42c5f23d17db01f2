//! A tree becomes a layer.

use crate::known::{Extras, Fingerprint, Known};
use crate::scan::{Content, Handed, Unread, scan};
use crate::staging::Staging;
use crate::store::Lease;
use crate::{ImportError, LayerId, Store, crash, deep_stack, digest, image, publish};
use composefs::fsverity::{Sha256HashValue, compute_verity};
use composefs::tree::{FileSystem, RegularFile};
use pando_kernel::{CallError, Context};
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};

/// How many opened files wait for a worker at most.
const WAITING: usize = 64;

/// What becomes of the tree's own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// They stay as they are: new content is copied.
    Copy,
    /// The store may have them, where they lie on its file system: nothing is copied, and the tree must be thrown away afterwards without being
    /// written to again.
    Over,
}

/// A tree that became a layer.
#[derive(Debug)]
pub struct Imported {
    /// The layer.
    pub layer: LayerId,
    /// To be held until somebody says that the layer is in use.
    pub lease: Lease,
    /// How many contents the store did not have before; the image is not counted.
    pub new_objects: u64,
    /// Bytes of them.
    pub new_bytes: u64,
}

impl Store {
    /// Makes a layer of the tree at `tree`, which nobody may change meanwhile: a link in /proc of an open directory will do.
    ///
    /// The layer keeps names, modes, owners, times of modification, hard links, the extended attributes of users, capabilities, access control lists
    /// and `trusted.*` (but not those that steer overlays), fifos, sockets and devices. When it returns, the layer survives a power cut.
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
        let (tree, found) = digest_tree(root, &staging, taking, &known, meter)?;
        let Found { digests, new_bytes, files, learned } = found;
        if let Some(table) = table {
            note(self, &table, &known, learned, &files)?;
        }
        let new_objects = staging.staged().len() as u64;
        let image = image::write(named(tree, &digests))?;
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

/// The digests of handed out files by their numbers, with their lengths.
type Digests = HashMap<usize, (Sha256HashValue, u64)>;

/// What became of the files that were handed out.
#[derive(Default)]
struct Found {
    digests: Digests,
    /// Bytes that the store did not have.
    new_bytes: u64,
    /// Those that need not be read again for as long as they do not change.
    files: Vec<Noted>,
    /// Whether any of those is new.
    learned: bool,
}

/// Scans a tree on this thread while others digest its files and stage the new ones.
fn digest_tree(
    root: &OwnedFd,
    staging: &Staging<'_>,
    taking: Taking,
    known: &Known,
    meter: &Meter<'_>,
) -> Result<(composefs::generic_tree::FileSystem<Content>, Found), ImportError> {
    let (sender, receiver) = mpsc::sync_channel::<Handed>(WAITING);
    let receiver = Mutex::new(receiver);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let work = || Worker { staging, taking, known, meter, found: Found::default() }.work(&receiver);
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        // A channel without receivers: every worker has failed, and one of them will say why.
        let mut hand_out = |handed: Handed| {
            let path = handed.path.clone();
            sender.send(handed).map_err(|_| ImportError::Unfit { path, reason: "the work was given up".into() })
        };
        let mut all = Found::default();
        let plain = |fingerprint: &Fingerprint, size: u64| -> Option<Sha256HashValue> {
            known.get_plain(fingerprint).filter(|digest| staging.has(digest, size)).cloned()
        };
        let tree = scan(root.as_fd(), Unread { plain: &plain, files: &mut all.files }, &mut hand_out);
        drop(sender);
        let mut failure = None;
        for thread in threads {
            match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(found) => {
                    all.digests.extend(found.digests);
                    all.new_bytes += found.new_bytes;
                    all.files.extend(found.files);
                    all.learned |= found.learned;
                }
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok((tree?, all)),
        }
    })
}

/// After how many bytes it is told again how many there were.
const TOLD: u64 = 8 << 20;

/// How much was dealt with, and who wants to know.
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

/// Digests files.
struct Worker<'a> {
    staging: &'a Staging<'a>,
    taking: Taking,
    known: &'a Known,
    meter: &'a Meter<'a>,
    found: Found,
}

impl Worker<'_> {
    /// Digests files until there are no more. After a failure it goes on taking them, so that the scan is never stuck.
    fn work(mut self, receiver: &Mutex<mpsc::Receiver<Handed>>) -> Result<Found, ImportError> {
        let mut failure = None;
        loop {
            let next = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
            let Ok(handed) = next else { break };
            if failure.is_none() {
                failure = self.keep(&handed).err();
                self.meter.add(handed.stat.st_size.cast_unsigned());
            }
        }
        failure.map_or(Ok(self.found), Err)
    }

    /// Digests one file, and stages it if it is new.
    fn keep(&mut self, handed: &Handed) -> Result<(), ImportError> {
        let unread = |source| ImportError::Read { path: handed.path.clone(), source };
        let fingerprint = Fingerprint::of(&handed.stat);
        if let Some(digest) = self.known.get(&fingerprint)
            && self.staging.has(digest, handed.stat.st_size.cast_unsigned())
        {
            self.found.digests.insert(handed.number, (digest.clone(), handed.stat.st_size.cast_unsigned()));
            self.found.files.push((fingerprint, digest.clone(), extras(handed)));
            return Ok(());
        }
        let (digest, size) = digest::of_file(&handed.file).map_err(unread)?;
        if self.staging.wants(&digest, size) {
            self.found.new_bytes += size;
            if !(self.taking == Taking::Over && self.staging.take_over(&digest, &handed.file)?) {
                self.staging.copy(&digest, &handed.file, &handed.attributes)?;
            }
        }
        let after = rustix::fs::fstat(&handed.file).map_err(|error| unread(error.into()))?;
        let same = |stat: &rustix::fs::Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        if same(&handed.stat) != same(&after) || size != after.st_size.cast_unsigned() {
            return Err(ImportError::Unfit {
                path: handed.path.clone(),
                reason: "it was written to while it was read".into(),
            });
        }
        if !fingerprint.is_fresh() {
            self.found.files.push((fingerprint, digest.clone(), extras(handed)));
            self.found.learned = true;
        }
        self.found.digests.insert(handed.number, (digest, size));
        Ok(())
    }
}

fn extras(handed: &Handed) -> Extras {
    if handed.attributes.xattrs.is_empty() { Extras::None } else { Extras::Perhaps }
}

/// The tree with the names of objects in the place of numbers.
fn named(tree: composefs::generic_tree::FileSystem<Content>, digests: &Digests) -> FileSystem<Sha256HashValue> {
    let name = |content: &Content| match content {
        Content::Inline(bytes) => RegularFile::Inline(bytes.clone()),
        Content::Known(digest, size) => RegularFile::External(digest.clone(), *size),
        Content::Object(number) => {
            let (digest, size) = digests[number].clone();
            RegularFile::External(digest, size)
        }
    };
    let infallible = tree.try_map_regular(|content| Ok::<_, std::convert::Infallible>(name(content)));
    match infallible {
        Ok(named) => named,
        Err(never) => match never {},
    }
}

//! Which files of several trees others have too, without changing anything.
//!
//! The trees may be those of guests that run: every path is resolved inside its tree by the kernel, nothing is written,
//! and what changes or goes meanwhile is counted as it was met. So an answer is an estimate; code that acts on it reads
//! again.
//!
//! ```text
//!   trees ──look──▶ unchanged (places in the table) ╮
//!                   read (digests) ─────────────────┴─tally──▶ portions: contents by number, files, bytes ──▶ worth
//!                                                    ╰──────▶ the table of the next time, where it is another
//! ```

use crate::checkpoint::Checkpoint;
use crate::known::{Extras, Fingerprint, Known, KnownFile};
use crate::look::{Found, Look, Place, Read, Weight};
use crate::{Store, StoreError};
use composefs::fsverity::{FsVerityHashValue, Sha256HashValue};
use pando_kernel::{Context, process::io_priority};
use rayon::prelude::*;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

/// The name of the table of what is known of guests' files.
const TABLE: &str = "guests";

/// What was found in several trees.
#[derive(Debug, Default)]
pub struct Survey {
    /// Files that were looked at, each hard-linked one of a tree once.
    pub files: u64,
    /// How many of them were read: the others are known from the last time.
    pub read: u64,
    /// The contents that were met.
    contents: Vec<Sha256HashValue>,
    /// What is in each tree, in the order in which they were given.
    trees: Vec<Vec<Portion>>,
    /// Where it is, likewise, in trees whose file systems share blocks.
    pub(crate) places: Vec<Vec<Place>>,
}

/// A content in a tree: how many files have it, and how many bytes of disk these take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Portion {
    /// Its number among the contents that were met.
    content: u32,
    files: u64,
    bytes: u64,
}

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
    /// Looks at every file of the trees, and tells now and then how many it has looked at. Readers that wait for the
    /// disk go first. What it has read is kept now and then, so that after a kill the next one goes on from there.
    pub fn survey(&self, trees: &[PathBuf], progress: &(dyn Fn(u64) + Sync)) -> Result<Survey, StoreError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .start_handler(|_| {
                // Where the kernel does not let it, it is as greedy as anybody.
                let _ = io_priority::idle();
            })
            .build()
            .map_err(std::io::Error::other)
            .context(|| "starting threads".into())?;
        let mut known = Known::load(self, TABLE);
        let checkpoint = Checkpoint::new(self, TABLE, &known);
        let (begun, threads) = (SystemTime::now(), pool.current_num_threads());
        let look = Look { known: &known, checkpoint: &checkpoint, progress, begun, files: AtomicU64::new(0) };
        let found: Vec<Vec<Found>> = pool.install(|| look.through(trees, threads));
        let tally = Tally::of(&mut known, found);
        if tally.differs {
            known.only(&tally.met).save(self, TABLE)?;
        }
        Ok(pool.install(|| tally.survey(known)))
    }
}

impl Survey {
    /// What sharing means for each tree.
    pub fn worth(&self, store: &Store) -> Vec<Worth> {
        let objects = store.objects();
        let objects =
            rustix::fs::open(&objects, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
        let holds = |content: &Sha256HashValue| {
            let found = |objects| rustix::fs::statat(objects, content.to_object_pathname(), AtFlags::SYMLINK_NOFOLLOW);
            objects.as_ref().is_some_and(|objects| found(objects).is_ok())
        };
        let held: Vec<bool> = self.contents.par_iter().map(holds).collect();
        let mut met = vec![false; self.contents.len()];
        let mut worth = Vec::new();
        for tree in &self.trees {
            let mut one = Worth::default();
            for Portion { content, files, bytes } in tree {
                let content = *content as usize;
                // Of several files with one content a layer still needs one copy, unless the store has it already.
                let paid = if met[content] || held[content] { 0 } else { bytes / files };
                if paid < *bytes {
                    one.files += files;
                    one.saves += bytes - paid;
                }
                one.rest += paid;
                met[content] = true;
            }
            worth.push(one);
        }
        worth
    }
}

/// Everything that was met, put together.
#[derive(Default)]
struct Tally {
    trees: Vec<Vec<Met>>,
    places: Vec<Vec<Place>>,
    lost: u64,
    /// Which files of the table were met.
    met: Vec<bool>,
    /// Whether the table of the next time is another one.
    differs: bool,
}

/// A file whose content has a number.
struct Met {
    content: u32,
    inode: (u64, u64),
    bytes: u64,
    several: bool,
    read: bool,
}

impl Tally {
    /// The table learns what was read.
    fn of(known: &mut Known, found: Vec<Vec<Found>>) -> Self {
        let mut tally = Self { met: vec![false; known.files().len()], ..Self::default() };
        for tree in found {
            let (mut met, mut places) = (Vec::new(), Vec::new());
            for thread in tree {
                for (at, weight) in thread.unchanged {
                    tally.met[at as usize] = true;
                    let KnownFile { fingerprint, content, .. } = known.files()[at as usize];
                    met.push(Met::new(content, &fingerprint, weight, false));
                }
                for Read { fingerprint, content, weight, lasts } in thread.read {
                    met.push(Met::new(known.number(&content), &fingerprint, weight, true));
                    if lasts {
                        let at = known.add(fingerprint, &content, Extras::Perhaps) as usize;
                        tally.met.resize(known.files().len(), false);
                        (tally.met[at], tally.differs) = (true, true);
                    }
                }
                places.extend(thread.places);
                tally.lost += thread.lost;
            }
            tally.trees.push(met);
            tally.places.push(places);
        }
        tally.differs |= tally.met.contains(&false);
        tally
    }

    fn survey(self, known: Known) -> Survey {
        let trees: Vec<(u64, u64, Vec<Portion>)> = self.trees.into_par_iter().map(portions).collect();
        let mut survey = Survey { files: self.lost, read: self.lost, places: self.places, ..Survey::default() };
        survey.contents = known.into_contents();
        for (files, read, portions) in trees {
            survey.files += files;
            survey.read += read;
            survey.trees.push(portions);
        }
        survey
    }
}

impl Met {
    fn new(content: u32, fingerprint: &Fingerprint, weight: Weight, read: bool) -> Self {
        Self { content, inode: fingerprint.inode(), bytes: weight.bytes, several: weight.several, read }
    }
}

/// How many files of a tree were met, and read, and what is in them.
fn portions(mut met: Vec<Met>) -> (u64, u64, Vec<Portion>) {
    let mut several = HashSet::new();
    met.retain(|file| !file.several || several.insert(file.inode));
    met.sort_unstable_by_key(|file| file.content);
    let portion = |files: &[Met]| Portion {
        content: files[0].content,
        files: files.len() as u64,
        bytes: files.iter().map(|file| file.bytes).sum(),
    };
    let read = met.iter().filter(|file| file.read).count() as u64;
    (met.len() as u64, read, met.chunk_by(|one, other| one.content == other.content).map(portion).collect())
}

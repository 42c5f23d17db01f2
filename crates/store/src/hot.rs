//! Which parts of a layer's objects guests really use, so that they can be in memory before the next guest asks for
//! them.
//!
//! The kernel charges a page of a file to the group that has it read from the disk, and all others use it for nothing.
//! Among guests that share files, that is whichever starts first after a boot: its limit pays for all. So what guests
//! had in memory is noted, and read ahead by the daemon, in whose group the pages then are.
//!
//! ```text
//!   a guest has run ──note──▶ known/hot-LAYER: objects, and which parts of them ──the layer is mounted──▶ warm
//! ```
//!
//! It is a cache: a note that is missing or damaged is no note.

use crate::store::Lease;
use crate::{LayerId, Store, StoreError, deep_stack, image};
use composefs::fsverity::{FsVerityHashValue, Sha256HashValue};
use composefs::generic_tree::LeafContent;
use composefs::tree::RegularFile;
use pando_kernel::Context;
use pando_kernel::memory::page_cache::{page_size, resident_pages_within};
use rustix::fs::{Advice, fadvise};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

/// How finely parts are told apart, in bytes: what the kernel usually reads ahead.
const PART: u64 = 128 << 10;

/// The most that a note names, in bytes: a guest that read all of its system once does not make all of it worth being
/// kept.
const MOST: u64 = 512 << 20;

/// The most that a note is long, in bytes.
const LONGEST: u64 = 16 << 20;

/// A run of parts of an object: the first, and how many.
type Run = (u64, u64);

impl Store {
    fn hot_note(&self, layer: &LayerId) -> PathBuf {
        self.known().join(format!("hot-{layer}"))
    }

    /// Whether there is a note of a layer that is younger than `age`.
    pub fn is_hot_noted(&self, layer: &LayerId, age: Duration) -> bool {
        let modified = self.hot_note(layer).metadata().and_then(|found| found.modified());
        modified.is_ok_and(|time| time.elapsed().is_ok_and(|since| since < age))
    }

    /// Notes which parts of a layer's objects are in memory now, and answers how many bytes that are.
    ///
    /// # Errors
    ///
    /// Before Linux 6.5, which cannot tell (ENOSYS).
    pub fn note_hot(&self, layer: &LayerId) -> Result<u64, StoreError> {
        let _lease: Lease = self.lease()?;
        let tree = deep_stack::run(|| image::read(self, layer))?;
        let (mut note, mut bytes, mut seen) = (String::new(), 0, HashSet::new());
        for leaf in &tree.leaves {
            let LeafContent::Regular(RegularFile::External(digest, size)) = &leaf.content else { continue };
            if !seen.insert(digest.clone()) || bytes >= MOST {
                continue;
            }
            let Ok(object) = File::open(self.object(digest)) else { continue };
            let runs = resident(&object, *size).context(|| "asking what of an object is in memory".into())?;
            if runs.is_empty() {
                continue;
            }
            bytes += runs.iter().map(|(_, parts)| parts * PART).sum::<u64>();
            note += &digest.to_hex();
            for (first, parts) in runs {
                // A string takes whatever is written to it.
                let _ = write!(note, " {first}+{parts}");
            }
            note.push('\n');
        }
        let path = self.hot_note(layer);
        let save = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(self.staging())?;
            file.write_all(note.as_bytes())?;
            file.persist(&path)?;
            Ok(())
        };
        save().context(|| format!("writing {}", path.display()))?;
        Ok(bytes)
    }

    /// Has the kernel read what was noted of a layer, for the caller's group to pay; what is in memory already stays
    /// whose it is. It waits for no disk, and answers how many bytes the note names.
    pub fn warm(&self, layer: &LayerId) -> u64 {
        let path = self.hot_note(layer);
        if !path.metadata().is_ok_and(|found| found.len() <= LONGEST) {
            return 0;
        }
        let note = std::fs::read_to_string(path).unwrap_or_default();
        let mut bytes = 0;
        for (digest, runs) in note.lines().filter_map(parse) {
            let Ok(object) = File::open(self.object(&digest)) else { continue };
            for part in runs.iter().flat_map(|(first, parts)| *first..first.saturating_add(*parts)) {
                if bytes >= MOST {
                    return bytes;
                }
                // Part by part: of one question the kernel answers no more than it reads ahead. What it does not do the
                // guest does itself.
                let _ = fadvise(&object, part.saturating_mul(PART), NonZeroU64::new(PART), Advice::WillNeed);
                bytes += PART;
            }
        }
        bytes
    }
}

/// The parts of an object that are in memory, at least half of each.
fn resident(object: &File, size: u64) -> std::io::Result<Vec<Run>> {
    let page = page_size();
    let mut runs: Vec<Run> = Vec::new();
    // Most objects are not there at all, or small.
    if resident_pages_within(object.as_fd(), 0, 0)? == 0 {
        return Ok(runs);
    }
    for part in 0..size.div_ceil(PART) {
        let length = PART.min(size - part * PART);
        let pages = resident_pages_within(object.as_fd(), part * PART, length)?;
        if pages * 2 < length.div_ceil(page) {
            continue;
        }
        match runs.last_mut() {
            Some((first, parts)) if *first + *parts == part => *parts += 1,
            _ => runs.push((part, 1)),
        }
    }
    Ok(runs)
}

/// A line of a note.
pub(crate) fn parse(line: &str) -> Option<(Sha256HashValue, Vec<Run>)> {
    let mut words = line.split(' ');
    let digest: LayerId = words.next()?.parse().ok()?;
    let run = |word: &str| {
        let (first, parts) = word.split_once('+')?;
        Some((first.parse().ok()?, parts.parse().ok()?))
    };
    Some((digest.digest(), words.map(run).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_as_it_was_written() {
        let digest = "ab".repeat(32);
        let (parsed, runs) = parse(&format!("{digest} 0+3 9+1")).unwrap();
        assert_eq!((parsed.to_hex(), runs), (digest.clone(), vec![(0, 3), (9, 1)]));
        for wrong in ["", "ab 0+1", &format!("{digest} 1"), &format!("{digest} a+b"), &format!("{digest} -1+1")] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn what_was_just_written_is_hot() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 300_000], 0).unwrap();
        match resident(&file, 300_000) {
            Ok(runs) => assert_eq!(runs, [(0, 3)]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Unsupported),
        }
    }
}

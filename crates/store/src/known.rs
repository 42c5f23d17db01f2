//! Files whose content is known from the last time, by inode and time of change: a file that did not change since is not read again.
//!
//! It is a cache, replaced as a whole. One that is damaged, or of another version, counts as empty.

use crate::Store;
use composefs::fsverity::{FsVerityHasher, Sha256HashValue};
use pando_kernel::{CallError, Context};
use rustix::fs::Stat;
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zerocopy::{FromBytes, IntoBytes};

/// What tells one state of a file from every other: device, inode, time of change, length in bytes.
///
/// Whatever is done to a file moves its time of change, which no program can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u64; 5]);

impl Fingerprint {
    pub(crate) fn of(stat: &Stat) -> Self {
        let nanoseconds = stat.st_ctime_nsec;
        Self([stat.st_dev, stat.st_ino, stat.st_ctime.cast_unsigned(), nanoseconds, stat.st_size.cast_unsigned()])
    }

    /// Whether a file could be written to again within the same tick of the clock that its times are taken from.
    pub(crate) fn is_fresh(&self) -> bool {
        const TICK: Duration = Duration::from_secs(2);
        let changed = UNIX_EPOCH + Duration::from_secs(self.0[2]);
        SystemTime::now().duration_since(changed).map_or(true, |age| age < TICK)
    }
}

/// A table of such files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(HashMap<Fingerprint, (Sha256HashValue, Extras)>);

/// Whether a file has extended attributes that a layer keeps; who sets one moves the file's time of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extras {
    /// It has none.
    None,
    /// It has some, or nobody has looked.
    Perhaps,
}

const MAGIC: &[u8; 8] = b"pandoKF2";
/// Five numbers, a digest, and whether there are extended attributes.
const RECORD: usize = 5 * 8 + 32 + 1;

impl Known {
    pub(crate) fn get(&self, file: &Fingerprint) -> Option<&Sha256HashValue> {
        self.0.get(file).map(|(digest, _)| digest)
    }

    /// The digest of a file that is known to have no extended attributes.
    pub(crate) fn get_plain(&self, file: &Fingerprint) -> Option<&Sha256HashValue> {
        self.0.get(file).filter(|(_, extras)| *extras == Extras::None).map(|(digest, _)| digest)
    }

    pub(crate) fn add(&mut self, file: Fingerprint, digest: Sha256HashValue, extras: Extras) {
        self.0.insert(file, (digest, extras));
    }

    /// How long it is when it is kept, about.
    pub(crate) fn bytes(&self) -> u64 {
        (self.0.len() * RECORD) as u64
    }

    /// What was known the last time, by the name that it was kept under.
    pub(crate) fn load(store: &Store, name: &str) -> Self {
        let bytes = std::fs::read(store.known().join(name)).ok();
        bytes.and_then(|bytes| Self::from_bytes(&bytes)).unwrap_or_default()
    }

    /// Keeps it for the next time, and of all such tables those that were used last.
    pub(crate) fn save(&self, store: &Store, name: &str) -> Result<(), CallError> {
        let path = store.known().join(name);
        forget_oldest(&store.known());
        let save = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(store.staging())?;
            file.write_all(&self.to_bytes())?;
            file.persist(&path)?;
            Ok(())
        };
        save().context(|| format!("writing {}", path.display()))
    }

    /// Whether a tree's times of change can be trusted: the kernel's own file systems for disks keep them from everybody, while those of an image
    /// are whatever was written into it.
    pub(crate) fn can_know(tree: BorrowedFd<'_>) -> bool {
        const EXT4: i64 = 0xef53;
        const XFS: i64 = 0x5846_5342;
        const BTRFS: i64 = 0x9123_683e;
        const F2FS: i64 = 0xf2f5_2010;
        rustix::fs::fstatfs(tree).is_ok_and(|found| [EXT4, XFS, BTRFS, F2FS].contains(&found.f_type))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAGIC.len() + self.0.len() * RECORD + 32);
        bytes.extend(MAGIC);
        for (file, (digest, extras)) in &self.0 {
            file.0.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend(digest.as_bytes());
            bytes.push(u8::from(*extras == Extras::None));
        }
        let sum = FsVerityHasher::<Sha256HashValue>::hash(&bytes);
        bytes.extend(sum.as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (records, sum) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
        if FsVerityHasher::<Sha256HashValue>::hash(records).as_bytes() != sum {
            return None;
        }
        let records = records.strip_prefix(MAGIC)?;
        let one = |record: &[u8]| {
            let number = |index: usize| {
                let bytes = record.get(index * 8..index * 8 + 8)?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            };
            let file = Fingerprint([number(0)?, number(1)?, number(2)?, number(3)?, number(4)?]);
            let digest: &Sha256HashValue = FromBytes::ref_from_bytes(record.get(40..72)?).ok()?;
            let extras = if *record.get(72)? == 1 { Extras::None } else { Extras::Perhaps };
            Some((file, (digest.clone(), extras)))
        };
        records.chunks(RECORD).map(one).collect::<Option<HashMap<_, _>>>().map(Self)
    }
}

/// How many tables are kept.
const MOST: usize = 256;

fn forget_oldest(directory: &Path) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut tables: Vec<_> =
        entries.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    tables.sort();
    for (_, path) in tables.iter().take(tables.len().saturating_sub(MOST)) {
        // It is a cache: what stays is forgotten the next time.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Known {
        let file = |number| Fingerprint([1, number, 3, 4, 5]);
        Known(
            (0..100)
                .map(|number| {
                    let extras = if number % 2 == 0 { Extras::None } else { Extras::Perhaps };
                    (file(number), (FsVerityHasher::<Sha256HashValue>::hash(&number.to_le_bytes()), extras))
                })
                .collect(),
        )
    }

    #[test]
    fn what_was_kept_is_read_again() {
        assert_eq!(Known::from_bytes(&some().to_bytes()).unwrap().0, some().0);
        assert_eq!(Known::from_bytes(&Known::default().to_bytes()).unwrap().0.len(), 0);
    }

    #[test]
    fn damage_is_noticed() {
        let whole = some().to_bytes();
        for at in [0, 8, 100, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(Known::from_bytes(&damaged).is_none(), "{at}");
        }
        for length in [0, 31, 40, whole.len() - 1] {
            assert!(Known::from_bytes(&whole[..length]).is_none(), "{length}");
        }
    }

    #[test]
    fn a_file_that_was_just_written_is_read_again() {
        let file = tempfile::tempfile().unwrap();
        assert!(Fingerprint::of(&rustix::fs::fstat(&file).unwrap()).is_fresh());
        assert!(!Fingerprint([0, 0, 1_000_000_000, 0, 0]).is_fresh());
    }
}

//! Files whose content is known from the last time, by inode and time of change: a file that did not change since is
//! not read again.
//!
//! It is a cache, replaced as a whole. One that is damaged, or of another version, counts as empty.
//!
//! ```text
//!   magic · how many contents · their digests · a record for each file · digest of all before
//! ```

use crate::Store;
use composefs::fsverity::{FsVerityHasher, Sha256HashValue};
use foldhash::fast::RandomState;
use pando_kernel::{CallError, Context};
use rustix::fs::Stat;
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
        self.is_fresh_at(SystemTime::now())
    }

    /// The same at some moment before it was looked at.
    pub(crate) fn is_fresh_at(&self, now: SystemTime) -> bool {
        const TICK: Duration = Duration::from_secs(2);
        // Times before 1970 and after all others are no age that could be told: file systems have them, and their
        // makers choose them.
        let changed = UNIX_EPOCH.checked_add(Duration::from_secs(self.0[2]));
        changed.and_then(|changed| now.duration_since(changed).ok()).is_none_or(|age| age < TICK)
    }

    /// One of some numbers, in the order of its fields.
    #[cfg(feature = "fuzz")]
    pub(crate) fn from_numbers(numbers: [u64; 5]) -> Self {
        Self(numbers)
    }

    /// The device and the inode: of all states of one file a table knows the last.
    pub(crate) fn inode(&self) -> (u64, u64) {
        (self.0[0], self.0[1])
    }
}

/// Whether a file has extended attributes that a layer keeps; to set one moves the file's time of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extras {
    /// It has none.
    None,
    /// It has some, or nobody has looked.
    Perhaps,
}

/// A file that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownFile {
    pub(crate) fingerprint: Fingerprint,
    /// The number of its content.
    pub(crate) content: u32,
    pub(crate) extras: Extras,
}

/// A table of such files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Each content once.
    contents: Vec<Sha256HashValue>,
    files: Vec<KnownFile>,
    /// Which of the files has an inode.
    by_inode: HashMap<(u64, u64), u32, RandomState>,
    /// The numbers of the contents; made when a file is added.
    numbers: HashMap<Sha256HashValue, u32, RandomState>,
}

const MAGIC: &[u8; 8] = b"pandoKF3";

/// A file, as it is kept.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    fingerprint: [U64; 5],
    content: U32,
    plain: U32,
}

impl Known {
    /// The place among the files of one that has not changed.
    pub(crate) fn find(&self, file: &Fingerprint) -> Option<u32> {
        let at = *self.by_inode.get(&file.inode())?;
        (self.files[at as usize].fingerprint == *file).then_some(at)
    }

    pub(crate) fn get(&self, file: &Fingerprint) -> Option<&Sha256HashValue> {
        self.find(file).map(|at| self.content(self.files[at as usize].content))
    }

    /// The digest of a file that is known to have no extended attributes.
    pub(crate) fn get_plain(&self, file: &Fingerprint) -> Option<&Sha256HashValue> {
        let found = self.files[self.find(file)? as usize];
        (found.extras == Extras::None).then(|| self.content(found.content))
    }

    pub(crate) fn files(&self) -> &[KnownFile] {
        &self.files
    }

    pub(crate) fn into_contents(self) -> Vec<Sha256HashValue> {
        self.contents
    }

    /// The table of some of its files.
    pub(crate) fn only(&self, wanted: &[bool]) -> Self {
        let mut only = Self::default();
        for (file, _) in self.files.iter().zip(wanted).filter(|(_, wanted)| **wanted) {
            only.add(file.fingerprint, self.content(file.content), file.extras);
        }
        only
    }

    /// The digest of a numbered content.
    pub(crate) fn content(&self, number: u32) -> &Sha256HashValue {
        &self.contents[number as usize]
    }

    /// The number of a content, which it gets if it has none.
    pub(crate) fn number(&mut self, digest: &Sha256HashValue) -> u32 {
        if self.numbers.len() < self.contents.len() {
            self.numbers = (0..).zip(&self.contents).map(|(number, digest)| (digest.clone(), number)).collect();
        }
        if let Some(number) = self.numbers.get(digest) {
            return *number;
        }
        // Four thousand million contents fill no table that anybody could load.
        let number = u32::try_from(self.contents.len()).unwrap_or(u32::MAX);
        self.contents.push(digest.clone());
        self.numbers.insert(digest.clone(), number);
        number
    }

    /// Adds a file, in the place of what was known of its inode before. The answer is its place.
    pub(crate) fn add(&mut self, fingerprint: Fingerprint, digest: &Sha256HashValue, extras: Extras) -> u32 {
        let file = KnownFile { fingerprint, content: self.number(digest), extras };
        let next = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        let at = *self.by_inode.entry(fingerprint.inode()).or_insert(next);
        if at == next {
            self.files.push(file);
        } else {
            self.files[at as usize] = file;
        }
        at
    }

    /// How long it is when it is kept, about.
    pub(crate) fn bytes(&self) -> u64 {
        (self.files.len() * size_of::<Record>()) as u64
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

    /// Notes that a table which has not changed was used.
    pub(crate) fn touch(store: &Store, name: &str) {
        let touch =
            || std::fs::File::options().write(true).open(store.known().join(name))?.set_modified(SystemTime::now());
        // There may be none where nothing is known; and it is a cache.
        let _ = touch();
    }

    /// Whether a tree's times of change can be trusted: the kernel's own file systems for disks keep them from
    /// everybody, while those of an image are whatever was written into it.
    pub(crate) fn can_know(tree: BorrowedFd<'_>) -> bool {
        const EXT4: i64 = 0xef53;
        const XFS: i64 = 0x5846_5342;
        const BTRFS: i64 = 0x9123_683e;
        const F2FS: i64 = 0xf2f5_2010;
        rustix::fs::fstatfs(tree).is_ok_and(|found| [EXT4, XFS, BTRFS, F2FS].contains(&found.f_type))
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let contents = self.contents.as_slice();
        let length = MAGIC.len() + 8 + size_of_val(contents) + self.files.len() * size_of::<Record>() + 32;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(MAGIC);
        bytes.extend((contents.len() as u64).to_le_bytes());
        contents.iter().for_each(|digest| bytes.extend(digest.as_bytes()));
        for file in &self.files {
            let record = Record {
                fingerprint: file.fingerprint.0.map(U64::new),
                content: U32::new(file.content),
                plain: U32::new(u32::from(file.extras == Extras::None)),
            };
            bytes.extend(record.as_bytes());
        }
        let sum = FsVerityHasher::<Sha256HashValue>::hash(&bytes);
        bytes.extend(sum.as_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (whole, sum) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
        if FsVerityHasher::<Sha256HashValue>::hash(whole).as_bytes() != sum {
            return None;
        }
        let (count, rest) = whole.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
        let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
        let (contents, records) = rest.split_at_checked(count.checked_mul(32)?)?;
        let digest = |bytes: &[u8]| Sha256HashValue::read_from_bytes(bytes).ok();
        let contents: Vec<Sha256HashValue> = contents.chunks(32).map(digest).collect::<Option<_>>()?;
        let records = <[Record]>::ref_from_bytes(records).ok()?;
        let mut known = Self { contents, ..Self::default() };
        known.files.reserve(records.len());
        known.by_inode.reserve(records.len());
        for (at, record) in (0..).zip(records) {
            let fingerprint = Fingerprint(record.fingerprint.map(U64::get));
            let extras = if record.plain.get() == 1 { Extras::None } else { Extras::Perhaps };
            let content = record.content.get();
            if content as usize >= known.contents.len() || known.by_inode.insert(fingerprint.inode(), at).is_some() {
                return None;
            }
            known.files.push(KnownFile { fingerprint, content, extras });
        }
        Some(known)
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

    fn digest(number: u64) -> Sha256HashValue {
        FsVerityHasher::<Sha256HashValue>::hash(&number.to_le_bytes())
    }

    fn some() -> Known {
        let mut known = Known::default();
        for number in 0..100 {
            let extras = if number % 2 == 0 { Extras::None } else { Extras::Perhaps };
            known.add(Fingerprint([1, number, 3, 4, 5]), &digest(number / 3), extras);
        }
        known
    }

    #[test]
    fn what_was_kept_is_read_again() {
        let again = Known::from_bytes(&some().to_bytes()).unwrap();
        assert_eq!((again.files(), &again.contents), (some().files(), &some().contents));
        assert_eq!(again.contents.len(), 34);
        assert_eq!(again.get(&Fingerprint([1, 8, 3, 4, 5])), Some(&digest(2)));
        assert_eq!(again.get_plain(&Fingerprint([1, 9, 3, 4, 5])), None);
        assert_eq!(Known::from_bytes(&Known::default().to_bytes()).unwrap().files(), []);
    }

    #[test]
    fn the_last_state_of_an_inode_is_the_one_that_is_known() {
        let mut known = Known::from_bytes(&some().to_bytes()).unwrap();
        known.add(Fingerprint([1, 8, 4, 4, 5]), &digest(500), Extras::None);
        assert_eq!(known.files().len(), 100);
        assert_eq!(known.get(&Fingerprint([1, 8, 3, 4, 5])), None);
        assert_eq!(known.get(&Fingerprint([1, 8, 4, 4, 5])), Some(&digest(500)));
        assert_eq!(known.get(&Fingerprint([2, 8, 4, 4, 5])), None, "another device");
    }

    #[test]
    fn what_is_not_wanted_goes() {
        let wanted: Vec<bool> = (0..100).map(|number| number >= 90).collect();
        let only = some().only(&wanted);
        assert_eq!((only.files().len(), only.contents.len()), (10, 4));
        assert_eq!(only.get(&Fingerprint([1, 92, 3, 4, 5])), Some(&digest(30)));
        assert_eq!(only.get(&Fingerprint([1, 8, 3, 4, 5])), None);
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
        for time in [-1, i64::MIN, i64::MAX] {
            assert!(Fingerprint([0, 0, time.cast_unsigned(), 0, 0]).is_fresh(), "{time}");
        }
    }
}

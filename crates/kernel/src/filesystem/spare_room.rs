//! Room of a file system that foreign data may take: what is free, less a reserve for everything else that lives there.
//!
//! What unpacks an archive does not know how large it becomes before it has read it: 100 KB may be a gigabyte of zeros.
//! So each write is asked for here first. The file system is looked at again after each portion: others write there
//! too, and what was replaced is free again.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{StatVfs, fstatvfs};
use rustix::io::Errno;
use std::fmt;

/// The most that is kept free.
const MOST_RESERVED: u64 = 1 << 30;

/// Of a smaller file system a part is kept free: one of so many.
const RESERVED_PART: u64 = 20;

/// The most files that are kept free: as many as a small system has.
const MOST_FILES_RESERVED: u64 = 64 << 10;

/// Between two looks, at most so many bytes and files.
const PORTION: u64 = 64 << 20;
const FILES_PORTION: u64 = 4 << 10;

/// Room of one file system.
#[derive(Debug)]
pub struct SpareRoom {
    place: OwnedFd,
    /// What may be taken before the next look.
    bytes: u64,
    files: u64,
    block: u64,
    whole: u64,
}

/// There is not as much room as something takes. Written as the rest of a sentence: what it takes, and what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// There are too few bytes.
    Bytes {
        /// The bytes that it would take.
        wanted: u64,
        /// The bytes that are free.
        free: u64,
        /// What of that is kept free.
        reserve: u64,
    },
    /// Of files: a file system may have a fixed number of them.
    Files {
        /// How many more are free.
        free: u64,
        /// How many of those are kept free.
        reserve: u64,
    },
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes { wanted, free, reserve } => {
                write!(
                    f,
                    "it takes {}, and {} are free, of which {} stay free",
                    Size(wanted),
                    Size(free),
                    Size(reserve)
                )
            }
            Self::Files { free, reserve } => {
                write!(
                    f,
                    "it takes another file, and {free} more are possible there, of which {reserve} are not for it"
                )
            }
        }
    }
}

impl std::error::Error for NoRoom {}

/// Why room was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is not as much.
    NoRoom(NoRoom),
    /// The file system does not say.
    Look(Errno),
}

impl SpareRoom {
    /// That of the file system on which `directory` lies.
    ///
    /// # Errors
    ///
    /// Those of fstatfs(2): EIO, ENOSYS.
    pub fn at(directory: impl AsFd) -> Result<Self, Errno> {
        let place = rustix::io::fcntl_dupfd_cloexec(directory, 0)?;
        let found = fstatvfs(&place)?;
        let whole = if found.f_blocks == 0 { u64::MAX } else { found.f_blocks.saturating_mul(found.f_frsize) };
        Ok(Self { place, bytes: 0, files: 0, block: found.f_frsize.clamp(1, 1 << 20), whole })
    }

    /// Bytes of a block: what a file of one byte takes.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Bytes of the whole file system, used or not; `u64::MAX` where it has no bound.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Whether there is room for so many bytes; takes none of it. For a file whose size is known before its content is.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoRoom`] where there is not as much; [`Refusal::Look`] where the file system does not say.
    pub fn ask(&mut self, bytes: u64) -> Result<(), Refusal> {
        if bytes <= self.bytes { Ok(()) } else { self.look(bytes, 0) }
    }

    /// Takes room for so many bytes, which are written next.
    ///
    /// # Errors
    ///
    /// As [`Self::ask`].
    pub fn take(&mut self, bytes: u64) -> Result<(), Refusal> {
        self.ask(bytes)?;
        self.bytes = self.bytes.saturating_sub(bytes);
        Ok(())
    }

    /// Takes room for so many files, directories or links, each with a block for its name and attributes.
    ///
    /// # Errors
    ///
    /// As [`Self::ask`].
    pub fn take_files(&mut self, count: u64) -> Result<(), Refusal> {
        if count > self.files {
            self.look(0, count)?;
        }
        self.files = self.files.saturating_sub(count);
        self.take(count.saturating_mul(self.block))
    }

    /// Looks how much there is, and fails if it is less than what is wanted.
    fn look(&mut self, bytes: u64, files: u64) -> Result<(), Refusal> {
        let found = fstatvfs(&self.place).map_err(Refusal::Look)?;
        let (spare, spare_files) = spare(&found, bytes, files).map_err(Refusal::NoRoom)?;
        (self.bytes, self.files) = (spare.min(PORTION.max(bytes)), spare_files.min(FILES_PORTION.max(files)));
        Ok(())
    }
}

/// What may be taken of a file system, if that is no less than what is wanted.
fn spare(found: &StatVfs, wanted: u64, wanted_files: u64) -> Result<(u64, u64), NoRoom> {
    // Zero in all is said by one without a limit.
    let mut spare = (u64::MAX, u64::MAX);
    if found.f_blocks > 0 {
        let [whole, free] = [found.f_blocks, found.f_bavail].map(|blocks| blocks.saturating_mul(found.f_frsize));
        let reserve = (whole / RESERVED_PART).min(MOST_RESERVED);
        spare.0 = free.saturating_sub(reserve);
        if wanted > spare.0 {
            return Err(NoRoom::Bytes { wanted, free, reserve: reserve.min(free) });
        }
    }
    if found.f_files > 0 {
        let (free, reserve) = (found.f_favail, (found.f_files / RESERVED_PART).min(MOST_FILES_RESERVED));
        spare.1 = free.saturating_sub(reserve);
        if wanted_files > spare.1 {
            return Err(NoRoom::Files { free, reserve: reserve.min(free) });
        }
    }
    Ok(spare)
}

/// Bytes as people read them.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1 << 10 {
            return write!(f, "{} bytes", self.0);
        }
        let power = (self.0.ilog2() / 10) as usize;
        write!(f, "{:.1} {}", self.0 as f64 / (1_u64 << (10 * power)) as f64, UNITS[power - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system of so many blocks of 4 KiB.
    fn found(blocks: u64, available: u64, files: u64, files_available: u64) -> StatVfs {
        let mut found = rustix::fs::statvfs("/proc").unwrap();
        (found.f_frsize, found.f_blocks, found.f_bavail) = (4096, blocks, available);
        (found.f_files, found.f_favail) = (files, files_available);
        found
    }

    #[test]
    fn a_part_stays_free_and_of_a_large_one_a_gibibyte() {
        assert_eq!(spare(&found(1000, 500, 0, 0), 450 * 4096, 9), Ok((450 * 4096, u64::MAX)));
        let refused = NoRoom::Bytes { wanted: 450 * 4096 + 1, free: 500 * 4096, reserve: 50 * 4096 };
        assert_eq!(spare(&found(1000, 500, 0, 0), 450 * 4096 + 1, 9), Err(refused));
        let large = spare(&found(1 << 30, 1 << 20, 0, 0), 0, 0).unwrap();
        assert_eq!(large.0, (4 << 30) - (1 << 30));
        assert!(spare(&found(1000, 20, 0, 0), 1, 0).is_err() && spare(&found(1000, 20, 0, 0), 0, 0).is_ok());
    }

    #[test]
    fn files_are_counted_where_there_is_a_bound() {
        assert_eq!(spare(&found(0, 0, 1000, 100), 0, 50), Ok((u64::MAX, 50)));
        assert_eq!(spare(&found(0, 0, 1000, 100), 0, 51), Err(NoRoom::Files { free: 100, reserve: 50 }));
        assert!(spare(&found(0, 0, 0, 0), u64::MAX, u64::MAX).is_ok());
    }

    #[test]
    fn what_is_missing_is_said_in_numbers() {
        let said = NoRoom::Bytes { wanted: 1 << 30, free: 3 << 19, reserve: 1000 }.to_string();
        assert_eq!(said, "it takes 1.0 GiB, and 1.5 MiB are free, of which 1000 bytes stay free");
        assert_eq!(Size(u64::MAX).to_string(), "16.0 EiB");
    }

    #[test]
    fn room_is_taken_portion_by_portion() {
        let place = tempfile::tempdir().unwrap();
        let mut room = SpareRoom::at(std::fs::File::open(place.path()).unwrap()).unwrap();
        room.take(4096).unwrap();
        assert!(room.bytes < PORTION);
        room.take_files(2).unwrap();
        if room.whole() < u64::MAX {
            assert!(matches!(room.take(u64::MAX), Err(Refusal::NoRoom(NoRoom::Bytes { wanted: u64::MAX, .. }))));
        }
    }
}

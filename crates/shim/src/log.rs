//! A guest's log: a file of the host's that takes no more of the disk than its bound, whatever the guest prints.
//!
//! The guest never has it. What it prints arrives over a pipe, or on its console, and the shim is the only one that
//! writes. Beyond its bound a log loses its beginning, in place: a program that follows it reads on where it is.
//!
//! Beside the log lies a file of when what was printed: records of sixteen bytes, the place in the log at which a piece
//! begins and the milliseconds since the epoch at which it came, both little-endian.

use crate::bare;

use rustix::fd::OwnedFd;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// How much is carried from a pipe at a time, and how often before anything else gets its turn: together what a pipe
/// holds.
const MOST: usize = 16 << 10;
const TIMES: usize = 4;

/// More than a pipe ever holds, which is a mebibyte unless root of the host says otherwise (fs.pipe-max-size).
const MOST_LEFT: usize = 64 << 20;

/// File systems end files at sixteen tebibytes and more. A log that has come so far is emptied instead.
const LONGEST: u64 = 1 << 40;

/// Holes are cut in steps of this, where the bound is not too small for that: whole blocks on every file system.
const GRAIN: u64 = 64 << 10;
const FINE_GRAIN: u64 = 4 << 10;

/// The most that the times of a log take of the disk, by what the log may: bytes.
const fn bound_of_times(bound: u64) -> u64 {
    const LEAST: u64 = 16 << 10;
    if bound / 8 > LEAST { bound / 8 } else { LEAST }
}

/// The log, and when what was printed into it.
pub(crate) struct Log {
    text: Bounded,
    times: Option<Times>,
}

impl Log {
    /// One that is written to at its end.
    pub(crate) fn new(text: OwnedFd, times: Option<OwnedFd>, bound: u64) -> Self {
        let times = times.map(|file| Times { file: Bounded::new(file, bound_of_times(bound)), last: 0 });
        Self { text: Bounded::new(text, bound), times }
    }

    /// Another bound from now on.
    pub(crate) fn bind(&mut self, bound: u64) {
        self.text.bind(bound);
        if let Some(times) = &mut self.times {
            times.file.bind(bound_of_times(bound));
        }
    }

    /// Writes at its end. What a full disk does not take is lost: a guest must not stand still for its log's sake.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.text.make_room(bytes.len() as u64);
        if let Some(times) = &mut self.times {
            times.note(&self.text);
        }
        self.text.write(bytes);
    }
}

/// When what was printed.
struct Times {
    file: Bounded,
    /// The time in the last record.
    last: u64,
}

impl Times {
    /// Notes that what comes next into a log comes now. What comes within the same millisecond shares a record.
    fn note(&mut self, text: &Bounded) {
        let now = bare::now_ms();
        let Ok(about) = rustix::fs::fstat(&text.file) else { return };
        if now == self.last && about.st_size != 0 {
            return;
        }
        self.last = now;
        let mut record = [0; 16];
        record[..8].copy_from_slice(&(about.st_size as u64).to_le_bytes());
        record[8..].copy_from_slice(&now.to_le_bytes());
        self.file.make_room(record.len() as u64);
        self.file.write(&record);
    }
}

/// A file that takes no more of the disk than its bound.
struct Bounded {
    file: OwnedFd,
    /// The most that it takes of the disk: bytes.
    bound: u64,
    /// How much more it may take before it is cut; unknown until it is looked at.
    room: Option<u64>,
}

impl Bounded {
    fn new(file: OwnedFd, bound: u64) -> Self {
        Self { file, bound, room: None }
    }

    fn bind(&mut self, bound: u64) {
        (self.bound, self.room) = (bound, None);
    }

    /// Makes room for so many bytes, which it is told to write next.
    fn make_room(&mut self, length: u64) {
        let known = self.room.map_or_else(|| self.look(), Ok);
        let room = match known {
            Ok(room) if room >= length => room,
            // The bound is much larger than what is carried at a time.
            _ => self.cut().unwrap_or(0),
        };
        self.room = Some(room.saturating_sub(length));
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(&self.file, rest) {
                Ok(0) => return,
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn look(&self) -> Result<u64, Errno> {
        const BLOCK: u64 = 512;
        let allocated = rustix::fs::fstat(&self.file)?.st_blocks as u64 * BLOCK;
        Ok(self.bound.saturating_sub(allocated))
    }

    /// Takes its beginning from it and leaves the newer half of what it may have; how much it may take then.
    fn cut(&self) -> Result<u64, Errno> {
        let grain = if self.bound >= 4 * GRAIN { GRAIN } else { FINE_GRAIN };
        let length = rustix::fs::fstat(&self.file)?.st_size as u64;
        let beginning = length.saturating_sub(self.bound / 2) / grain * grain;
        let punched = || {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if beginning > 0 {
                rustix::fs::fallocate(&self.file, flags, 0, beginning)?;
            }
            // What a file system has set aside after the end for what comes next counts as well.
            rustix::fs::ftruncate(&self.file, length)
        };
        // Not every file system has holes, and one that is full may have none to make.
        if length > LONGEST || punched().is_err() {
            rustix::fs::ftruncate(&self.file, 0)?;
        }
        Ok((self.bound - self.bound / 2).saturating_sub(grain))
    }
}

/// Carries what waits in a pipe, and no more than there fits in. Whether anybody may still write into it.
#[inline(never)]
pub(crate) fn carry(pipe: &OwnedFd, log: &mut Log) -> bool {
    carry_some(pipe, log, MOST * TIMES).unwrap_or(true)
}

/// Carries what is left in it, when its guest has ended.
#[inline(never)]
pub(crate) fn carry_rest(pipe: &OwnedFd, log: &mut Log) {
    let _ = carry_some(pipe, log, MOST_LEFT);
}

/// Carries so many bytes and some, or until there are none: whether there will be more, if that is known.
fn carry_some(pipe: &OwnedFd, log: &mut Log, most: usize) -> Option<bool> {
    let mut bytes = [0; MOST];
    let mut carried = 0;
    while carried < most {
        match rustix::io::read(pipe, &mut bytes) {
            Ok(0) => return Some(false),
            Ok(length) => {
                log.append(&bytes[..length]);
                carried += length;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Some(true),
            Err(_) => return Some(false),
        }
    }
    None
}

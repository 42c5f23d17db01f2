//! A ring of records in a file: the newest replace the oldest, and the file never grows beyond them.
//!
//! ```text
//!   magic, capacity, next (24 bytes) │ record │ record │ …        a record is WORDS numbers
//! ```
//!
//! Nothing waits for the disk: after a crash of the machine the newest records may be gone, and a torn file begins
//! anew.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// How many numbers a record has.
pub const WORDS: usize = 12;

const MAGIC: u64 = 0x5041_4e44_4f52_3031;
const HEADER: u64 = 24;
const RECORD: u64 = WORDS as u64 * 8;

/// A file of bounded size that keeps the newest records.
#[derive(Clone, Debug)]
pub struct Ring {
    path: PathBuf,
    capacity: u64,
}

impl Ring {
    /// The ring in a file, which is made when the first record comes.
    pub fn new(path: PathBuf, capacity: u64) -> Self {
        Self { path, capacity: capacity.max(1) }
    }

    /// Adds a record, in place of the oldest where the ring is full.
    pub fn push(&self, record: &[i64; WORDS]) -> io::Result<()> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&self.path)?;
        let next = self.next(&file)?;
        let bytes: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all_at(&bytes, HEADER + next % self.capacity * RECORD)?;
        let header: Vec<u8> = [MAGIC, self.capacity, next + 1].iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all_at(&header, 0)
    }

    /// Every record, oldest first. A file that is not there has none.
    pub fn all(&self) -> io::Result<Vec<[i64; WORDS]>> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let next = self.next(&file)?;
        let first = next.saturating_sub(self.capacity);
        (first..next).map(|number| self.read(&file, number)).collect()
    }

    /// How many records there ever were; 0 for a file of another make, or of another size.
    fn next(&self, file: &File) -> io::Result<u64> {
        let mut header = [0; HEADER as usize];
        match file.read_exact_at(&mut header, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
            read => read?,
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at * 8 + byte]));
        let (magic, capacity, next) = (word(0), word(1), word(2));
        if magic != MAGIC || capacity != self.capacity {
            return Ok(0);
        }
        let whole = file.metadata()?.len() >= HEADER + next.min(capacity) * RECORD;
        Ok(if whole { next } else { 0 })
    }

    fn read(&self, file: &File, number: u64) -> io::Result<[i64; WORDS]> {
        let mut bytes = [0; RECORD as usize];
        file.read_exact_at(&mut bytes, HEADER + number % self.capacity * RECORD)?;
        Ok(std::array::from_fn(|word| i64::from_le_bytes(std::array::from_fn(|byte| bytes[word * 8 + byte]))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_replace_the_oldest() {
        let directory = tempfile::tempdir().unwrap();
        let ring = Ring::new(directory.path().join("ring"), 3);
        assert!(ring.all().unwrap().is_empty());
        for number in 1..=5 {
            ring.push(&[number; WORDS]).unwrap();
        }
        let firsts: Vec<i64> = ring.all().unwrap().iter().map(|record| record[0]).collect();
        assert_eq!(firsts, [3, 4, 5]);
        assert_eq!(std::fs::metadata(directory.path().join("ring")).unwrap().len(), HEADER + 3 * RECORD);
    }

    #[test]
    fn a_torn_or_foreign_file_begins_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ring");
        let ring = Ring::new(path.clone(), 3);
        std::fs::write(&path, "something else entirely, and longer than a header").unwrap();
        assert!(ring.all().unwrap().is_empty());
        ring.push(&[7; WORDS]).unwrap();
        assert_eq!(ring.all().unwrap(), [[7; WORDS]]);
        File::options().write(true).open(&path).unwrap().set_len(30).unwrap();
        assert!(ring.all().unwrap().is_empty());
    }
}

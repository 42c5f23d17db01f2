//! When the pieces of a log were printed: a file of records beside it, written by whoever carries the log.

use super::file::{PIECE, standing};
use anyhow::Context;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The place in the log at which a piece begins, and milliseconds since the epoch.
const RECORD: u64 = 16;

/// The times of a log, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Times {
    file: Option<File>,
    read: u64,
    records: Vec<(u64, i64)>,
}

impl Times {
    pub(super) fn new(file: Option<File>) -> Self {
        Self { file, ..Self::default() }
    }

    /// Whether no time of any line is known.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Reads what has come since the last time.
    pub(super) fn refresh(&mut self) -> anyhow::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let length = file.metadata().context("cannot look at its times")?.len();
        if length < self.read {
            // It was emptied to make room: what is there now is new.
            (self.read, self.records) = (0, Vec::new());
        }
        let mut piece = vec![0; usize::try_from(PIECE)?];
        while let Some(from) = standing(file, self.read)? {
            let read = file.read_at(&mut piece, from).context("cannot read its times")? as u64;
            let whole = read - read % RECORD;
            if whole == 0 {
                break;
            }
            piece[..usize::try_from(whole)?].chunks_exact(16).for_each(|record| add(&mut self.records, record));
            self.read = from + whole;
        }
        Ok(())
    }

    /// When what stands at `place` was printed: milliseconds since the epoch.
    pub(super) fn of(&self, place: u64) -> Option<i64> {
        let after = self.records.partition_point(|(begins, _)| *begins <= place);
        after.checked_sub(1).map(|last| self.records[last].1)
    }
}

fn add(records: &mut Vec<(u64, i64)>, record: &[u8]) {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let (place, time) = (number(&record[..8]), i64::try_from(number(&record[8..])).unwrap_or(i64::MAX));
    // A log that was emptied begins anew.
    let known = records.partition_point(|(before, _)| *before < place);
    records.truncate(known);
    records.push((place, time));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn record(place: u64, time: u64) -> Vec<u8> {
        [place.to_le_bytes(), time.to_le_bytes()].concat()
    }

    #[test]
    fn a_place_has_the_time_of_the_piece_that_it_is_in() {
        // Whoever reads has a place in the file of his own.
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut times = Times::new(Some(file.reopen().unwrap()));
        times.refresh().unwrap();
        assert!(times.is_empty());
        file.write_all(&[record(10, 1000), record(20, 2000)].concat()).unwrap();
        times.refresh().unwrap();
        assert_eq!(
            [9, 10, 19, 20, 99].map(|place| times.of(place)),
            [None, Some(1000), Some(1000), Some(2000), Some(2000)]
        );
        // Half a record is not read before the rest of it.
        file.write_all(&record(30, 3000)[..7]).unwrap();
        times.refresh().unwrap();
        assert_eq!(times.of(30), Some(2000));
        file.write_all(&record(30, 3000)[7..]).unwrap();
        times.refresh().unwrap();
        assert_eq!(times.of(30), Some(3000));
    }

    #[test]
    fn a_log_that_was_emptied_begins_anew() {
        let mut times = Times::default();
        for (place, time) in [(0, 1), (100, 2), (200, 3), (0, 4), (50, 5)] {
            add(&mut times.records, &record(place, time));
        }
        assert_eq!([0, 60, 150].map(|place| times.of(place)), [Some(4), Some(5), Some(5)]);
    }
}

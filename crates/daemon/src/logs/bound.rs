//! How much of a log is kept.

use pando_guest::settings::{Problem, Settings};
use rustix::fs::{FallocateFlags, fallocate};
use serde::Deserialize;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The table `[logs]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LogSettings {
    /// The most that each takes of the disk, with a unit: `"16M"`.
    size: Option<String>,
}

/// The most that a log takes of the disk, give or take what is written between two looks: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound(u64);

/// How far a log reaches, and what it takes of the disk: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    length: u64,
    allocated: u64,
}

impl Extent {
    pub(super) fn of(log: &Path) -> io::Result<Option<Self>> {
        match std::fs::metadata(log) {
            Ok(metadata) => Ok(Some(Self::from(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl From<&Metadata> for Extent {
    fn from(metadata: &Metadata) -> Self {
        Self { length: metadata.len(), allocated: metadata.blocks() * 512 }
    }
}

impl Bound {
    const USUAL: Self = Self(16 << 20);

    /// Less than this would not hold a start that fails.
    const LEAST: u64 = 64 << 10;

    /// File systems end files at sixteen tebibytes and more. A log that has come so far is emptied instead.
    const LONGEST: u64 = 1 << 40;

    /// No hole is cut finer.
    const GRAIN: u64 = 64 << 10;

    pub(super) fn bytes(self) -> u64 {
        self.0
    }

    /// That of a log's times, as a shim has it.
    pub(super) fn of_times(self) -> Self {
        Self((self.0 / 8).max(16 << 10))
    }

    /// What pando.toml says; the usual where it says nothing, or what cannot be understood.
    pub(super) fn read(settings: &Settings) -> (Self, Vec<Problem>) {
        let (logs, mut problems) = settings.table::<LogSettings>("logs");
        let bound = match logs.size.as_deref().map(Self::parse) {
            None => Self::USUAL,
            Some(Ok(bound)) => bound,
            Some(Err(reason)) => {
                problems.push(Problem {
                    table: "logs".to_owned(),
                    what: format!("pando.toml: [logs] {reason}; logs are bounded as usual"),
                });
                Self::USUAL
            }
        };
        (bound, problems)
    }

    fn parse(size: &str) -> Result<Self, String> {
        match pando_limit::quantity::size(size) {
            Ok(bytes) if bytes < Self::LEAST => Err(format!("size cannot be '{size}': a log has at least 64K")),
            Ok(bytes) => Ok(Self(bytes)),
            Err(reason) => Err(format!("size cannot be '{size}': {reason}")),
        }
    }

    /// Keeps a log within the bound; the answer is what it is now, if it is there.
    pub(super) fn keep(self, log: &Path) -> io::Result<Option<Extent>> {
        let now = Extent::of(log)?;
        if now.is_none_or(|now| now.allocated <= self.0) {
            return Ok(now);
        }
        self.cut(&File::options().write(true).open(log)?)?;
        Extent::of(log)
    }

    /// Takes its beginning from a log and leaves the newer half of what it may have.
    fn cut(self, log: &File) -> io::Result<()> {
        let length = log.metadata()?.len();
        if length > Self::LONGEST {
            return log.set_len(0);
        }
        let beginning = length.saturating_sub(self.0 / 2) / Self::GRAIN * Self::GRAIN;
        if beginning > 0 {
            match fallocate(log, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, beginning) {
                // Not every file system has holes.
                Err(rustix::io::Errno::OPNOTSUPP) => return log.set_len(0),
                cut => cut?,
            }
        }
        if Extent::from(&log.metadata()?).allocated > self.0 {
            // Its guest had blocks set aside behind the end (fallocate(2)): only to trim it to its length gives those
            // back.
            log.set_len(length)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};

    const BOUND: Bound = Bound(1 << 20);

    #[test]
    fn what_pando_toml_says_is_the_bound() {
        let read = |text: &str| Bound::read(&Settings::parse(Path::new("pando.toml"), text));
        assert_eq!(read(""), (Bound::USUAL, Vec::new()));
        assert_eq!(read("[logs]\nsize = '1M'\n[network]\nprivate = 'x'"), (BOUND, Vec::new()));
        for (wrong, because) in [("'10K'", "at least 64K"), ("'much'", "write bytes"), ("7", "invalid type")] {
            let (bound, problems) = read(&format!("[logs]\nsize = {wrong}"));
            assert_eq!(bound, Bound::USUAL);
            assert!(problems[0].what.contains(because), "{problems:?}");
        }
    }

    #[test]
    fn a_log_within_the_bound_is_left_alone() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        log.write_all(b"line\n").unwrap();
        assert_eq!(BOUND.keep(log.path()).unwrap().map(|now| now.length), Some(5));
        assert_eq!(BOUND.keep(&log.path().with_extension("none")).unwrap(), None);
    }

    #[test]
    fn one_beyond_it_keeps_its_end_where_it_was() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        let line = [b'x'; 1023];
        for _ in 0..3 << 10 {
            log.write_all(&line).and_then(|()| log.write_all(b"\n")).unwrap();
        }
        log.write_all(b"the end\n").unwrap();
        log.as_file().sync_all().unwrap();
        let now = BOUND.keep(log.path()).unwrap().unwrap();
        assert!(now.allocated <= BOUND.0, "{now:?}");
        assert_eq!(now.length, (3 << 20) + 8);
        log.seek(SeekFrom::Start((3 << 20) - 1024)).unwrap();
        let mut end = String::new();
        log.read_to_string(&mut end).unwrap();
        assert!(end.starts_with('x') && end.ends_with("x\nthe end\n"));
    }

    #[test]
    fn blocks_that_a_guest_set_aside_are_given_back() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        log.write_all(b"line\n").unwrap();
        fallocate(&log, FallocateFlags::KEEP_SIZE, 0, 8 << 20).unwrap();
        let now = BOUND.keep(log.path()).unwrap().unwrap();
        assert!(now.allocated <= BOUND.0, "{now:?}");
        assert_eq!(std::fs::read(log.path()).unwrap(), b"line\n");
    }
}

//! A log line by line, each with the time at which it was printed.

use super::file::LogFile;
use super::times::Times;
use std::fs::File;

/// A line, or a part of one that is very long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Milliseconds since the epoch, where known.
    pub(super) time: Option<i64>,
    /// With its end, if it has one.
    pub(super) text: Vec<u8>,
    /// Whether a line begins with it.
    pub(super) begins: bool,
}

impl Line {
    pub(super) fn ends(&self) -> bool {
        self.text.last() == Some(&b'\n')
    }
}

/// What of a log is still to be read.
#[derive(Debug)]
pub(crate) struct Lines {
    log: LogFile,
    times: Times,
    /// What was read and not given yet, and where it begins.
    waiting: Vec<u8>,
    at: u64,
    /// The time of a line whose beginning was given.
    begun: Option<Option<i64>>,
}

impl Lines {
    /// Those of a log from `at` on.
    pub(crate) fn new(log: LogFile, times: Option<File>, at: u64) -> Self {
        Self { log, times: Times::new(times), waiting: Vec::new(), at, begun: None }
    }

    /// Whether there is something in the log, and nobody knows when any of it was printed.
    pub(crate) fn are_timeless(&mut self) -> anyhow::Result<bool> {
        self.times.refresh()?;
        Ok(self.times.is_empty() && self.log.length()? > 0)
    }

    /// The next line. One that is not complete yet is given only if `all` is wanted.
    pub(super) fn next(&mut self, all: bool) -> anyhow::Result<Option<Line>> {
        /// A longer line is given in parts.
        const LONGEST: usize = 1 << 20;
        let end = loop {
            if let Some(end) = self.waiting.iter().position(|byte| *byte == b'\n') {
                break end + 1;
            }
            if self.waiting.len() >= LONGEST {
                break self.waiting.len();
            }
            if !self.fill()? {
                if self.waiting.is_empty() || !all {
                    return Ok(None);
                }
                break self.waiting.len();
            }
        };
        let begun = self.begun.take();
        let time = begun.unwrap_or_else(|| self.times.of(self.at));
        let text: Vec<u8> = self.waiting.drain(..end).collect();
        self.at += text.len() as u64;
        let line = Line { time, text, begins: begun.is_none() };
        self.begun = (!line.ends()).then_some(time);
        Ok(Some(line))
    }

    /// Reads on; whether there was something.
    fn fill(&mut self) -> anyhow::Result<bool> {
        let from = self.at + self.waiting.len() as u64;
        if self.log.length()? < from {
            // It was emptied to make room: what is there now is new.
            (self.at, self.begun) = (0, None);
            self.waiting.clear();
        }
        let from = self.at + self.waiting.len() as u64;
        let Some((begins, piece)) = self.log.read(from)? else { return Ok(false) };
        if begins > from {
            (self.at, self.begun) = (begins, None);
            self.waiting.clear();
        }
        self.waiting.extend(piece);
        self.times.refresh()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_line_that_is_not_complete_waits() {
        // Whoever reads has a place in the file of his own.
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut lines = Lines::new(LogFile::new(file.reopen().unwrap()), None, 0);
        file.write_all(b"one\ntw").unwrap();
        let mut next = |all| lines.next(all).unwrap().map(|line| String::from_utf8(line.text).unwrap());
        assert_eq!((next(false).as_deref(), next(false)), (Some("one\n"), None));
        file.write_all(b"o\nthree").unwrap();
        assert_eq!((next(false).as_deref(), next(false), next(true).as_deref()), (Some("two\n"), None, Some("three")));
    }

    #[test]
    fn a_line_has_the_time_of_its_beginning() {
        let (mut file, mut times) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        file.write_all(b"one\ntwo\n").unwrap();
        let record = |place: u64, time: u64| [place.to_le_bytes(), time.to_le_bytes()].concat();
        times.write_all(&[record(0, 5), record(2, 6), record(4, 7)].concat()).unwrap();
        let mut lines = Lines::new(LogFile::new(file), Some(times), 0);
        assert_eq!(lines.next(true).unwrap().unwrap().time, Some(5));
        assert_eq!(lines.next(true).unwrap().unwrap().time, Some(7));
    }
}

//! Reading /proc of processes that may be hostile: every parse has a bound, every missing word is an error and no
//! panic.

use pando_kernel::{CallError, Context};
use std::fs::File;
use std::io::{self, Read};

/// No file of /proc/PID is read further than this; the mappings of a process with 65,530 areas fit.
const LONGEST: u64 = 64 << 20;

/// Most files fit.
const ROOM: usize = 8192;

/// A file of /proc/PID as text.
pub(crate) fn text(pid: i32, name: &str) -> Result<String, CallError> {
    let lossy = |bytes: Vec<u8>| {
        String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    };
    bytes(pid, name).map(lossy)
}

/// A file of /proc by its path, as text.
pub(crate) fn read(path: &str) -> Result<String, CallError> {
    bytes_of(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A file of /proc/PID.
pub(crate) fn bytes(pid: i32, name: &str) -> Result<Vec<u8>, CallError> {
    bytes_of(&format!("/proc/{pid}/{name}"))
}

fn bytes_of(path: &str) -> Result<Vec<u8>, CallError> {
    // Many of these files are made anew for each read: one read is best.
    let mut bytes = Vec::with_capacity(ROOM);
    File::open(path)
        .and_then(|file| file.take(LONGEST).read_to_end(&mut bytes))
        .context(|| format!("reading {path}"))?;
    Ok(bytes)
}

/// Where a link of /proc/PID leads.
pub(crate) fn link(pid: i32, name: &str) -> Result<String, CallError> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::read_link(&path).map(|to| to.to_string_lossy().into_owned()).context(|| format!("reading {path}"))
}

/// The root directory of a process, where that is not its mount namespace's.
pub(crate) fn root(pid: i32) -> Result<Option<String>, CallError> {
    link(pid, "root").map(|root| Some(root).filter(|root| root != "/"))
}

/// A malformed file.
pub(crate) fn malformed(what: impl Into<String>) -> CallError {
    CallError { what: what.into(), source: io::ErrorKind::InvalidData.into() }
}

/// What /proc/PID/stat has behind the name: word 0 is field 3 of proc(5), the state.
#[derive(Debug)]
pub(crate) struct Stat(String);

impl Stat {
    /// Of a process or, by `task/TID`, of a thread.
    pub(crate) fn read(pid: i32, below: &str) -> Result<Self, CallError> {
        let mut text = text(pid, &format!("{below}stat"))?;
        let behind = text.rfind(')').ok_or_else(|| malformed(format!("parsing /proc/{pid}/stat")))? + 1;
        text.drain(..behind);
        Ok(Self(text))
    }

    /// A field by its number in proc(5).
    pub(crate) fn field<T: std::str::FromStr>(&self, number: usize) -> Result<T, CallError> {
        let word = number.checked_sub(3).and_then(|place| self.0.split_ascii_whitespace().nth(place));
        word.and_then(|word| word.parse().ok())
            .ok_or_else(|| malformed(format!("parsing field {number} of a stat file")))
    }
}

/// The `Key: value` lines of /proc/PID/status and the like: looked for each time, which takes less than to put in order
/// the fifty that nobody asks for.
#[derive(Debug)]
pub(crate) struct Lines(String);

impl Lines {
    /// Of a process or, by `task/TID`, of a thread.
    pub(crate) fn read(pid: i32, name: &str) -> Result<Self, CallError> {
        text(pid, name).map(Self)
    }

    /// Of such a text.
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// A value as it stands, empty where it is missing. Of several lines with one key the first counts.
    pub(crate) fn get(&self, key: &str) -> &str {
        let found = self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        found.map_or("", str::trim)
    }

    /// The words of a value.
    pub(crate) fn words(&self, key: &str) -> impl Iterator<Item = &str> {
        self.get(key).split_ascii_whitespace()
    }

    /// A number to some base.
    pub(crate) fn number(&self, key: &str, base: u32) -> Result<u64, CallError> {
        let word = self.words(key).next().unwrap_or("");
        u64::from_str_radix(word, base).map_err(|_| malformed(format!("parsing '{key}: {word}'")))
    }
}

/// What /proc says behind the name of a file that has none any more.
pub(crate) const DELETED: &str = " (deleted)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_key_and_missing_ones_are_errors() {
        let lines = Lines::parse("pos:\t0\nflags:\t02000002\nlock:\t1: FLOCK\nlock:\t2: POSIX\n");
        assert_eq!(lines.number("flags", 8).unwrap(), 0o2_000_002);
        assert_eq!(lines.get("lock"), "1: FLOCK");
        assert!(lines.number("missing", 10).is_err());
    }
}

//! Reading /proc of processes that may be hostile: every parse has a bound, every missing word is an error and no panic.

use pando_kernel::{CallError, Context};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

/// No file of /proc/PID is read further than this; the mappings of a process with 65,530 areas fit.
const LONGEST: u64 = 64 << 20;

/// Most files fit.
const ROOM: usize = 8192;

/// A file of /proc/PID as text.
pub(crate) fn text(pid: i32, name: &str) -> Result<String, CallError> {
    bytes(pid, name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A file of /proc/PID.
pub(crate) fn bytes(pid: i32, name: &str) -> Result<Vec<u8>, CallError> {
    let path = format!("/proc/{pid}/{name}");
    // Many of these files are made anew for each read: one read is best.
    let mut bytes = Vec::with_capacity(ROOM);
    File::open(&path)
        .and_then(|file| file.take(LONGEST).read_to_end(&mut bytes))
        .context(|| format!("reading {path}"))?;
    Ok(bytes)
}

/// Where a link of /proc/PID leads.
pub(crate) fn link(pid: i32, name: &str) -> Result<String, CallError> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::read_link(&path).map(|to| to.to_string_lossy().into_owned()).context(|| format!("reading {path}"))
}

/// A malformed file.
pub(crate) fn malformed(what: impl Into<String>) -> CallError {
    CallError { what: what.into(), source: io::ErrorKind::InvalidData.into() }
}

/// The words of /proc/PID/stat behind the name, so that word 0 is field 3 of proc(5), the state.
#[derive(Debug)]
pub(crate) struct Stat(Vec<String>);

impl Stat {
    /// Of a process or, by `task/TID`, of a thread.
    pub(crate) fn read(pid: i32, below: &str) -> Result<Self, CallError> {
        let text = text(pid, &format!("{below}stat"))?;
        let (_, behind) = text.rsplit_once(')').ok_or_else(|| malformed(format!("parsing /proc/{pid}/stat")))?;
        Ok(Self(behind.split_ascii_whitespace().map(str::to_owned).collect()))
    }

    /// A field by its number in proc(5).
    pub(crate) fn field<T: std::str::FromStr>(&self, number: usize) -> Result<T, CallError> {
        let word = number.checked_sub(3).and_then(|place| self.0.get(place));
        word.and_then(|word| word.parse().ok())
            .ok_or_else(|| malformed(format!("parsing field {number} of a stat file")))
    }
}

/// The `Key: value` lines of /proc/PID/status and the like.
#[derive(Debug)]
pub(crate) struct Lines(BTreeMap<String, String>);

impl Lines {
    /// Of a process or, by `task/TID`, of a thread.
    pub(crate) fn read(pid: i32, name: &str) -> Result<Self, CallError> {
        text(pid, name).map(|text| Self::parse(&text))
    }

    /// Of such a text. Of several lines with one key the first counts.
    pub(crate) fn parse(text: &str) -> Self {
        let mut lines = BTreeMap::new();
        for line in text.lines() {
            if let Some((key, value)) = line.split_once(':') {
                lines.entry(key.trim().to_owned()).or_insert_with(|| value.trim().to_owned());
            }
        }
        Self(lines)
    }

    /// A value as it stands, empty where it is missing.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
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

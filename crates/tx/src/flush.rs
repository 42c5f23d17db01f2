//! Bringing what is new to the disk while it is read and validated, which takes a processor where this takes the disk.
//!
//! ```text
//!   the command has ended ─┬─▶ read ─▶ validate ─────────────────┬─▶ journal ─▶ fdatasync ─▶ its name (the commit point)
//!                          └─▶ syncfs of what it wrote to ───────┘
//! ```
//!
//! Nobody may be writing to the transaction any more: what is changed after the sync began would not be in it.

use crate::part::Part;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// What is on its way to the disk.
#[derive(Debug, Default)]
pub(crate) struct Flush {
    running: Vec<(PathBuf, JoinHandle<io::Result<()>>)>,
}

impl Flush {
    /// Begins with the parts that something was written to. Where no thread can be had for one it is left to the commit.
    pub(crate) fn begin(parts: &[Part]) -> Self {
        let written = parts.iter().filter(|part| part.realm.is_none() && is_written_to(part));
        let begin = |part: &Part| {
            let base = part.base.clone();
            let thread = std::thread::Builder::new().name("pando-flush".into());
            Some((part.base.clone(), thread.spawn(move || sync(&base)).ok()?))
        };
        Self { running: written.filter_map(begin).collect() }
    }

    /// Waits until what is in a part is on the disk, from the beginning if that was not begun.
    pub(crate) fn finish(&mut self, part: &Part) -> io::Result<()> {
        let found = self.running.iter().position(|(base, _)| *base == part.base);
        match found.map(|at| self.running.swap_remove(at)) {
            Some((_, thread)) => thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked"))),
            None => sync(&part.base),
        }
    }
}

/// Brings everything of a file system to the disk.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    File::open(path).and_then(|at| Ok(rustix::fs::syncfs(&at)?))
}

/// Whether there is anything in the directories that an overlay keeps its files in. Attributes of the root alone are little, and brought later.
fn is_written_to(part: &Part) -> bool {
    [part.upper(), part.index()].iter().any(|at| std::fs::read_dir(at).is_ok_and(|mut names| names.next().is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_to_is_brought_ahead_and_all_of_it_when_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let part = |name: &str| Part { live: "/".into(), base: directory.path().join(name), realm: None };
        let (full, empty) = (part("full"), part("empty"));
        for part in [&full, &empty] {
            std::fs::create_dir_all(part.upper()).unwrap();
        }
        std::fs::write(full.upper().join("new"), "").unwrap();
        let mut flush = Flush::begin(&[full.clone(), empty.clone()]);
        assert!(matches!(&flush.running[..], [(base, _)] if *base == full.base));
        flush.finish(&full).and_then(|()| flush.finish(&empty)).unwrap();
        assert!(flush.running.is_empty());
        assert!(flush.finish(&part("none")).is_err());
    }
}

//! Signals that wait for the commit.

use pando_kernel::{process, process::pidfd};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// No more than this many are kept: whoever sends them without end must not take the room of others.
const MOST: usize = 500;

/// The same for the file that they are written down in.
const MOST_BYTES: u64 = 64 << 10;

/// The signals that a transaction sent to processes outside.
#[derive(Debug, Default)]
pub struct HeldSignals(Vec<(OwnedFd, i32)>);

/// One that waits for a commit by another process: the process is told from one that gets its pid later by when it
/// started.
#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    pid: i32,
    started: u64,
    signal: i32,
}

fn file_in(directory: &Path) -> PathBuf {
    directory.join("signals")
}

impl HeldSignals {
    /// Keeps one. The process is held by descriptor: no other that gets its pid later is meant. Whether there was room
    /// for it.
    pub(super) fn keep(&mut self, process: OwnedFd, signal: i32) -> bool {
        let has_room = self.0.len() < MOST;
        if has_room {
            self.0.push((process, signal));
        }
        has_room
    }

    /// Writes one down in a transaction's directory, for whoever commits it. Whether there was room for it.
    pub(super) fn note(directory: &Path, pid: i32, signal: i32) -> io::Result<bool> {
        if std::fs::metadata(file_in(directory)).is_ok_and(|found| found.len() > MOST_BYTES) {
            return Ok(false);
        }
        let started = process::start_time(pid)?;
        let mut line = serde_json::to_string(&Noted { pid, started, signal }).map_err(io::Error::other)?;
        line.push('\n');
        // A line is written at once, so that those of several commands do not mix.
        File::options().append(true).create(true).open(file_in(directory))?.write_all(line.as_bytes())?;
        Ok(true)
    }

    /// Those that were written down. A process that has ended needs none.
    pub(crate) fn noted_in(directory: &Path) -> Self {
        let lines = File::open(file_in(directory)).map(|file| BufReader::new(file).lines()).ok();
        let noted = lines.into_iter().flatten().filter_map(|line| serde_json::from_str::<Noted>(&line.ok()?).ok());
        let held = noted.filter_map(|noted| {
            let process = pidfd::open(noted.pid).ok()?;
            // Asked for after the descriptor was had: it is the one that the descriptor is of.
            (process::start_time(noted.pid).ok()? == noted.started).then_some((process, noted.signal))
        });
        Self(held.collect())
    }

    /// The number of signals that are held.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Sends them, in the order in which they were sent. A process that has ended needs none.
    pub fn send(self) {
        for (process, signal) in self.0 {
            let _ = pidfd::send_signal(&process, signal);
        }
    }
}

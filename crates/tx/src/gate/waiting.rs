//! Who waits at a gate of the host for longer than a second, for `pando tx ls`.
//!
//! ```text
//!   who answers (fanotify), or the map of those who wait (bpf) ─▶ a thread ─▶ waiting.json beside the record
//! ```
//!
//! A thread of its own writes it: whoever has others wait must touch no file. Nobody who reads it believes it when the
//! process is gone that wrote it, nor of a process that has gone since.

use crate::state::directory::StateDirectory;
use crate::state::record::Record;
use crate::tree::attributes::Moment;
use pando_kernel::process::identity::ProcessId;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Where they are named.
const FILE: &str = "waiting.json";
const HELD: &str = "held.json";

/// Who waits for less is not named.
pub(super) const LONG: Duration = Duration::from_secs(1);

/// How often it is looked who waits.
const PAUSE: Duration = Duration::from_millis(200);

/// So many are named.
const MOST: usize = 1000;

/// The file is not longer than this.
const LONGEST: u64 = 8 << 20;

/// Clock ticks of a second, in which /proc counts.
const TICKS: u128 = 100;

/// A process that waits at a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The pid of the process that waits.
    pub pid: i32,
    /// When that process started, in clock ticks since boot.
    started: u64,
    /// The moment since which it waits.
    pub since: Moment,
    /// What it waits for: a path, or the name alone where no more is known.
    pub object: String,
}

impl Waiter {
    /// The process, which may have gone.
    pub fn process(&self) -> ProcessId {
        ProcessId { pid: self.pid, started: self.started }
    }
}

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    pid: i32,
    started: u64,
    waiting: Vec<Waiter>,
}

/// The processes that wait for a transaction for longer than a second.
pub fn waiting_for(home: &StateDirectory, record: &Record) -> Vec<Waiter> {
    [FILE, HELD].iter().flat_map(|file| noted_in(&home.of(&record.name).join(file))).collect()
}

fn noted_in(file: &Path) -> Vec<Waiter> {
    let Ok(file) = std::fs::File::open(file) else { return Vec::new() };
    let Ok(Note { pid, started, waiting }) = serde_json::from_reader(io::Read::take(file, LONGEST)) else {
        return Vec::new();
    };
    match (ProcessId { pid, started }).is_there() {
        true => waiting.into_iter().filter(|one| one.process().is_there()).collect(),
        false => Vec::new(),
    }
}

/// One who waits, as whoever has him wait knows him.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    /// The pid, as this process sees it.
    pub(super) pid: i32,
    /// Since when, by [`since_boot`].
    pub(super) since: Duration,
    pub(super) object: String,
}

impl Waits {
    /// Since how long.
    pub(super) fn is_long(since: Duration) -> bool {
        since_boot().saturating_sub(since) >= LONG
    }

    /// He as others are told of him, unless he has gone: whoever has his pid then has started later.
    fn told(self) -> Option<Waiter> {
        let ProcessId { pid, started } = ProcessId::of(self.pid).ok()?;
        let waited = since_boot().saturating_sub(self.since);
        let is_he = u128::from(started) <= self.since.as_nanos() * TICKS / 1_000_000_000 + 1;
        is_he.then(|| Waiter { pid, started, since: Moment::ago(waited), object: self.object })
    }
}

/// The time since the machine was started.
pub(super) fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// What tells of them until it is dropped, which is to be after the gate is open.
#[derive(Debug)]
pub(super) struct Telling {
    word: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.word = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Telling {
    /// Begins to tell of those whom `look` finds waiting for a transaction that is kept in `directory`. Who has not
    /// waited for long need not be among them.
    pub(super) fn begin(directory: &Path, look: impl FnMut() -> Vec<Waits> + Send + 'static) -> io::Result<Self> {
        Self::in_file(directory.join(FILE), look)
    }

    /// The same of those who wait before its commit.
    pub(super) fn of_hold(directory: &Path, look: impl FnMut() -> Vec<Waits> + Send + 'static) -> io::Result<Self> {
        Self::in_file(directory.join(HELD), look)
    }

    fn in_file(file: PathBuf, look: impl FnMut() -> Vec<Waits> + Send + 'static) -> io::Result<Self> {
        let (word, heard) = channel::<()>();
        let me = ProcessId::own()?;
        let tell = move || {
            let (mut look, mut last) = (look, Vec::new());
            while let Err(RecvTimeoutError::Timeout) = heard.recv_timeout(PAUSE) {
                let mut found: Vec<_> = look().into_iter().filter(|one| Waits::is_long(one.since)).collect();
                found.sort_by_key(|one| (one.since, one.pid));
                found.truncate(MOST);
                let now: Vec<_> = found.iter().map(|one| (one.pid, one.since)).collect();
                if now != last {
                    let waiting = found.into_iter().filter_map(Waits::told).collect();
                    // Where it cannot be written, nobody is told.
                    let _ = write(&file, &Note { pid: me.pid, started: me.started, waiting });
                    last = now;
                }
            }
            if !last.is_empty() {
                let _ = std::fs::remove_file(&file);
            }
        };
        let thread = std::thread::Builder::new().name("tell-waiting".into()).spawn(tell)?;
        Ok(Self { word: Some(word), thread: Some(thread) })
    }
}

fn write(file: &Path, note: &Note) -> io::Result<()> {
    let next = file.with_extension("next");
    std::fs::write(&next, serde_json::to_vec(note).map_err(io::Error::other)?)?;
    std::fs::rename(&next, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_waited_for_long_is_named_until_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let home = StateDirectory::new(directory.path());
        let name: crate::TxName = "one".parse().unwrap();
        std::fs::create_dir_all(home.of(&name)).unwrap();
        let read = || {
            let text = std::fs::read(home.of(&name).join(FILE)).ok()?;
            Some(serde_json::from_slice::<Note>(&text).unwrap().waiting)
        };
        let me = std::process::id().cast_signed();
        let one = |pid, ago| Waits { pid, since: since_boot() - ago, object: "/f".into() };
        // The second has only come, the third has the pid of one that waited before it started.
        let mut all = vec![one(me, Duration::ZERO), one(me, Duration::from_secs(9)), one(-5, LONG * 2)];
        all[1].since = Duration::ZERO;
        let since = all[0].since;
        let telling = Telling::begin(&home.of(&name), move || all.clone()).unwrap();
        let waiting = loop {
            match read() {
                Some(waiting) if !waiting.is_empty() => break waiting,
                _ => std::thread::yield_now(),
            }
        };
        assert!(Waits::is_long(since), "nobody is named before");
        assert_eq!(waiting.iter().map(|one| (one.pid, one.object.as_str())).collect::<Vec<_>>(), [(me, "/f")]);
        drop(telling);
        assert!(read().is_none());
    }
}

//! The disk that the state lies on: how much room is left on it, what is said when there is none, and a reserve for
//! Pando's own writes.
//!
//! ```text
//!   watch   ─▶ low, full, enough again: an event each
//!   reserve ─▶ a file of a few MiB, given up for a record that has to be written
//! ```
//!
//! The kernel says in many ways that a disk is full: an overlay whose directories cannot be made is read-only, a
//! feature that is tried out is missing. So whoever puts an error into words asks here.

use crate::state::events::Events;
use pando_guest::Places;
use pando_limit::quantity::show_size;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(2);

/// The most that is set aside for Pando's own writes; of a small disk it is a part.
const RESERVE: u64 = 4 << 20;
const RESERVE_PART: u64 = 64;

/// Less than this is no room: not even a directory with a file in it.
const NOTHING: u64 = 64 << 10;

/// The state of the one root that this process serves. What puts errors into words knows no daemon.
static STATE: OnceLock<PathBuf> = OnceLock::new();

/// How much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    size: u64,
    free: u64,
    files_free: u64,
    /// Whether the file system counts files at all.
    counts_files: bool,
}

/// How near a disk is to being full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pressure {
    Enough,
    Low,
    Full,
}

impl Room {
    fn at(path: &Path) -> io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Self {
            size: found.f_blocks * found.f_frsize,
            free: found.f_bavail * found.f_frsize,
            files_free: found.f_favail,
            counts_files: found.f_files > 0,
        })
    }

    fn pressure(self) -> Pressure {
        /// A twentieth of a small disk, and a gigabyte of a large one.
        const LOW_PART: u64 = 20;
        const LOW: u64 = 1 << 30;
        if self.free < NOTHING || self.counts_files && self.files_free < 16 {
            Pressure::Full
        } else if self.free < LOW.min(self.size / LOW_PART) {
            Pressure::Low
        } else {
            Pressure::Enough
        }
    }

    fn told(self, state: &Path) -> String {
        let what = if self.free >= NOTHING && self.pressure() == Pressure::Full {
            "no more files fit".to_owned()
        } else {
            format!("{} of {} are left", show_size(self.free), show_size(self.size))
        };
        format!("the disk that {} lies on has no room: {what}", state.display())
    }
}

/// Which state it is about, for this process.
pub(crate) fn begin(places: &Places) {
    let _ = STATE.set(places.state());
    refill(&places.state());
}

/// What is wrong with the room of a state, in a sentence, if anything is.
pub fn shortage(state: &Path) -> Option<String> {
    let room = Room::at(state).ok()?;
    match room.pressure() {
        Pressure::Enough => None,
        Pressure::Low => Some(format!(
            "the disk that {} lies on is nearly full: {} of {} are left; 'pando store gc' and 'pando rm' free some",
            state.display(),
            show_size(room.free),
            show_size(room.size)
        )),
        Pressure::Full => Some(format!("{}; guests cannot write; 'pando rm' frees some", room.told(state))),
    }
}

/// Why something failed that fails in this way where a disk is full: the words for it, if it is.
pub(crate) fn is_why(error: &io::Error) -> Option<String> {
    // By kind: an error that names its path has no number of its own any more.
    let is_disguise = matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::StaleNetworkFileHandle
            | io::ErrorKind::Unsupported
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::NotFound
    ) || error.raw_os_error() == Some(libc::EIO);
    if !is_disguise {
        return None;
    }
    let state = STATE.get()?;
    let room = Room::at(state).ok()?;
    (room.pressure() == Pressure::Full)
        .then(|| format!("no space left: {}; free some space there, or move the state with --root", room.told(state)))
}

fn reserve(state: &Path) -> PathBuf {
    state.join(".reserve")
}

/// Sets the reserve aside, where there is room enough for it and more.
fn refill(state: &Path) {
    let Ok(room) = Room::at(state) else { return };
    let size = RESERVE.min(room.size / RESERVE_PART);
    let path = reserve(state);
    let has = path.metadata().map_or(0, |found| found.blocks() * 512);
    if has >= size || room.free < size * 2 {
        return;
    }
    let set_aside = || fallocate(File::create(&path)?, FallocateFlags::empty(), 0, size).map_err(io::Error::from);
    if set_aside().is_err() {
        let _ = std::fs::remove_file(&path);
    }
}

/// Gives the reserve up for something that has to be written: whether it is worth another try.
pub(crate) fn give_up_for(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        && STATE.get().is_some_and(|state| std::fs::remove_file(reserve(state)).is_ok())
}

/// Tells when the room gets low and when there is enough again, for as long as the daemon runs.
pub(crate) async fn watch(state: PathBuf, events: Events) {
    let mut before = Pressure::Enough;
    loop {
        let now = Room::at(&state).map_or(before, Room::pressure);
        if now != before {
            let (what, detail) = match now {
                Pressure::Enough => ("disk-enough", None),
                Pressure::Low => ("disk-low", shortage(&state)),
                Pressure::Full => ("disk-full", shortage(&state)),
            };
            tracing::warn!("{}", detail.as_deref().unwrap_or("there is room on the state's disk again"));
            events.tell("", what, detail);
            before = now;
        }
        if now == Pressure::Enough {
            refill(&state);
        }
        tokio::time::sleep(EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(size: u64, free: u64, files_free: u64) -> Room {
        Room { size, free, files_free, counts_files: true }
    }

    #[test]
    fn a_small_disk_is_low_at_a_twentieth_and_a_large_one_at_a_gigabyte() {
        assert_eq!(room(100 << 20, 6 << 20, 1000).pressure(), Pressure::Enough);
        assert_eq!(room(100 << 20, 4 << 20, 1000).pressure(), Pressure::Low);
        assert_eq!(room(1 << 40, 2 << 30, 1000).pressure(), Pressure::Enough);
        assert_eq!(room(1 << 40, 1 << 29, 1000).pressure(), Pressure::Low);
        assert_eq!(room(100 << 20, 0, 1000).pressure(), Pressure::Full);
        assert_eq!(room(100 << 20, 50 << 20, 3).pressure(), Pressure::Full);
    }

    #[test]
    fn where_there_is_room_nothing_is_explained_by_its_lack() {
        assert_eq!(is_why(&io::Error::from_raw_os_error(libc::EROFS)), None);
    }
}

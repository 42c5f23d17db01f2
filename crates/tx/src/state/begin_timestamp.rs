//! The moment that parts what was changed before a transaction from what was changed after.
//!
//! File systems take their times from a clock that moves once a timer tick, so that two changes a millisecond apart can
//! bear the same time: a file that was written right before a transaction began would look as if somebody had written
//! to it since. Either the transaction begins with a new tick, which is milliseconds of waiting; or, since Linux 6.13,
//! a time that somebody has seen is followed by finer ones, and no file whose file system does so (ext4, xfs, btrfs,
//! tmpfs) gets an earlier one any more.
//!
//! Some keep whole seconds. There a transaction begins with a new second.

use crate::tree::attributes::Moment;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// How fine the times are that file systems keep, the finest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Grain {
    /// As fine as need be, where the kernel can.
    Fine,
    /// The clock's ticks.
    Tick,
    /// Whole seconds.
    Second,
}

/// Kinds of file systems whose times are fine.
const FINE: [&str; 6] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs"];

/// How often a tick may come between two steps that must fall into one.
const TRIES: usize = 3;

/// A short part of a tick, which is 1 to 10 ms long.
const PAUSE: Duration = Duration::from_micros(250);

impl Grain {
    /// That of the times of a kind of file systems.
    pub(crate) fn of_kind(kind: &str) -> Self {
        if FINE.contains(&kind) { Self::Fine } else { Self::Tick }
    }

    /// The same for one that keeps this time of something that was just changed: none is a whole second by chance.
    pub(crate) fn with(self, changed: Moment) -> Self {
        if changed.is_whole_second() { Self::Second } else { self }
    }
}

/// A moment that everything changed before is older than, and nothing that is changed from now on. `grain` is the
/// coarsest of all file systems that matter; `directory` is one that nobody else changes.
pub(crate) fn now(directory: &Path, grain: Grain) -> io::Result<Moment> {
    if grain == Grain::Second {
        return Ok(next_second());
    }
    if grain == Grain::Fine {
        let directory = File::open(directory)?;
        for _ in 0..TRIES {
            let time = seen_twice(&directory)?;
            // A coarse one is no later than the coarse clock.
            if time > Moment::now() {
                return Ok(time);
            }
        }
    }
    // By the exact clock: a fine time is one of its times, and on a busy machine a tick may come late, with a time that
    // has passed long since.
    let before = Moment::exactly_now();
    while Moment::now() <= before {
        std::thread::sleep(PAUSE);
    }
    Ok(Moment::now())
}

/// The beginning of the next second, once that has come.
fn next_second() -> Moment {
    let next = Moment { seconds: Moment::exactly_now().seconds + 1, nanoseconds: 0 };
    while let Some(rest) = Moment::now().until(next) {
        std::thread::sleep(rest.max(PAUSE));
    }
    next
}

/// The time of a change right after one whose time was looked at: a fine one, unless a tick came between them.
fn seen_twice(directory: &File) -> io::Result<Moment> {
    let permissions = directory.metadata()?.permissions();
    directory.set_permissions(permissions.clone())?;
    rustix::fs::fstat(directory)?;
    directory.set_permissions(permissions)?;
    Ok(Moment::changed(&rustix::fs::fstat(directory)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_right_before_is_older_and_right_after_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let changed = || Moment::changed(&rustix::fs::stat(&path).unwrap());
        for _ in 0..5 {
            std::fs::write(&path, "before").unwrap();
            let before = changed();
            let begun = now(directory.path(), Grain::Tick).unwrap();
            std::fs::write(&path, "after").unwrap();
            assert!(before < begun && changed() >= begun, "{before:?} {begun:?} {:?}", changed());
        }
    }

    #[test]
    fn where_whole_seconds_are_kept_a_second_begins() {
        let directory = tempfile::tempdir().unwrap();
        let kept = || Moment { nanoseconds: 0, ..Moment::now() };
        let before = kept();
        let begun = now(directory.path(), Grain::Second).unwrap();
        assert!(!before.is_since(begun) && kept().is_since(begun), "{before:?} {begun:?}");
        assert_eq!(Grain::Fine.with(begun), Grain::Second);
        assert_eq!(Grain::Tick.with(Moment { nanoseconds: 1, ..begun }), Grain::Tick);
    }
}

//! What is known of a transaction on disk, from before its first directory is made until its last is gone.

use crate::change::split_attribution::FileBaseline;
use crate::state::clock::Clock;
use crate::state::name::TxName;
use crate::state::overlay_part::OverlayPart;
use crate::state::target::Target;
use crate::tree::attributes::Moment;
use crate::validate::known_names::KnownNames;
use pando_kernel::process::identity::ProcessId;
use pando_kernel::{CallError, Context};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The record of a transaction, kept in its directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name of the transaction.
    pub name: TxName,
    /// When it began, by the file systems' clock.
    pub begun: Moment,
    /// What that clock was like right before.
    #[serde(default)]
    pub(crate) clock: Option<Clock>,
    /// When its first run began, where this is a later one.
    #[serde(default)]
    pub first_begun: Option<Moment>,
    /// Its parts, one a mount.
    pub parts: Vec<OverlayPart>,
    /// What each part's root was like when it began, by the [digest](crate::tree::attributes::Attributes::digest) of
    /// its attributes.
    #[serde(default)]
    pub(crate) roots: Vec<u64>,
    /// The target that it is about, if that is not the host.
    #[serde(default, rename = "realm")]
    pub target: Option<Target>,
    /// The group of its processes.
    pub group: PathBuf,
    /// The pid of the process that it lives with.
    pub holder: i32,
    /// When that process started, in clock ticks since boot: a later one may have its pid. 0 where an earlier version
    /// began the transaction.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub holder_started: u64,
    /// Paths that its view was made of, looked up in it by Pando itself.
    pub places: Vec<PathBuf>,
    /// The descriptor, in that process, by which the kernel tells what is opened in it.
    pub listener: Option<i32>,
    /// Whether its changes are [on the disk as soon as they are made](crate::transaction::synchronous_writes).
    #[serde(default, rename = "written_through")]
    pub(crate) synchronous_writes: bool,
    /// Files that others are known to change too, as they were before it began. Whoever takes it over knows of none.
    #[serde(skip)]
    pub(crate) baselines: Vec<FileBaseline>,
    /// The names in directories that others are known to change. Whoever takes it over knows of none.
    #[serde(skip)]
    pub(crate) known_names: Vec<KnownNames>,
    /// Paths that what it reads there and below is not validated.
    #[serde(default)]
    pub ignored: Vec<PathBuf>,
    /// The user whose it is, where that is not root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// What others changed so that it cannot be committed any more.
    pub lost: Option<String>,
    /// What runs in it; empty for one that is entered.
    pub command: Vec<String>,
}

fn is_unknown(started: &u64) -> bool {
    *started == 0
}

impl Record {
    /// The process that it lives with.
    pub fn holder(&self) -> ProcessId {
        ProcessId { pid: self.holder, started: self.holder_started }
    }

    /// From now on it lives with this process.
    pub(crate) fn held_by(&mut self, holder: ProcessId) {
        (self.holder, self.holder_started) = (holder.pid, holder.started);
    }

    /// Since when it has been tried.
    pub(crate) fn age(&self) -> Moment {
        self.first_begun.unwrap_or(self.begun)
    }

    /// Whether the times of files tell what was changed since it began.
    pub(crate) fn has_sound_times(&self) -> bool {
        !self.clock.is_some_and(Clock::was_set_back)
    }

    /// The same with more paths that Pando itself looked up.
    pub(crate) fn with_places<'a>(mut self, more: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        for path in more.into_iter() {
            if !self.places.contains(path) {
                self.places.push(path.clone());
            }
        }
        self
    }

    fn path(directory: &Path) -> PathBuf {
        directory.join("record.json")
    }

    /// The lock that a transaction's process holds as long as the transaction lives.
    pub(crate) fn lock(directory: &Path) -> PathBuf {
        directory.join("lock")
    }

    /// Writes it into the transaction's directory. It need not survive a loss of power: then its processes do not
    /// either.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), CallError> {
        let (path, next) = (Self::path(directory), directory.join("record.next"));
        let text = serde_json::to_vec(self).map_err(io::Error::other);
        text.and_then(|text| std::fs::write(&next, text))
            .and_then(|()| put_in_place(&next, &path))
            .context(|| format!("writing {}", path.display()))
    }

    /// Reads it from a transaction's directory.
    pub(crate) fn read(directory: &Path) -> Result<Self, CallError> {
        let path = Self::path(directory);
        std::fs::read(&path)
            .and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other))
            .context(|| format!("reading {}", path.display()))
    }
}

/// Gives what is written its name. Where there was one before, the two change places: to take the place of a file has
/// ext4 bring the new one's content on its way to the disk first (`auto_da_alloc`), which takes ten times as long.
fn put_in_place(next: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, next, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // There was none, or the file system cannot.
        Err(Errno::NOENT | Errno::INVAL) => std::fs::rename(next, path),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `tx ls --json` prints, and what an earlier version has written.
    #[test]
    fn the_names_in_a_record_stay_what_they_were() {
        let realm = r#"{"root":{"Process":{"pid":7,"started":9}},"first_id":131072,"began_with":65536,"others":"/g/guest","groups":"/g"}"#;
        let text = format!(
            r#"{{"name":"run-1","begun":{{"seconds":7,"nanoseconds":0}},"clock":null,"first_begun":null,
                "parts":[{{"live":"/","base":"/b","realm":{realm},"way":[],"memory":"/m"}}],"roots":[5],"realm":{realm},
                "group":"/g/tx-run-1","holder":7,"places":["/a"],"listener":null,"written_through":true,"ignored":["/i"],
                "lost":null,"command":["sh"]}}"#
        );
        let written: serde_json::Value = serde_json::from_str(&text).unwrap();
        let record: Record = serde_json::from_str(&text).unwrap();
        assert!(record.synchronous_writes && record.target.is_some() && record.parts[0].target.is_some());
        assert_eq!(serde_json::to_value(&record).unwrap(), written);
    }
}

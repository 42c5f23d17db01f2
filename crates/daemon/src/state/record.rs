//! What is known of guests, on disk.
//!
//! A lasting guest is a directory, which appears and goes by one rename: `guest.toml` and `spec.toml` are replaced as a
//! whole. A running guest has a record among the run-time state, written before its first process is made and removed
//! when its last one has gone.

use pando_api::Spec;
use pando_guest::{GuestName, Places};
use pando_kernel::{CallError, Context};
use pando_limit::disk::Room;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What Pando itself knows of a lasting guest (`guest.toml`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuestRecord {
    /// What it was made from, as the user gave it.
    pub(crate) source: String,
    /// Seconds since the epoch.
    pub(crate) created: i64,
    /// The read-only trees it stands on, by directory name, uppermost first. Absolute ones are the host's own.
    pub(crate) layers: Vec<String>,
    /// How its last run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// How many of its processes the kernel killed for want of memory then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) oom_kills: Option<u64>,
    /// Whether its restart policy is to have it run: it was started, and nobody has stopped it since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) up: bool,
    /// How often its policy has started it since somebody did.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) restarts: u32,
    /// The image that it was frozen into when it was stopped, unless it has been started since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) frozen_into: Option<String>,
    /// When the image that it came out of was frozen, in seconds since the epoch: another may have its name by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image_created: Option<i64>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's.
fn is_none(count: &u32) -> bool {
    *count == 0
}

/// What is needed to find a running guest again (`run/guests/NAME.json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    /// The slot that the guest runs in.
    pub(crate) slot: u32,
    /// The boot it runs in: records of another one are of no guest.
    pub(crate) boot: String,
    /// Seconds since the epoch.
    pub(crate) started: i64,
    /// Whether it runs for an errand of Pando's, and not its own command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) errand: bool,
    /// Whether somebody has paused it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) paused: bool,
    /// Whether its shim keeps its log within the bound: those of earlier Pandos did not.
    #[serde(default)]
    pub(crate) log_is_kept: bool,
    /// For a guest that goes away with its command: all there is to know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ephemeral: Option<EphemeralRecord>,
}

/// A guest whose directory tells nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EphemeralRecord {
    /// As a lasting one has it.
    pub(crate) record: GuestRecord,
    /// The spec that its user gave.
    pub(crate) spec: Spec,
    /// The name of its directory.
    pub(crate) home: String,
}

/// The file of a guest's record, its spec and its log.
pub(crate) const RECORD: &str = "guest.toml";
/// The file with the guest's spec, as its user gave it.
pub(crate) const SPEC: &str = "spec.toml";
/// The file with what the guest's command prints.
pub(crate) const LOG: &str = "log";
/// The disk that its own files lie on, if they have one to themselves.
pub(crate) const DISK: &str = "disk.img";

/// Where the own files of the guest in a directory lie.
pub(crate) fn room(guest: &Path) -> Room {
    Room::of(guest.join(FILES), guest.join(DISK))
}
/// The directory of the guest's own files.
pub(crate) const FILES: &str = "files";

/// Replaces a file as a whole: after a crash it is the old one or the new one. On a full disk it takes what is kept in
/// reserve for that.
pub(crate) fn replace(path: &Path, content: &[u8], durable: bool) -> Result<(), CallError> {
    match replace_once(path, content, durable) {
        Err(error) if crate::state::state_disk::give_up_for(&error.source) => replace_once(path, content, durable),
        done => done,
    }
}

fn replace_once(path: &Path, content: &[u8], durable: bool) -> Result<(), CallError> {
    let write = || -> io::Result<()> {
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(directory)?;
        file.write_all(content)?;
        if durable {
            file.as_file().sync_all()?;
        }
        file.persist(path)?;
        if durable {
            File::open(directory)?.sync_all()?;
        }
        Ok(())
    };
    write().context(|| format!("writing {}", path.display()))
}

/// Reads a TOML file into a value.
pub(crate) fn read_toml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, CallError> {
    let read = || -> io::Result<T> {
        let text = std::fs::read_to_string(path)?;
        toml::from_str(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    };
    read().context(|| format!("reading {}", path.display()))
}

/// Where the last one of a file that could be read is kept.
pub(crate) fn good(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.good"))
}

/// Keeps what a guest's file says now, as the last that could be read. Nothing relies on it unless the file itself is
/// damaged, so it is not synced.
pub(crate) fn keep_good(path: &Path) {
    let good = good(path);
    let Ok(content) = std::fs::read(path) else { return };
    if std::fs::read(&good).is_ok_and(|kept| kept == content) {
        return;
    }
    if let Err(error) = replace(&good, &content, false) {
        tracing::warn!(%error, "a copy for repairs could not be kept");
        // An earlier one may grant what has been taken away since.
        let _ = std::fs::remove_file(&good);
    }
}

/// Writes a guest's record or spec into its directory, and the copy that stands in for it should it be damaged.
pub(crate) fn write_kept<T: Serialize>(path: &Path, value: &T) -> Result<(), CallError> {
    write_toml(path, value)?;
    keep_good(path);
    Ok(())
}

/// Writes a TOML file, on the disk when this returns.
pub(crate) fn write_toml<T: Serialize>(path: &Path, value: &T) -> Result<(), CallError> {
    let text =
        toml::to_string_pretty(value).map_err(io::Error::other).context(|| format!("writing {}", path.display()))?;
    replace(path, text.as_bytes(), true)
}

/// Notes that a guest is about to run. What lies there does not survive a boot, so nothing is synced; and until the
/// note is whole there is no guest, so it need not appear at once.
pub(crate) fn write_run(places: &Places, name: &GuestName, record: &RunRecord) -> Result<(), CallError> {
    let path = places.running().join(format!("{name}.json"));
    let write = || std::fs::write(&path, serde_json::to_vec(record)?);
    write().context(|| format!("writing {}", path.display()))
}

/// Changes what is noted of a guest that runs. Whoever reads the note finds the old one or the new one.
pub(crate) fn change_run(
    places: &Places,
    name: &GuestName,
    change: impl FnOnce(&mut RunRecord),
) -> Result<(), CallError> {
    let path = places.running().join(format!("{name}.json"));
    let changed = || -> io::Result<Vec<u8>> {
        let mut run = serde_json::from_slice(&std::fs::read(&path)?)?;
        change(&mut run);
        Ok(serde_json::to_vec(&run)?)
    };
    let text = changed().context(|| format!("changing {}", path.display()))?;
    replace(&path, &text, false)
}

/// Forgets that a guest runs.
pub(crate) fn remove_run(places: &Places, name: &GuestName) {
    let _ = std::fs::remove_file(places.running().join(format!("{name}.json")));
}

/// The guests that were noted to run, in this boot or another. A damaged note is removed: it was never relied on to be
/// whole. One that cannot be read now is not damaged: whoever asks has to come back, since a guest that nobody knows of
/// is a guest lost.
pub(crate) fn all_runs(places: &Places) -> Result<Vec<(GuestName, RunRecord)>, CallError> {
    let path = places.running();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&path).context(|| format!("reading {}", path.display()))? {
        let entry = entry.context(|| format!("reading {}", path.display()))?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let name = file.strip_suffix(".json").and_then(|name| name.parse().ok());
        let text = std::fs::read(entry.path()).context(|| format!("reading {}", entry.path().display()))?;
        match (name, serde_json::from_slice(&text)) {
            (Some(name), Ok(record)) => found.push((name, record)),
            _ => {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
    Ok(found)
}

/// This boot's identity.
pub(crate) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        replace(&path, b"one", true).unwrap();
        replace(&path, b"two", false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn damaged_notes_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::new(directory.path());
        std::fs::create_dir_all(places.running()).unwrap();
        std::fs::write(places.running().join("web.json"), "{").unwrap();
        assert!(all_runs(&places).unwrap().is_empty());
        assert!(!places.running().join("web.json").exists());
    }
}

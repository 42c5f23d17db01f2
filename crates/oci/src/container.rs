//! Containers as they are kept: a directory each under `--root`, locked while a command changes it.
//!
//! What is kept says what root does when a container is deleted, and it has the configuration in it, passwords too. So
//! nobody else may have put anything there, and nobody else reads it, whatever mask the command was called with.

use crate::groups::freezer;
use crate::plan::cgroup_mount::GroupTree;
use anyhow::{Context, Result, bail};
use oci_spec::runtime::Spec;
use pando_kernel::file::lock::FileLock;
use pando_kernel::file::trusted_directory::{Distrust, TrustedDirectory};
use pando_kernel::{file::tree_removal, process, socket::packet};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The number of the record's format.
const FORMAT: u32 = 3;

/// The oldest format that is read. 1 lacks what is said of a root that is mounted over; 1 and 2 lack whether the
/// container is still being made.
const OLDEST: u32 = 1;

/// The version of the runtime specification that states are told by.
pub(crate) const SPECIFICATION: &str = "1.3.0";

/// What is kept of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// The number of this format.
    pub(crate) format: u32,
    /// The container's name.
    pub(crate) id: String,
    /// The bundle's directory.
    pub(crate) bundle: PathBuf,
    /// The root's directory.
    pub(crate) rootfs: PathBuf,
    /// When it was created.
    pub(crate) created: String,
    /// The pid of its first process; 0 while it is being created.
    pub(crate) pid: i32,
    /// When that process began, in clock ticks after the machine: another of its number began at another time.
    pub(crate) start_time: u64,
    /// The container's groups.
    pub(crate) groups: GroupTree,
    /// Where the container's mounts are the host's: how many there were at the root's directory before its own.
    #[serde(default)]
    pub(crate) mounted_over: Option<usize>,
    /// Whether the container is still being made: its process is there, and may not have the container's root yet.
    #[serde(default)]
    pub(crate) in_the_making: bool,
    /// Whether its processes keep the session keyring of whoever begins them.
    #[serde(default)]
    pub(crate) keeps_keyring: bool,
    /// How many steps its process takes before those that come with the start.
    #[serde(default)]
    pub(crate) steps: u32,
    /// The configuration, as it was written.
    pub(crate) config: Value,
}

/// How a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Creating,
    Created,
    Running,
    Paused,
    Stopped,
}

impl Status {
    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }
}

impl Record {
    /// A container that is about to be made.
    pub(crate) fn new(id: &str, bundle: &crate::bundle::Bundle, groups: GroupTree) -> Self {
        Self {
            format: FORMAT,
            id: id.to_owned(),
            bundle: bundle.path.clone(),
            rootfs: bundle.root.clone(),
            created: jiff::Timestamp::now().to_string(),
            pid: 0,
            start_time: 0,
            groups,
            mounted_over: None,
            in_the_making: true,
            keeps_keyring: false,
            steps: 0,
            config: bundle.text.clone(),
        }
    }

    /// Its configuration.
    pub(crate) fn spec(&self) -> Result<Spec> {
        serde_json::from_value(self.config.clone()).context("reading the configuration that a container was made by")
    }

    /// Takes away what the container has mounted at its root's directory, if that is the host's.
    pub(crate) fn uncover(&self) -> Result<()> {
        let Some(before) = self.mounted_over else { return Ok(()) };
        for _ in before..mounts_at(&self.rootfs)? {
            rustix::mount::unmount(
                &self.rootfs,
                rustix::mount::UnmountFlags::DETACH | rustix::mount::UnmountFlags::NOFOLLOW,
            )
            .with_context(|| format!("unmounting {}", self.rootfs.display()))?;
        }
        Ok(())
    }

    /// The name of its processes' session keyring, if they have one of their own.
    pub(crate) fn keyring(&self) -> Option<String> {
        (!self.keeps_keyring).then(|| format!("_ses.{}", self.id))
    }

    /// Whether its first process is there and has not ended.
    pub(crate) fn lives(&self) -> bool {
        // Both out of one look: in between the number could have become another's.
        let lives = |found: process::Process| found.start == self.start_time && !matches!(found.state, 'Z' | 'X');
        self.pid > 0 && process::describe(self.pid).is_ok_and(lives)
    }

    /// The state, as hooks and `state` tell it.
    pub(crate) fn state(&self, status: Status) -> Value {
        let pid = if status == Status::Stopped { 0 } else { self.pid };
        let annotations = self.config.get("annotations").cloned().filter(|annotations| !annotations.is_null());
        let mut state = json!({
            "ociVersion": SPECIFICATION,
            "id": self.id,
            "status": status.word(),
            "pid": pid,
            "bundle": self.bundle,
        });
        if let (Some(state), Some(annotations)) = (state.as_object_mut(), annotations) {
            state.insert("annotations".into(), annotations);
        }
        state
    }
}

/// A container's directory: locked, so that nobody else changes it meanwhile, or merely looked at.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    _lock: Option<FileLock>,
}

impl Home {
    /// Makes the directory of a new container.
    pub(crate) fn make(root: &Path, id: &str) -> Result<Self> {
        let path = place(root, id)?;
        TrustedDirectory::make(root, Mode::from_raw_mode(0o711)).with_context(|| unusable(root))?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                bail!("container with id exists: {id}");
            }
            made => made.with_context(|| format!("making {}", path.display()))?,
        }
        Self::lock(path)
    }

    /// The directory of a container that is there.
    pub(crate) fn open(root: &Path, id: &str) -> Result<Option<Self>> {
        let Some(path) = existing(root, id)? else { return Ok(None) };
        match Self::lock(path) {
            Ok(home) => Ok(Some(home)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn lock(path: PathBuf) -> Result<Self> {
        let directory = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let ours = directory.metadata()?;
        directory.lock().with_context(|| format!("locking {}", path.display()))?;
        // It may have been removed, and made anew, while this command waited.
        let now = fs::metadata(&path).with_context(|| format!("opening {}", path.display()))?;
        if (ours.dev(), ours.ino()) != (now.dev(), now.ino()) {
            return Self::lock(path);
        }
        Ok(Self { path, _lock: Some(FileLock::from(std::os::fd::OwnedFd::from(directory))) })
    }

    /// Where the container's process waits to be started.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("start")
    }

    /// The record; `None` where its creation was cut short before there was one.
    pub(crate) fn record(&self) -> Result<Option<Record>> {
        read(&self.path)
    }

    /// Writes the record: the old one or the new one is there, whatever happens.
    pub(crate) fn write(&self, record: &Record) -> Result<()> {
        let (path, new) = (self.path.join("state.json"), self.path.join(".state.json"));
        let write = || {
            // One that a killed command has left. No link is followed to it.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().with_context(|| format!("writing {}", path.display()))
    }

    /// How the container is.
    pub(crate) fn status(&self, record: &Record) -> Status {
        if record.pid == 0 {
            return Status::Creating;
        }
        if !record.lives() {
            return Status::Stopped;
        }
        if record.in_the_making {
            return Status::Creating;
        }
        // As long as the process has not been started somebody listens there: it is closed by the execution itself.
        if packet::connect(&self.socket()).is_ok() {
            return Status::Created;
        }
        if freezer::is_frozen(&record.groups) { Status::Paused } else { Status::Running }
    }

    /// Forgets the container.
    pub(crate) fn remove(self) -> Result<()> {
        tree_removal::remove_tree(&self.path).with_context(|| format!("removing {}", self.path.display()))
    }
}

/// How many mounts there are at a directory, one over the other.
pub(crate) fn mounts_at(directory: &Path) -> Result<usize> {
    Ok(pando_kernel::mount::mounts()?.iter().filter(|mount| mount.at == directory).count())
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn read(path: &Path) -> Result<Option<Record>> {
    const OTHERS_WRITE: u32 = 0o022;
    let file = path.join("state.json");
    let reading = || format!("reading {}", file.display());
    let opened =
        TrustedDirectory::open(path).and_then(|directory| directory.file("state.json", OFlags::RDONLY, Mode::empty()));
    let mut opened = match opened {
        Err(Distrust::Call { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(reading)?,
    };
    if opened.metadata().with_context(reading)?.mode() & OTHERS_WRITE != 0 {
        bail!(
            "{} can be written to by others, who could have root run programs by it: end the container's processes and remove {}",
            file.display(),
            path.display()
        );
    }
    let mut bytes = Vec::new();
    opened.read_to_end(&mut bytes).with_context(reading)?;
    let mut record: Record = serde_json::from_slice(&bytes).with_context(reading)?;
    if !(OLDEST..=FORMAT).contains(&record.format) {
        bail!("{} has format {}, and this runtime reads {FORMAT}", file.display(), record.format);
    }
    if record.format < FORMAT {
        record.groups.adopt();
    }
    Ok(Some(record))
}

fn place(root: &Path, id: &str) -> Result<PathBuf> {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || "_+-.".contains(letter);
    if id.is_empty() || !id.chars().all(letter) || id == "." || id == ".." || id.len() > 1024 {
        bail!("invalid container ID format: '{}'; use letters, digits, '_', '+', '-' and '.'", id.escape_debug());
    }
    Ok(root.join(id))
}

fn unusable(root: &Path) -> String {
    format!("cannot use the state below {}", root.display())
}

/// Whether a directory is there; an error where others could have put there what is in it, or in its place.
fn is_trusted(path: &Path) -> Result<bool> {
    // Nothing is made below it: what has no names is the directory itself, which nobody else may write to at all.
    match TrustedDirectory::open(path).and_then(|directory| directory.below(Path::new(""), Mode::empty())) {
        Err(Distrust::Call { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
        opened => opened.map(|_| true).with_context(|| unusable(path)),
    }
}

/// The directory of a container, if there is one.
fn existing(root: &Path, id: &str) -> Result<Option<PathBuf>> {
    let path = place(root, id)?;
    Ok((is_trusted(root)? && is_trusted(&path)?).then_some(path))
}

/// A container that has to be there.
pub(crate) fn open(root: &Path, id: &str) -> Result<(Home, Record)> {
    let home = Home::open(root, id)?.with_context(|| format!("container does not exist: {id}"))?;
    let record =
        home.record()?.with_context(|| format!("container does not exist: {id} (its creation was cut short)"))?;
    Ok((home, record))
}

/// The same, without waiting for whoever changes it: a hook may ask.
pub(crate) fn look(root: &Path, id: &str) -> Result<(Home, Record)> {
    let path = existing(root, id)?.with_context(|| format!("container does not exist: {id}"))?;
    let home = Home { path, _lock: None };
    let record = home.record()?.with_context(|| format!("container does not exist: {id}"))?;
    Ok((home, record))
}

/// The names of all containers.
pub(crate) fn names(root: &Path) -> Result<Vec<String>> {
    if !is_trusted(root)? {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(root).with_context(|| format!("reading {}", root.display()))?;
    let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_below_the_root() {
        for wrong in ["", ".", "..", "a/b", "../a", "a b", "ä", "a\0"] {
            assert!(place(Path::new("/r"), wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(place(Path::new("/r"), "a.b_c-d+e").unwrap(), Path::new("/r/a.b_c-d+e"));
    }

    #[test]
    fn a_name_is_taken_once() {
        let root = tempfile::tempdir().unwrap();
        let home = Home::make(root.path(), "a").unwrap();
        assert!(Home::make(root.path(), "a").unwrap_err().to_string().contains("exists"));
        assert!(home.record().unwrap().is_none());
        home.remove().unwrap();
        assert!(Home::open(root.path(), "a").unwrap().is_none());
    }

    #[test]
    fn another_format_is_refused_by_its_number() {
        let root = tempfile::tempdir().unwrap();
        let text = r#"{"format":9,"id":"a","bundle":"/","rootfs":"/","created":"","pid":0,"startTime":0,"groups":{"places":[]},"config":null}"#;
        fs::write(root.path().join("state.json"), text).unwrap();
        assert!(read(root.path()).unwrap_err().to_string().contains("format 9"));
    }
}

//! Containers as they are kept: a directory each under `--root`, locked while a command changes it.

use crate::groups::freezer;
use crate::plan::cgroup_mount::GroupTree;
use anyhow::{Context, Result, bail};
use oci_spec::runtime::Spec;
use pando_kernel::file::lock::FileLock;
use pando_kernel::{file::tree_removal, process, socket::packet};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The number of the record's format.
const FORMAT: u32 = 1;

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
            config: bundle.text.clone(),
        }
    }

    /// Its configuration.
    pub(crate) fn spec(&self) -> Result<Spec> {
        serde_json::from_value(self.config.clone()).context("reading the configuration that a container was made by")
    }

    /// Whether its first process is there and has not ended.
    pub(crate) fn lives(&self) -> bool {
        let described = process::describe(self.pid);
        self.pid > 0
            && process::start_time(self.pid).is_ok_and(|began| began == self.start_time)
            && described.is_ok_and(|process| !matches!(process.state, 'Z' | 'X'))
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
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(root)
            .with_context(|| format!("making {}", root.display()))?;
        match DirBuilder::new().mode(0o711).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                bail!("container with id exists: {id}");
            }
            made => made.with_context(|| format!("making {}", path.display()))?,
        }
        Self::lock(path)
    }

    /// The directory of a container that is there.
    pub(crate) fn open(root: &Path, id: &str) -> Result<Option<Self>> {
        let path = place(root, id)?;
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
            let mut file = File::create(&new)?;
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

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn read(path: &Path) -> Result<Option<Record>> {
    let file = path.join("state.json");
    let bytes = match fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| format!("reading {}", file.display()))?,
    };
    let record: Record = serde_json::from_slice(&bytes).with_context(|| format!("reading {}", file.display()))?;
    if record.format != FORMAT {
        bail!("{} has format {}, and this runtime reads {FORMAT}", file.display(), record.format);
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

/// A container that has to be there.
pub(crate) fn open(root: &Path, id: &str) -> Result<(Home, Record)> {
    let home = Home::open(root, id)?.with_context(|| format!("container does not exist: {id}"))?;
    let record =
        home.record()?.with_context(|| format!("container does not exist: {id} (its creation was cut short)"))?;
    Ok((home, record))
}

/// The same, without waiting for whoever changes it: a hook may ask.
pub(crate) fn look(root: &Path, id: &str) -> Result<(Home, Record)> {
    let home = Home { path: place(root, id)?, _lock: None };
    let record = home.record()?.with_context(|| format!("container does not exist: {id}"))?;
    Ok((home, record))
}

/// The names of all containers.
pub(crate) fn names(root: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("reading {}", root.display()))?,
    };
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

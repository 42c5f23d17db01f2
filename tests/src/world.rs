//! What is there: the files of a state root, its groups, mounts and processes.

use crate::process::Process;
use crate::sandbox::Sandbox;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many daemons may sweep up, one after another: one that is ended at once may not have come to it.
const SWEEPS: u32 = 10;

/// Everything that a command could have changed.
///
/// It is taken with the daemon ended, since a daemon that runs makes things ahead for guests to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct World {
    files: Vec<String>,
    groups: Vec<PathBuf>,
    mounts: Vec<String>,
    processes: Vec<i32>,
}

impl World {
    /// Looks at everything, after ending the daemon.
    pub(crate) fn of(sandbox: &Sandbox) -> Self {
        if !sandbox.places().state().exists() {
            // The first command of all makes the directories that everything lies in.
            sandbox.pando(["ls"]).ok();
        }
        sandbox.end_daemon();
        let mut files = Vec::new();
        let places = sandbox.places();
        for top in [
            places.guests(),
            places.layers(),
            places.images(),
            places.running(),
            places.shims(),
            sandbox.root().join("scratch"),
        ] {
            list(&top, &mut files);
        }
        files.sort();
        let mut processes: Vec<i32> = sandbox.processes().iter().map(|process| process.pid).collect();
        processes.sort_unstable();
        Self { files, groups: groups(sandbox), mounts: mounts(sandbox), processes }
    }

    /// Wants nothing to have changed since.
    #[track_caller]
    pub(crate) fn is_unchanged(&self, sandbox: &Sandbox, after: &str) {
        let now = Self::of(sandbox);
        let (lost, gained) = (missing(&self.lines(), &now.lines()), missing(&now.lines(), &self.lines()));
        assert!(lost.is_empty() && gained.is_empty(), "{after}: lost {lost:#?}, gained {gained:#?}");
    }

    /// Wants everything to be as it was, once a new daemon has had the time to sweep up.
    #[track_caller]
    pub(crate) fn comes_back(&self, sandbox: &Sandbox, after: &str) {
        for _ in 0..SWEEPS {
            if Self::of(sandbox) == *self {
                return;
            }
            sandbox.pando(["ls"]).ok();
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        self.is_unchanged(sandbox, after);
    }

    fn lines(&self) -> Vec<String> {
        let groups = self.groups.iter().map(|group| format!("group {}", group.display()));
        let mounts = self.mounts.iter().map(|mount| format!("mount {mount}"));
        let processes = self.processes.iter().map(|pid| format!("process {pid}"));
        self.files.iter().cloned().chain(groups).chain(mounts).chain(processes).collect()
    }
}

fn missing(from: &[String], other: &[String]) -> Vec<String> {
    from.iter().filter(|line| !other.contains(line)).cloned().collect()
}

/// Every name below a directory with what is known of it.
fn list(path: &Path, into: &mut Vec<String>) {
    let Ok(metadata) = path.symlink_metadata() else { return };
    // What a guest has used a daemon writes down every few minutes.
    if path.file_name().is_some_and(|name| name == "usage") {
        return;
    }
    let more = if metadata.is_file() {
        format!("{} bytes, of {}.{:09}", metadata.len(), metadata.mtime(), metadata.mtime_nsec())
    } else {
        String::new()
    };
    into.push(format!("file {} {:o} {}:{} {more}", path.display(), metadata.mode(), metadata.uid(), metadata.gid()));
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            list(&entry.path(), into);
        }
    }
}

/// What belongs to a sandbox and outlives its files.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    pub(crate) groups: Vec<PathBuf>,
    pub(crate) mounts: Vec<String>,
    pub(crate) processes: Vec<Process>,
}

impl Leftovers {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.mounts.is_empty() && self.processes.is_empty()
    }
}

/// What is there of a sandbox.
pub(crate) fn leftovers(sandbox: &Sandbox) -> Leftovers {
    Leftovers { groups: groups(sandbox), mounts: mounts(sandbox), processes: sandbox.processes() }
}

/// Its groups in every hierarchy, parents first.
fn groups(sandbox: &Sandbox) -> Vec<PathBuf> {
    let name = sandbox.places().field();
    let mut found = Vec::new();
    for line in mount_lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let kind = fields.iter().skip_while(|field| **field != "-").nth(1);
        if matches!(kind, Some(&"cgroup" | &"cgroup2")) {
            directories(&Path::new(fields[4]).join(&name), &mut found);
        }
    }
    found.sort();
    found.dedup();
    found
}

fn directories(path: &Path, into: &mut Vec<PathBuf>) {
    if !path.is_dir() {
        return;
    }
    into.push(path.to_owned());
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories(&entry.path(), into);
        }
    }
}

/// The mount points below its root.
fn mounts(sandbox: &Sandbox) -> Vec<String> {
    let root = sandbox.root().to_string_lossy().into_owned();
    let at = |line: String| line.split(' ').nth(4).map(str::to_owned);
    mount_lines().into_iter().filter(|line| line.contains(&root)).filter_map(at).collect()
}

fn mount_lines() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

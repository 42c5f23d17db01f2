//! A Pando of a test's own: a state root below the temporary directory, with a daemon that nobody else uses.

use crate::line::Line;
use crate::patience::eventually;
use crate::process::{self, Process};
use pando_guest::Places;
use pando_kernel::file::tree_removal::TemporaryDirectory;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A state root, and a small tree that guests can run on.
#[derive(Debug)]
pub(crate) struct Sandbox {
    directory: TemporaryDirectory,
    busybox: String,
    command: PathBuf,
}

impl Sandbox {
    pub(crate) fn new(busybox: &Path) -> io::Result<Self> {
        // For root alone, as mktemp -d makes it.
        let mode = PermissionsExt::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("pando-test-").permissions(mode).tempdir()?;
        let busybox = busybox.to_string_lossy().into_owned();
        Ok(Self { directory: TemporaryDirectory::of(directory.keep()), busybox, command: command()? })
    }

    /// Another state root for the same program; it goes as the first one does, when it is torn down.
    pub(crate) fn beside(&self, directory: TemporaryDirectory) -> Self {
        Self { directory, busybox: self.busybox.clone(), command: self.command.clone() }
    }

    /// The directory below which all its state lies.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Where things lie in it.
    pub(crate) fn places(&self) -> Places {
        Places::new(self.root())
    }

    /// Writes its pando.toml, before its daemon starts.
    pub(crate) fn settings(&self, text: &str) {
        let path = self.places().settings();
        let directory = path.parent().expect("it lies below the root");
        std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text)).expect("it is a temporary one");
    }

    /// A directory for files of the test's own, beside the state.
    pub(crate) fn scratch(&self) -> PathBuf {
        let path = self.root().join("scratch");
        std::fs::create_dir_all(&path).expect("a directory in a temporary one can be made");
        path
    }

    /// A tree with busybox in it; several tests use it at once, and only read it.
    pub(crate) fn busybox(&self) -> &str {
        &self.busybox
    }

    /// The program under test.
    pub(crate) fn program(&self) -> &Path {
        &self.command
    }

    /// `pando --root … WORDS`.
    pub(crate) fn pando<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Line {
        Line::new(&self.command).args([OsStr::new("--root"), self.root().as_os_str()]).args(words)
    }

    /// `pando run --from TREE OPTIONS -- sh -c SCRIPT`.
    pub(crate) fn run_sh(&self, options: &[&str], script: &str) -> Line {
        self.pando(["run", "--from", &self.busybox]).args(options).args(["--", "sh", "-c", script])
    }

    /// `pando exec NAME -- sh -c SCRIPT`.
    pub(crate) fn exec_sh(&self, name: &str, script: &str) -> Line {
        self.pando(["exec", name, "--", "sh", "-c", script])
    }

    /// A guest on the small tree, not started.
    #[track_caller]
    pub(crate) fn create(&self, name: &str, options: &[&str]) {
        self.pando(["create", name, "--from", &self.busybox]).args(options).ok();
    }

    /// A guest on the small tree, running.
    #[track_caller]
    pub(crate) fn guest(&self, name: &str, options: &[&str]) {
        self.create(name, options);
        self.pando(["start", name]).ok();
    }

    /// What `ls` knows of a guest.
    #[track_caller]
    pub(crate) fn status(&self, name: &str) -> Option<serde_json::Value> {
        let text = self.pando(["ls", "--json"]).ok();
        let guests: serde_json::Value = serde_json::from_str(&text).expect("ls --json prints JSON");
        guests.as_array().expect("an array").iter().find(|guest| guest["name"] == name).cloned()
    }

    /// How many paths the first transaction that `tx ls` lists has changed.
    #[track_caller]
    pub(crate) fn changed_paths(&self, options: &[&str]) -> Option<u64> {
        let text = self.pando(["tx", "ls"]).args(options).ok();
        // NAME, AGE, PROCESSES, PATHS.
        text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
    }

    /// What `inspect` knows of it.
    #[track_caller]
    pub(crate) fn inspect(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&self.pando(["inspect", name]).ok()).expect("inspect prints JSON")
    }

    /// `running`, `stopped`, …, or `absent`.
    #[track_caller]
    pub(crate) fn state(&self, name: &str) -> String {
        let status = self.status(name);
        status.and_then(|status| Some(status["state"].as_str()?.to_owned())).unwrap_or_else(|| "absent".to_owned())
    }

    #[track_caller]
    pub(crate) fn becomes(&self, name: &str, state: &str) {
        eventually(&format!("guest {name} becomes {state}"), || self.state(name) == state);
    }

    /// The host's pid of its first process.
    #[track_caller]
    pub(crate) fn first_process(&self, name: &str) -> i32 {
        let status = self.status(name).unwrap_or_else(|| panic!("there is no guest {name}"));
        let pid = status["pid"].as_i64().unwrap_or_else(|| panic!("guest {name} does not run: {status}"));
        i32::try_from(pid).expect("a pid fits")
    }

    /// The processes that belong to it: those that name its root, and those in its groups.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let (root, field) = (self.root().to_string_lossy().into_owned(), format!("/{}", self.places().field()));
        let me = std::process::id();
        let ours = |process: &Process| process.words.contains(&root) || process.groups.contains(&field);
        process::all().into_iter().filter(|process| process.pid as u32 != me && ours(process)).collect()
    }

    fn role(&self, role: &str) -> Option<i32> {
        let root = self.root().to_string_lossy().into_owned();
        let is = |process: &Process| {
            let named = process.words.iter().position(|word| *word == root);
            named.is_some_and(|at| process.words.get(at + 1).is_some_and(|word| word == role))
        };
        let pids: Vec<i32> = self.processes().iter().filter(|process| is(process)).map(|process| process.pid).collect();
        // What it forks for a while has the same words, and a lower pid where the numbers have begun anew.
        pids.iter().copied().find(|pid| process::parent(*pid).is_none_or(|parent| !pids.contains(&parent)))
    }

    /// The daemon's pid, if it runs.
    pub(crate) fn daemon(&self) -> Option<i32> {
        self.role("daemon")
    }

    /// The spawner's pid, if it runs.
    pub(crate) fn spawner(&self) -> Option<i32> {
        self.role("spawner")
    }

    /// Ends the daemon in good order. Guests go on.
    pub(crate) fn end_daemon(&self) {
        if let Some(pid) = self.daemon() {
            process::signal(pid, rustix::process::Signal::TERM);
            eventually("the daemon ends when it is asked to", || !process::is_alive(pid));
        }
    }

    /// What its daemons had to say.
    pub(crate) fn daemon_log(&self) -> String {
        let text = std::fs::read_to_string(self.places().run().join("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Gives the directory up, to be removed by whoever takes it.
    pub(crate) fn into_directory(self) -> TemporaryDirectory {
        self.directory
    }
}

/// The program under test: as the environment says, or the one beside this program.
pub(crate) fn command() -> io::Result<PathBuf> {
    if let Some(path) = std::env::var_os("PANDO_TEST_COMMAND") {
        return std::path::absolute(path);
    }
    let path = std::env::current_exe()?.with_file_name("pando");
    if path.is_file() { Ok(path) } else { Err(io::Error::other(format!("{} is not built", path.display()))) }
}

//! A Pando for the benchmark alone: a state root and a daemon, both gone with this value, whatever happened to the
//! measurement.

use crate::interrupt;
use crate::varlink::Client;
use anyhow::{Context, bail};
use pando_api::Method;
use pando_guest::Places;
use pando_kernel::cgroup::Hierarchies;
use pando_kernel::file::tree_removal::TemporaryDirectory;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the daemon may take to answer for the first time, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct OwnPando {
    command: PathBuf,
    places: Places,
    daemon: Child,
    /// Last, so that it goes when nothing uses it any more.
    directory: TemporaryDirectory,
    _run: Option<TemporaryDirectory>,
}

/// Run-time state lies in memory wherever Pando is used, since that is what /run is on every distribution; here too,
/// where there is any.
fn in_memory() -> anyhow::Result<Option<TemporaryDirectory>> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    for place in ["/run", "/dev/shm"] {
        if rustix::fs::statfs(place).is_ok_and(|found| found.f_type == TMPFS_MAGIC) {
            let directory = tempfile::Builder::new().prefix("pando-bench-").tempdir_in(place);
            let directory = directory.map(|made| Some(TemporaryDirectory::of(made.keep())));
            return directory.with_context(|| format!("cannot make a directory in {place}"));
        }
    }
    Ok(None)
}

impl OwnPando {
    /// Starts a daemon of `command` on an empty state root.
    pub(crate) fn start(command: &Path) -> anyhow::Result<Self> {
        Self::start_with(command, "")
    }

    /// The same with what pando.toml shall say.
    pub(crate) fn start_with(command: &Path, settings: &str) -> anyhow::Result<Self> {
        Self::start_at(command, &std::env::temp_dir(), settings)
    }

    /// The same below a directory, on whose file system the guests then lie.
    pub(crate) fn start_in(command: &Path, place: &Path) -> anyhow::Result<Self> {
        Self::start_at(command, place, "")
    }

    fn start_at(command: &Path, place: &Path, settings: &str) -> anyhow::Result<Self> {
        let directory =
            tempfile::Builder::new().prefix("pando-bench-").tempdir_in(place).context("cannot make a directory")?;
        let directory = TemporaryDirectory::of(directory.keep());
        // The roots of the peers' guests lie below, and those guests are other users of the host.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
        let log = File::create(directory.path().join("daemon.log"))?;
        let places = Places::new(directory.path().join("root"));
        std::fs::create_dir(places.root())?;
        let path = places.settings();
        std::fs::create_dir_all(path.parent().context("settings lie in a directory")?)?;
        std::fs::write(path, settings)?;
        let run = in_memory()?;
        if let Some(run) = &run {
            std::os::unix::fs::symlink(run.path(), places.root().join("run"))?;
        }
        let daemon = Command::new(command)
            .arg("--root")
            .arg(places.root())
            .arg("daemon")
            // A Ctrl-C is for the benchmark: it needs the daemon to take its guests down.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", command.display()))?;
        let pando = Self { command: command.to_owned(), places, daemon, directory, _run: run };
        pando.wait_for_socket()?;
        Ok(pando)
    }

    fn wait_for_socket(&self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if Client::connect(&self.places.socket()).is_ok() {
                return Ok(());
            }
            interrupt::pause(Duration::from_millis(10))?;
        }
        let log = std::fs::read_to_string(self.directory.path().join("daemon.log")).unwrap_or_default();
        bail!("the daemon does not answer; it says: {log}")
    }

    /// A connection to its daemon.
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(&self.places.socket()).context("cannot reach the daemon")
    }

    /// The command, told to use this state root.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.command);
        // Not by an option: the line is then what it is on a machine with one Pando.
        command.env("PANDO_ROOT", self.places.root());
        command
    }

    /// The root of its state.
    pub(crate) fn root(&self) -> &Path {
        self.places.root()
    }

    /// What its daemon keeps on the disk.
    pub(crate) fn state(&self) -> PathBuf {
        self.places.state()
    }

    /// What it keeps of what runs, in memory.
    pub(crate) fn run_state(&self) -> PathBuf {
        self.places.run()
    }

    /// A directory for what the benchmark needs besides.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its daemon's pid.
    pub(crate) fn daemon(&self) -> u32 {
        self.daemon.id()
    }

    /// The name of its groups in each cgroup hierarchy.
    pub(crate) fn field(&self) -> String {
        self.places.field()
    }

    /// Every guest, gone.
    fn remove_guests(&self) -> anyhow::Result<()> {
        let mut client = self.connect()?;
        let listing = client.call(&Method::List {})?;
        let guests = listing["guests"].as_array().cloned().unwrap_or_default();
        for name in guests.iter().filter_map(|guest| guest["name"].as_str()) {
            // One that was about to end may have gone by itself.
            if let Err(error) = client.call(&Method::Remove { name: name.to_owned(), force: true }) {
                eprintln!("bench: {error:#}");
            }
        }
        client.call(&Method::Quit {}).map(drop)
    }

    fn wait_for_end(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if matches!(self.daemon.try_wait(), Ok(Some(_))) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// What a daemon that failed leaves: groups with processes in them.
    fn sweep(&self) {
        let Ok(hierarchies) = Hierarchies::detect() else { return };
        let Ok(field) = hierarchies.field(&self.places.field()) else { return };
        for slot in field.slots() {
            let plot = field.plot(slot);
            plot.kill();
            for _ in 0..100 {
                if plot.remove().is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        field.remove();
    }
}

impl Drop for OwnPando {
    fn drop(&mut self) {
        if let Err(error) = self.remove_guests() {
            eprintln!("bench: the daemon did not take its guests down ({error:#}); they are killed");
        }
        if !self.wait_for_end() {
            // It is our child: its pid is its own until it is waited for.
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
        }
        self.sweep();
    }
}

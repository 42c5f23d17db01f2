//! The processes of a transaction: a control group, which nobody leaves by forking.

use pando_kernel::{CallError, Context};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long killed processes may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// The group of one transaction.
#[derive(Debug)]
pub(crate) struct Scope {
    path: PathBuf,
}

impl Scope {
    /// Makes the group.
    pub(crate) fn make(path: &Path) -> Result<Self, CallError> {
        std::fs::create_dir_all(path).context(|| format!("making cgroup {}", path.display()))?;
        Ok(Self { path: path.to_owned() })
    }

    /// Lets `id` put processes into it that are born there (CLONE_INTO_CGROUP wants the right to write to
    /// cgroup.procs).
    pub(crate) fn hand_to(&self, id: u32) -> Result<(), CallError> {
        let path = self.path.join("cgroup.procs");
        std::os::unix::fs::chown(&path, Some(id), Some(id)).context(|| format!("handing {} over", path.display()))
    }

    /// The group that is there, or was.
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A descriptor for processes to be born in it.
    pub(crate) fn entrance(&self) -> Result<File, CallError> {
        File::open(&self.path).context(|| format!("opening cgroup {}", self.path.display()))
    }

    /// The pids in it.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let text = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Freezes or thaws them (cgroup.freeze, since Linux 5.2).
    pub(crate) fn freeze(&self, frozen: bool) -> Result<(), CallError> {
        std::fs::write(self.path.join("cgroup.freeze"), if frozen { "1" } else { "0" })
            .context(|| format!("freezing cgroup {}", self.path.display()))?;
        self.wait_for("frozen", frozen)
    }

    /// Whether they were told to stand still.
    pub(crate) fn is_frozen(&self) -> bool {
        std::fs::read_to_string(self.path.join("cgroup.freeze")).is_ok_and(|text| text.trim_end() == "1")
    }

    /// Kills them (cgroup.kill, since Linux 5.14) and waits until they are gone.
    pub(crate) fn kill(&self) -> Result<(), CallError> {
        match self.kill_unseen() {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
            killed => killed.and_then(|()| self.wait_for("populated", false)),
        }
    }

    /// Kills them, and does not wait.
    pub(crate) fn kill_unseen(&self) -> Result<(), CallError> {
        let killed = std::fs::write(self.path.join("cgroup.kill"), "1");
        killed.context(|| format!("killing cgroup {}", self.path.display()))
    }

    /// Waits until the group is in a state that cgroup.events tells.
    fn wait_for(&self, key: &str, wanted: bool) -> Result<(), CallError> {
        let what = || format!("waiting for the processes in cgroup {}", self.path.display());
        let path = self.path.join("cgroup.events");
        let line = format!("{key} {}", u8::from(wanted));
        let begun = Instant::now();
        let mut events = File::open(&path).context(what)?;
        loop {
            let mut text = String::new();
            events.rewind().and_then(|()| events.read_to_string(&mut text)).context(what)?;
            if text.lines().any(|one| one == line) {
                return Ok(());
            }
            let left = PATIENCE.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut)).context(what);
            }
            // The kernel tells of a change by POLLPRI; it may have come between reading and waiting, so that the wait
            // is short.
            let limit = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = poll(&mut [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::PRI)], Some(&limit));
        }
    }

    /// Removes the group, and the one around it if this was its last.
    pub(crate) fn remove(&self) {
        for _ in 0..100 {
            match std::fs::remove_dir(&self.path) {
                // A process that has ended leaves its group a little later.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                _ => break,
            }
        }
        if let Some(around) = self.path.parent() {
            // Others may be in it, which keeps it.
            let _ = std::fs::remove_dir(around);
        }
    }
}

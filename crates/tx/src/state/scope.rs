//! The processes of a transaction: a control group, which nobody leaves by forking.

use crate::state::mount_space::MountSpace;
use pando_kernel::cgroup::Hierarchies;
use pando_kernel::process::{self, pidfd};
use pando_kernel::{CallError, Context, file::proc_file};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
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

    /// Takes back into the group what has left it: processes in the mount namespace `view`, but for `holder`. A server
    /// outside may have put them into another group (`systemd-run --scope`, container engines), or they were born
    /// there. One that the group cannot have is ended. How many there were.
    ///
    /// # Errors
    ///
    /// Where the kernel lists no processes. TimedOut where one of them does not end.
    pub(crate) fn gather(&self, view: &MountSpace, holder: Option<i32>) -> Result<usize, CallError> {
        let what = || format!("taking processes back into cgroup {}", self.path.display());
        let mut gathered = 0;
        let begun = Instant::now();
        loop {
            let inside = self.processes();
            let has_left = |pid: &i32| !inside.contains(pid) && Some(*pid) != holder && view.has(*pid);
            let outside: Vec<_> = process::all().context(what)?.into_iter().filter(has_left).collect();
            if outside.is_empty() {
                return Ok(gathered);
            }
            if begun.elapsed() > PATIENCE {
                return Err(io::Error::from(io::ErrorKind::TimedOut)).context(what);
            }
            for pid in outside {
                let Ok(opened) = pidfd::open(pid) else { continue };
                // Else it has ended since, and another has its pid.
                if !view.has(pid) {
                    continue;
                }
                if move_into(&self.path.join("cgroup.procs"), pid).is_err() {
                    // It may have ended by itself.
                    let _ = pidfd::send_signal(&opened, libc::SIGKILL);
                    pidfd::wait_for_end(&opened, Duration::from_millis(20));
                }
                // It has ended just there, and another, which has its pid, was moved: that is not to be frozen.
                if pidfd::has_ended(&opened) && !view.has(pid) && self.processes().contains(&pid) {
                    move_into(&own_group()?, pid).context(what)?;
                }
                gathered += 1;
            }
        }
    }

    /// Lets a process go on in another group, whose list of processes is at `group`. One that has ended needs none, and
    /// whoever has its pid by now stays where it is.
    pub(crate) fn let_go(&self, pid: i32, process: &OwnedFd, group: &Path) {
        if self.processes().contains(&pid) && !pidfd::has_ended(process) {
            let _ = move_into(group, pid);
        }
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

fn move_into(group: &Path, pid: i32) -> io::Result<()> {
    std::fs::write(group, pid.to_string())
}

/// Where a process is put to be in the control group that this one is in.
pub(crate) fn own_group() -> Result<PathBuf, CallError> {
    let what = || "looking for the own control group".to_owned();
    let unified = Hierarchies::detect()?.unified.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    let own = proc_file::text("/proc/self/cgroup").context(what)?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
    Ok(unified.context(what)?.join(own).join("cgroup.procs"))
}

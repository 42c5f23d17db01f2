//! A transaction of a program that enters its view by itself, and leaves it again: a daemon has made that ahead, and
//! keeps the transaction for the program.
//!
//! ```text
//!   program        begin ──────▶ in the view: works ──────▶ out of it: end
//!                    │  ▲ mount namespace                     │  ▲ committed, or what was in conflict
//!   keeper         begin ─▶ Hosted ──────────────────────── commit
//! ```
//!
//! Until it is committed it keeps the name of the prewarmed transaction that it was made of, by which nobody can
//! address it: who ends it is the program, or the program's end. So a beginning takes two changes to one directory, for
//! the time, and a transaction that changes nothing leaves the disk as it is. Should its keeper be killed, it is
//! removed as any other prewarmed transaction is.

use super::commit::validate_unchanged;
use super::{CommitRequest, EndError, Phase, Transaction};
use crate::journal::commit_error::CommitError;
use crate::prewarm::prewarmed::{Prewarmed, Site, Taken};
use crate::state::begin_timestamp::Grain;
use crate::state::directory::StateDirectory;
use crate::state::name::TxName;
use crate::state::overlay_part::OverlayPart;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::state::trash::Sweep;
use crate::transaction::daemons::{Daemons, Settled};
use crate::transaction::recover::finish_published;
use crate::validate::change_set::Figures;
use crate::validate::read_set::Watch;
use crate::view::ViewPlan;
use pando_kernel::file::lock::FileLock;
use pando_kernel::process::identity::ProcessId;
use pando_kernel::{CallError, Context, process::pidfd};
use rustix::fs::{CWD, RenameFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long processes that are killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait before it is looked again whether they are.
const PAUSE: Duration = Duration::from_millis(1);

/// A transaction that is kept for a program. One that is dropped is aborted: nothing of it is left.
#[derive(Debug)]
pub struct Hosted {
    home: StateDirectory,
    record: Record,
    watch: Watch,
    /// What the program enters.
    mounts: OwnedFd,
    /// Held, so that what is in it lasts as long as the view does.
    _ipc: OwnedFd,
    directory: PathBuf,
    plan: ViewPlan,
    /// Says to all others that the transaction lives.
    lock: FileLock,
    /// Removes what is on disk of it, last of all.
    site: Site,
}

/// What a commit came to.
#[derive(Debug)]
pub struct HostedCommit {
    /// What was changed, or why nothing was.
    pub outcome: Result<(Figures, Settled), EndError>,
    /// What is left of the transaction.
    pub leavings: Leavings,
}

/// What is left of a transaction that has ended: the view, which takes the kernel some 15 ms to take apart, and what
/// was thrown away. Nobody needs to wait for either: it goes with this value.
#[derive(Debug)]
pub struct Leavings {
    _view: Vec<OwnedFd>,
    _watch: Option<Watch>,
    _site: Option<(Site, FileLock)>,
    sweep: Option<Sweep>,
}

impl Drop for Leavings {
    fn drop(&mut self) {
        if let Some(sweep) = self.sweep.take() {
            sweep.run();
        }
    }
}

impl Prewarmed {
    /// Whether a transaction can begin on it at once. Where file systems keep coarser times, it begins with the next
    /// tick of the clock.
    pub fn begins_at_once(&self) -> bool {
        self.grain() == Grain::Fine
    }

    /// Begins a transaction on it for a program; nothing where it is not current any more, and so is thrown away.
    ///
    /// # Errors
    ///
    /// Where the time cannot be told.
    pub fn host(self) -> Result<Result<Hosted, Box<Self>>, CallError> {
        let begun = self.begin().context(|| "taking the time".into())?;
        if !self.is_current() {
            return Ok(Err(Box::new(self)));
        }
        let (home, directory) = (self.home().clone(), self.directory().to_owned());
        let Taken { state, namespaces, watch, lock, site } = self.take_apart();
        let (plan, mut record) = (state.plan, state.record);
        for ((part, changed), digest) in plan.parts().zip(&state.roots).zip(&mut record.roots) {
            // Names may have come and gone there since, and where whole seconds are kept nothing need tell of it.
            if plan.grain == Grain::Second || part.root_changed() != Some(*changed) {
                let looked = part.look_like_live();
                *digest = looked.context(|| format!("looking at {}", part.live.display()))?.digest;
            }
        }
        record.begun = begun;
        Ok(Ok(Hosted {
            home,
            record,
            watch,
            mounts: namespaces.mounts,
            _ipc: namespaces.ipc,
            directory,
            plan,
            lock,
            site,
        }))
    }
}

impl Hosted {
    /// The mount namespace that is its view.
    pub fn view(&self) -> BorrowedFd<'_> {
        self.mounts.as_fd()
    }

    /// Ends every process that is in its view; how many there were. The program itself must have left it, if it is to
    /// live.
    ///
    /// # Errors
    ///
    /// Where the processes cannot be listed, or do not end.
    pub fn end_processes(&self) -> Result<usize, CallError> {
        let looking = || "looking for what runs in a view".to_owned();
        let view = rustix::fs::fstat(&self.mounts).context(looking)?.st_ino;
        let (begun, mut first) = (Instant::now(), None);
        loop {
            let inside = inside(view).context(looking)?;
            let count = *first.get_or_insert(inside.len());
            if inside.is_empty() {
                return Ok(count);
            }
            for process in &inside {
                // One that has just ended need not be.
                let _ = pidfd::send_signal(process, libc::SIGKILL);
            }
            if begun.elapsed() > PATIENCE {
                return Err(io::Error::from(io::ErrorKind::TimedOut)).context(|| "ending what runs in a view".into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Commits it: everything is in the live tree when this returns, or nothing is. Nobody may be in its view. `pid` is
    /// the program's, `command` how that was called, and `number` tells the transaction from the program's others.
    pub fn commit(self, pid: i32, command: Vec<String>, number: u32, request: &CommitRequest<'_>) -> HostedCommit {
        let locked = self.home.lock().map_err(EndError::from);
        let prepared = locked.and_then(|lock| {
            finish_published(&self.home).map_err(CommitError::of_another)?;
            Ok(lock)
        });
        match prepared {
            Ok(lock) => self.commit_under(lock, pid, command, number, request),
            Err(error) => self.end(Err(error)),
        }
    }

    fn commit_under(
        mut self,
        lock: FileLock,
        pid: i32,
        command: Vec<String>,
        number: u32,
        request: &CommitRequest<'_>,
    ) -> HostedCommit {
        if self.plan.parts().all(OverlayPart::is_untouched) {
            match validate_unchanged(&self.home, &self.record, &self.watch, request) {
                Ok(Some(read)) => {
                    let figures = Figures { read, ..Figures::default() };
                    return self.end(Ok((figures, Settled::default())));
                }
                Ok(None) => {}
                Err(error) => return self.end(Err(error)),
            }
        }
        self.record.command = command;
        self.record.held_by(ProcessId::of(pid).unwrap_or(ProcessId::gone(pid)));
        self.record.listener = None;
        match self.take_name(TxName::of_program(pid, number)) {
            Err(error) => self.end(Err(error.into())),
            Ok(()) => self.commit_named(lock, request),
        }
    }

    /// Takes a name of its own: from now on a crash leaves it to be finished, if its journal was written.
    fn take_name(&mut self, name: TxName) -> Result<(), CallError> {
        let directory = self.home.of(&name);
        self.record.name = name;
        self.plan.move_parts(&self.directory, &directory);
        self.watch.move_parts(&self.directory, &directory);
        self.record.parts = self.plan.parts().cloned().collect();
        self.record.write(&self.directory)?;
        rustix::fs::renameat_with(CWD, &self.directory, CWD, &directory, RenameFlags::NOREPLACE)
            .context(|| format!("making {}", directory.display()))?;
        self.directory = directory;
        Ok(())
    }

    fn commit_named(self, lock: FileLock, request: &CommitRequest<'_>) -> HostedCommit {
        let Self { home, record, watch, mounts, _ipc: ipc, directory, plan, lock: own, site } = self;
        site.leave();
        let sweep = Sweep::behind(&home, plan.parts());
        let scope = Scope::at(&record.group);
        let phase = Phase::Entered { prewarmed: true };
        let transaction = Transaction { phase, ..Transaction::of(&home, directory, record, scope, own) };
        let committed = transaction.commit_under(lock, &Daemons::default(), Ok(()), Some(&watch), request);
        let leavings = Leavings { _view: vec![mounts, ipc], _watch: Some(watch), _site: None, sweep: Some(sweep) };
        HostedCommit { outcome: committed, leavings }
    }

    fn end(self, outcome: Result<(Figures, Settled), EndError>) -> HostedCommit {
        let Self { watch, mounts, _ipc: ipc, lock, site, .. } = self;
        let leavings =
            Leavings { _view: vec![mounts, ipc], _watch: Some(watch), _site: Some((site, lock)), sweep: None };
        HostedCommit { outcome, leavings }
    }
}

impl HostedCommit {
    /// What of others was in the way, if that was it.
    pub fn conflict(&self) -> Option<&crate::Conflict> {
        match &self.outcome {
            Err(EndError::Commit(CommitError::Conflict(conflict))) => Some(conflict),
            _ => None,
        }
    }
}

/// The processes in a mount namespace.
fn inside(view: u64) -> io::Result<Vec<OwnedFd>> {
    let is_inside = |pid: i32| std::fs::metadata(format!("/proc/{pid}/ns/mnt")).is_ok_and(|found| found.ino() == view);
    let mut found = Vec::new();
    for pid in pando_kernel::process::all()? {
        if !is_inside(pid) {
            continue;
        }
        let Ok(process) = pidfd::open(pid) else { continue };
        // It is the same as was looked at, unless it has ended since.
        if is_inside(pid) {
            found.push(process);
        }
    }
    Ok(found)
}

//! Commands inside a transaction.

use super::Transaction;
use crate::outside::{self, HeldSignals, Supervisor};
use crate::read_set::Watch;
use crate::record::Record;
use crate::scope::Scope;
use crate::view::{View, ViewPlan, join};
use pando_kernel::born_in_group::{Program, Started};
use pando_kernel::{CallError, Context, inheritance, seccomp_notify};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

impl Ended {
    /// As a shell gives it.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
        }
    }
}

/// Why a command could not be run in a transaction.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The view could not be made, or entered.
    #[error(transparent)]
    View(CallError),
    /// The command itself cannot be executed there.
    #[error(transparent)]
    Command(CallError),
}

/// A command that runs in a view.
///
/// A mount namespace belongs to a thread. One thread of this process is in the view, starts the command from there, and stays as long as this value:
/// the command is killed when that thread ends.
#[derive(Debug)]
pub struct Running {
    started: Started,
    watch: Option<Watch>,
    supervisor: Option<Supervisor>,
    release: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is left of a command that has ended.
#[derive(Debug)]
pub struct Rest {
    /// How it ended.
    pub ended: Ended,
    /// What is needed to know what it read.
    pub watch: Option<Watch>,
    /// Its signals to processes outside.
    pub held: HeldSignals,
}

impl AsFd for Running {
    /// The command's pidfd: readable once it has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.started.process.as_fd()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.release.take());
        if let Some(thread) = self.thread.take() {
            // It does nothing any more that could panic.
            let _ = thread.join();
        }
    }
}

/// Catches the calls of this thread, and of all that it starts, that would reach outside.
fn supervisor(group: &Path) -> Result<Supervisor, CallError> {
    let listener = seccomp_notify::listen(&outside::numbers());
    listener.and_then(|listener| Supervisor::new(listener, group)).context(|| "catching system calls".into())
}

impl Transaction {
    /// Makes the view and runs a command in it.
    ///
    /// `stdio` are its standard descriptors, where they are not this process's.
    pub fn start(
        &mut self,
        plan: ViewPlan,
        command: &[OsString],
        stdio: [Option<File>; 3],
    ) -> Result<Running, StartError> {
        // What the command starts and leaves behind is this process's to wait for.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .context(|| "becoming a subreaper".into())
            .map_err(StartError::View)?;
        let (directory, mut watch) = (self.directory.clone(), self.watch.take());
        Running::new(&self.scope, command, stdio, Some(Signal::KILL), move || {
            View::enter(&plan, &directory, watch.as_mut())?;
            Ok(watch)
        })
    }

    /// Makes the view and takes this process, which must have one thread, into it, for others to enter.
    pub fn hold(&mut self, plan: &ViewPlan) -> Result<View, CallError> {
        View::enter(plan, &self.directory, self.watch.as_mut())
    }
}

impl Running {
    /// Runs a command in a transaction that another process holds.
    pub fn entering(record: &Record, command: &[OsString]) -> Result<Self, StartError> {
        let holder = record.holder;
        Self::new(&Scope::at(&record.group), command, [None, None, None], None, move || join(holder).map(|()| None))
    }

    fn new(
        scope: &Scope,
        command: &[OsString],
        stdio: [Option<File>; 3],
        death_signal: Option<Signal>,
        enter: impl FnOnce() -> Result<Option<Watch>, CallError> + Send + 'static,
    ) -> Result<Self, StartError> {
        let group = scope.entrance().map_err(StartError::View)?;
        let (arguments, path) = (command.to_vec(), scope.path().to_owned());
        let (tell, told) = channel();
        let (release, released) = channel::<()>();
        let start = move || {
            let watch = enter().map_err(StartError::View)?;
            // A file that the caller has open outside would be a way around the view.
            inheritance::close_range_on_exec(3)
                .context(|| "keeping descriptors back".into())
                .map_err(StartError::View)?;
            // What is run in a transaction that lasts has nobody to answer for it once this process has ended.
            let supervisor = death_signal.map(|_| supervisor(&path)).transpose().map_err(StartError::View)?;
            let stdio = stdio.each_ref().map(|file| file.as_ref().map(AsFd::as_fd));
            let (group, death_signal) = (Some(group.as_fd()), death_signal.map(Signal::as_raw));
            Program { arguments: &arguments, group, death_signal, stdio }
                .start()
                .map(|started| (started, watch, supervisor))
                .map_err(StartError::Command)
        };
        let body = move || {
            let started = start();
            let is_started = started.is_ok();
            // The receiver waits for exactly this.
            let _ = tell.send(started);
            if is_started {
                // Until the sender is dropped.
                let _ = released.recv();
            }
        };
        let view = |result: io::Result<_>| {
            result.context(|| "starting a thread for the view".into()).map_err(StartError::View)
        };
        let thread = view(std::thread::Builder::new().name("pando-view".into()).spawn(body))?;
        let (started, watch, supervisor) = match told.recv() {
            Ok(started) => started?,
            Err(gone) => {
                return Err(StartError::View(CallError {
                    what: "starting a command".into(),
                    source: io::Error::other(gone),
                }));
            }
        };
        Ok(Self { started, watch, supervisor, release: Some(release), thread: Some(thread) })
    }

    /// Readable when a call waits for [`supervisor`](Self::supervisor).
    pub fn calls(&self) -> Option<BorrowedFd<'_>> {
        self.supervisor.as_ref().map(AsFd::as_fd)
    }

    /// Who answers for the calls that reach outside. Until they are answered they wait.
    pub fn supervisor(&mut self) -> Option<&mut Supervisor> {
        self.supervisor.as_mut()
    }

    /// Passes a signal on.
    pub fn signal(&self, number: i32) {
        // It may have ended, which is no failure.
        let _ = pando_kernel::pidfd::send_signal(&self.started.process, number);
    }

    /// Waits for the command's end.
    pub fn wait(mut self) -> Result<Rest, CallError> {
        let what = || "waiting for a command".to_owned();
        let pid = Pid::from_raw(self.started.pid);
        let status = loop {
            match waitpid(pid, WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) | Ok(None) => {}
                Ok(Some((_, status))) => break status,
                Err(errno) => return Err(errno).context(what),
            }
        };
        let exited = status.exit_status().and_then(|code| u8::try_from(code).ok()).map(Ended::Exited);
        let ended = exited.unwrap_or_else(|| Ended::Killed(status.terminating_signal().unwrap_or(0)));
        let held = self.supervisor.take().map(Supervisor::into_held).unwrap_or_default();
        Ok(Rest { ended, watch: self.watch.take(), held })
    }
}

//! The start of a command, by a thread that is in its transaction's view.

use super::StartError;
use crate::state::overlay_part::OverlayPart;
use crate::supervise::{self, Bystanders, Network, Supervisor};
use crate::validate::read_set::{Canary, Watch};
use pando_kernel::cgroup::born_in_group::{Program, Started};
use pando_kernel::process::user_rights::AsUser;
use pando_kernel::{CallError, Context, process::inheritance, process::pidfd, seccomp};
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

/// How a command is run.
#[derive(Debug, Default)]
pub(super) struct Manner {
    /// Its standard descriptors, where they are not this process's.
    pub(super) stdio: [Option<File>; 3],
    /// It gets this when this process ends.
    pub(super) death_signal: Option<Signal>,
    pub(super) network: Network,
    /// Where its signals are written down, if another process will commit.
    pub(super) noted_in: Option<PathBuf>,
    /// The parts of the view that it enters, if another process holds that, and where its canary is noted: there is no
    /// path to it in the view.
    pub(super) parts: Vec<OverlayPart>,
    pub(super) canaries: Option<File>,
    /// Files of which it matters whether it opens them.
    pub(super) baselines: Vec<PathBuf>,
    /// Whether it is heard of what it writes to files of the kernel's. To stop listening takes the kernel some 13 ms,
    /// twice what a short command takes on a prewarmed transaction.
    pub(super) hears_writes: bool,
    /// Whose it is, where that is not root.
    pub(super) user: Option<AsUser>,
}

/// All that a command takes once a thread is in the view.
pub(super) struct Beginning {
    pub(super) command: Vec<OsString>,
    pub(super) group: PathBuf,
    pub(super) entrance: File,
    pub(super) manner: Manner,
    pub(super) looked_around: Receiver<Bystanders>,
}

impl Beginning {
    /// Starts the command, by a thread that is in the view, and whose calls are caught from then on.
    pub(super) fn start_within(self, mut watch: Option<&mut Watch>) -> Result<(Started, Supervisor), StartError> {
        let Self { command, group, entrance, manner, looked_around } = self;
        let Manner { stdio, death_signal, network, noted_in, parts, canaries, baselines, hears_writes, user } = manner;
        if let Some(watch) = watch.as_mut().filter(|_| !baselines.is_empty()) {
            watch.listen_for_openers(baselines);
        }
        let canary = canary(watch, &parts).map_err(StartError::View)?;
        // A file that the caller has open outside would be a way around the view.
        inheritance::close_range_on_exec(3).context(|| "keeping descriptors back".into()).map_err(StartError::View)?;
        let supervisor = supervisor(&group, network).map_err(StartError::View)?;
        let supervisor = match &noted_in {
            Some(directory) => supervisor.noting_in(directory),
            None => supervisor,
        };
        // Known before the command is there, which may listen itself.
        let looked = looked_around.recv().map_err(io::Error::other).context(|| "looking around".into());
        let mut bystanders = looked.map_err(StartError::View)?;
        let me = rustix::thread::gettid().as_raw_nonzero();
        bystanders.beside_view(PathBuf::from(format!("/proc/self/task/{me}/root")), hears_writes);
        let supervisor = supervisor.beside(bystanders);
        // To send them later, with all rights, is not for a user: whoever has a pid then may be another's.
        let supervisor = if user.is_some() { supervisor.holding_no_signals() } else { supervisor };
        let stdio = stdio.each_ref().map(|file| file.as_ref().map(AsFd::as_fd));
        let (group, death_signal) = (Some(entrance.as_fd()), death_signal.map(Signal::as_raw));
        let roots = canary.as_ref().map(Canary::roots).unwrap_or_default();
        let looks_up = canary.as_ref().map(|canary| (&roots[..], canary.name()));
        let started =
            Program { arguments: &command, group, death_signal, stdio, looks_up, user: user.as_ref() }.start();
        let started = started.map_err(StartError::Command)?;
        if let (Some(canary), Some(file)) = (&canary, canaries)
            && let Err(error) = canary.note(file)
        {
            // Whoever commits would not know what it has to have looked up. It may have ended, which is no failure.
            let _ = pidfd::send_signal(&started.process, Signal::KILL.as_raw());
            return Err(error).context(|| "noting a command".into()).map_err(StartError::View);
        }
        Ok((started, supervisor))
    }
}

/// Catches the calls of this thread, and of all that it starts, that would reach outside.
fn supervisor(group: &Path, network: Network) -> Result<Supervisor, CallError> {
    let (this, older) = supervise::numbers(network);
    let listener = seccomp::notify::listen(&this.0, &this.1, (&older.0, &older.1));
    listener.and_then(|listener| Supervisor::new(listener, group, network)).context(|| "catching system calls".into())
}

/// What a command looks up first of all, so that it is known whether anything was forgotten of what it looks up then;
/// nothing where nobody will ask.
fn canary(watch: Option<&mut Watch>, parts: &[OverlayPart]) -> Result<Option<Canary>, CallError> {
    let canary = match watch {
        Some(watch) => watch.canary().map(Some),
        None if parts.is_empty() => Ok(None),
        None => Canary::of_entered(parts).map(Some),
    };
    canary.context(|| "opening the view's file systems".into())
}

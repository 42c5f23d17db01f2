//! Commands inside a transaction.

use super::commit::abort_reason_now;
use super::looking::Looking;
use super::looks::Looks;
use super::starting::{Beginning, Manner};
use super::{Phase, Transaction};
use crate::state::directory::StateDirectory;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::supervise::{Answered, Network, Passed, Reached, Still, Supervisor, Unsupported, WhenUnsupported};
use crate::validate::read_set::{Canary, Watch, load_ahead};
use crate::view::{View, ViewPlan, join};
use pando_kernel::cgroup::born_in_group::Started;
use pando_kernel::mount::watch::MountWatch;
use pando_kernel::process::user_rights::AsUser;
use pando_kernel::{CallError, Context};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// How a command in a transaction ended.
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
    View(#[from] CallError),
    /// The view is of what was mounted a moment ago: it has to be begun anew.
    #[error("what is mounted was changed while the view was made")]
    Shifted,
    /// The command itself cannot be executed there.
    #[error(transparent)]
    Command(CallError),
}

/// A command that runs in a view.
///
/// A mount namespace belongs to a thread. One thread of this process is in the view, starts the command from there, and
/// stays as long as this value: the command is killed when that thread ends.
#[derive(Debug)]
pub struct Running {
    started: Started,
    watch: Option<Watch>,
    supervisor: Option<Supervisor>,
    release: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    looks: Looks,
}

/// What is left of a command that has ended.
#[derive(Debug)]
pub struct Rest {
    /// How the command has ended.
    pub ended: Ended,
    /// What is needed to know what it read.
    pub watch: Option<Watch>,
    /// What reached outside, or is to.
    pub passed: Passed,
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

impl Transaction {
    /// Makes the view and runs a command in it.
    ///
    /// `stdio` are its standard descriptors, where they are not this process's.
    pub fn start(
        &mut self,
        plan: ViewPlan,
        command: &[OsString],
        stdio: [Option<File>; 3],
        network: Network,
    ) -> Result<Running, StartError> {
        self.start_as(plan, command, stdio, network, None)
    }

    /// The same where the command is to be a user's.
    pub fn start_as(
        &mut self,
        plan: ViewPlan,
        command: &[OsString],
        stdio: [Option<File>; 3],
        network: Network,
        user: Option<AsUser>,
    ) -> Result<Running, StartError> {
        // What the command starts and leaves behind is this process's to wait for.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .context(|| "becoming a subreaper".into())
            .map_err(StartError::View)?;
        let prewarmed = self.is_prewarmed();
        let baselines = self.record.baselines.iter().map(|one| one.path.clone()).collect();
        let manner = Manner {
            stdio,
            death_signal: Some(Signal::KILL),
            network,
            baselines,
            hears_writes: !prewarmed,
            user,
            ..Manner::default()
        };
        let running = match std::mem::replace(&mut self.phase, Phase::Entered { prewarmed }) {
            Phase::Prewarmed { mut watch, namespaces, looking } => {
                let enter = move || {
                    namespaces.join().map_err(StartError::View)?;
                    let looked = watch.look_from_within(&plan, namespaces);
                    looked.context(|| "looking at a view that was made ahead".into()).map_err(StartError::View)?;
                    Ok((Some(watch), None))
                };
                Running::new(&self.scope, command, manner, enter, looking)
            }
            Phase::Begun { watch, mounts } => self.start_in_new_view(plan, command, manner, watch, mounts),
            // What it reads is not known then.
            Phase::Entered { .. } => self.start_in_new_view(plan, command, manner, None, None),
        }?;
        let filtered = running.supervisor.as_ref().map(Supervisor::filtered).transpose();
        self.filtered =
            filtered.context(|| "keeping a descriptor of a command's calls".into()).map_err(StartError::View)?;
        Ok(running)
    }

    /// Makes the view now, and runs a command in it.
    fn start_in_new_view(
        &self,
        plan: ViewPlan,
        command: &[OsString],
        manner: Manner,
        mut watch: Option<Watch>,
        mounts: Option<MountWatch>,
    ) -> Result<Running, StartError> {
        if let (Some(memory), Some(watch)) = (&self.memory, &mut watch) {
            watch.keep_mounts(vec![memory.share().map_err(StartError::View)?]);
        }
        let (directory, kept) = (self.directory.clone(), watch.as_ref().map(|watch| watch.kept().to_owned()));
        let enter = move || {
            let view = View::enter(&plan, &directory, watch.as_mut()).map_err(StartError::View);
            let view = of_now(mounts.as_ref(), view)?;
            Ok((watch, Some(view)))
        };
        // A view that is made now takes its time, on another processor if there is one.
        let looking = Looking::begin(move || load_ahead(&kept?), Still::default()).map_err(StartError::View)?;
        Running::new(&self.scope, command, manner, enter, looking)
    }

    /// More paths that Pando itself looked up in the view.
    pub fn knows(&mut self, places: &BTreeSet<PathBuf>) {
        self.record = self.record.clone().with_places(places);
    }

    /// Makes the view and takes this process, which must have one thread, into it, for others to enter.
    pub fn hold(&mut self, plan: &ViewPlan) -> Result<View, StartError> {
        let (watch, mounts) = match &mut self.phase {
            Phase::Begun { watch, mounts } => (watch.as_mut(), mounts.as_ref()),
            Phase::Prewarmed { .. } | Phase::Entered { .. } => (None, None),
        };
        let view = match &self.record.target {
            None => View::enter(plan, &self.directory, watch).map_err(StartError::View),
            Some(target) => View::enter_target(plan, target, watch),
        };
        of_now(mounts, view)
    }

    /// What ends its processes when it is written to: "1". It needs no rights that a holder inside a target has not.
    pub fn killer(&self) -> Result<File, CallError> {
        let path = self.scope.path().join("cgroup.kill");
        File::options().write(true).open(&path).context(|| format!("opening {}", path.display()))
    }
}

/// A view, if it is of what is mounted now: what it would show in the place of a mount that has come or gone since it
/// was planned is another file system's. Nor does an error say anything then but that it has to be made anew.
fn of_now(mounts: Option<&MountWatch>, view: Result<View, StartError>) -> Result<View, StartError> {
    if mounts.is_none_or(MountWatch::is_silent) { view } else { Err(StartError::Shifted) }
}

impl Running {
    /// Runs a command in a transaction that another process holds.
    ///
    /// What it leaves running when this process ends cannot make the calls that are caught any more: they fail
    /// (ENOSYS).
    pub fn entering(home: &StateDirectory, record: &Record, command: &[OsString]) -> Result<Self, StartError> {
        let holder = record.holder();
        let (noted_in, parts) = (Some(home.of(&record.name)), record.parts.clone());
        let canaries = Canary::notes_in(&home.of(&record.name)).context(|| "noting a command".into());
        let canaries = Some(canaries.map_err(StartError::View)?);
        let manner = Manner { noted_in, parts, canaries, hears_writes: true, ..Manner::default() };
        let join = move || join(holder).map(|()| (None, None)).map_err(StartError::View);
        let looking = Looking::begin(|| None, Still::default()).map_err(StartError::View)?;
        Self::new(&Scope::at(&record.group), command, manner, join, looking)
    }

    fn new(
        scope: &Scope,
        command: &[OsString],
        manner: Manner,
        enter: impl FnOnce() -> Result<(Option<Watch>, Option<View>), StartError> + Send + 'static,
        looking: Looking,
    ) -> Result<Self, StartError> {
        let Looking { told, walker } = looking;
        let beginning = Beginning {
            command: command.to_vec(),
            group: scope.path().to_owned(),
            entrance: scope.entrance().map_err(StartError::View)?,
            manner,
            looked_around: told,
        };
        let (tell, told) = channel();
        let (release, released) = channel::<()>();
        let start = move || {
            let (mut watch, view) = enter()?;
            let (started, supervisor) = beginning.start_within(watch.as_mut())?;
            Ok(((started, watch, Some(supervisor)), view))
        };
        let body = move || {
            let (started, view) =
                start().map_or_else(|error: StartError| (Err(error), None), |(started, view)| (Ok(started), view));
            let is_started = started.is_ok();
            // The receiver waits for exactly this.
            let _ = tell.send(started);
            // While the command runs.
            drop(view);
            if is_started {
                // Until the sender is dropped.
                let _ = released.recv();
            }
        };
        let view = |result: io::Result<_>| {
            result.context(|| "starting a thread for the view".into()).map_err(StartError::View)
        };
        let thread = view(std::thread::Builder::new().name("pando-view".into()).spawn(body))?;
        let (started, mut watch, supervisor) = match told.recv() {
            Ok(started) => started?,
            Err(gone) => {
                return Err(StartError::View(CallError {
                    what: "starting a command".into(),
                    source: io::Error::other(gone),
                }));
            }
        };
        if let Some(watch) = &mut watch {
            watch.take_loaded(walker.join().unwrap_or_default());
        }
        Ok(Self { started, watch, supervisor, release: Some(release), thread: Some(thread), looks: Looks::default() })
    }

    /// Readable when a call waits for [`answer_one`](Self::answer_one).
    pub fn calls(&self) -> Option<BorrowedFd<'_>> {
        self.supervisor.as_ref().map(AsFd::as_fd)
    }

    /// Readable when something was [opened](Self::opened) that leads outside.
    pub fn openings(&self) -> Option<BorrowedFd<'_>> {
        self.supervisor.as_ref().and_then(Supervisor::openings)
    }

    /// Waits until all is known that leads outside by being opened.
    pub fn settle(&mut self) {
        if let Some(supervisor) = &mut self.supervisor {
            supervisor.settle();
        }
    }

    /// What was opened that leads outside. Nobody waits for an answer.
    pub fn opened(&mut self) -> io::Result<Vec<Unsupported>> {
        self.supervisor.as_mut().map_or_else(|| Ok(Vec::new()), Supervisor::opened)
    }

    /// Answers one of the calls that reach outside; until then they wait. Before anything passes, it is looked whether
    /// the transaction, as `record` has it, can still be committed. A look that takes long is not taken again at once.
    pub fn answer_one(&mut self, when: WhenUnsupported, record: Option<&Record>) -> io::Result<Answered> {
        let Some(supervisor) = self.supervisor.as_mut() else { return Ok(Answered::Done) };
        let (watch, looks) = (self.watch.as_ref(), &mut self.looks);
        let mut lost = |places: &BTreeSet<PathBuf>| {
            let record = record?;
            looks.look(|| abort_reason_now(&record.clone().with_places(places), watch))
        };
        supervisor.answer_one(when, &mut lost)
    }

    /// What was reached outside so far.
    pub fn reached(&self) -> Reached {
        self.supervisor.as_ref().map(Supervisor::reached).unwrap_or_default()
    }

    /// Passes a signal on to the command.
    pub fn signal(&self, number: i32) {
        // It may have ended, which is no failure.
        let _ = pando_kernel::process::pidfd::send_signal(&self.started.process, number);
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
        // Its thread has nothing to do any more, and ends by itself.
        drop((self.release.take(), self.thread.take()));
        let exited = status.exit_status().and_then(|code| u8::try_from(code).ok()).map(Ended::Exited);
        let ended = exited.unwrap_or_else(|| Ended::Killed(status.terminating_signal().unwrap_or(0)));
        let mut passed = self.supervisor.take().map(Supervisor::into_passed).unwrap_or_default();
        let mut watch = self.watch.take();
        // It goes when the watch does, by a process that nobody waits for.
        if let (Some(watch), Some(hearing)) = (&mut watch, passed.hearing.take()) {
            watch.keep(hearing);
        }
        Ok(Rest { ended, watch, passed })
    }
}

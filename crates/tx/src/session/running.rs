//! Commands inside a transaction.

use super::end::conflict_now;
use super::{Ahead, Transaction};
use crate::home::Home;

use crate::outside::{
    self, Answered, Bystanders, Holders, Network, Passed, Still, Supervisor, Unsupported, WhenUnsupported,
};
use crate::read_set::{Walker, Watch, load_ahead};
use crate::record::Record;
use crate::scope::Scope;
use crate::view::{View, ViewPlan, join};
use pando_kernel::born_in_group::{Program, Started};
use pando_kernel::{CallError, Context, inheritance, process, seccomp_notify};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Looks take at most this part of the time: so many times as long as one took nobody looks again.
const PAUSE_OF_LOOKS: u32 = 10;

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
    /// When it was last looked whether the transaction can be committed, and how long that took.
    looked: Option<(Instant, Duration)>,
}

/// What is left of a command that has ended.
#[derive(Debug)]
pub struct Rest {
    /// How it ended.
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

/// Catches the calls of this thread, and of all that it starts, that would reach outside.
fn supervisor(group: &Path, network: Network) -> Result<Supervisor, CallError> {
    let (numbers, with, older) = outside::numbers(network);
    let listener = seccomp_notify::listen(&numbers, &with, &older);
    listener.and_then(|listener| Supervisor::new(listener, group, network)).context(|| "catching system calls".into())
}

/// What tells of processes as they are called here: it counts as the first pid namespace does.
fn who_counts_likewise(walker: Option<&Walker>) -> Option<&Walker> {
    walker.filter(|_| process::counts_as_the_kernel())
}

/// Who may have a named fifo open, as far as the kernel tells.
fn holders_of_fifos(walker: Option<&Walker>) -> Holders {
    let told = who_counts_likewise(walker).and_then(|walker| walker.holders_of_fifos().ok());
    told.flatten().map_or(Holders::Anybody, Holders::These)
}

/// Who may write to files through its memory, as far as it does.
fn writers(walker: Option<&Walker>, still: &Still) -> Option<BTreeSet<i32>> {
    let tenants = who_counts_likewise(walker)?.tenants().ok()?;
    Some(tenants.into_iter().filter(|tenant| !still.has(tenant)).map(|tenant| tenant.pid).collect())
}

/// Looks at who is outside when a command is about to begin, and has it told.
fn look(walker: Option<&Walker>, still: &Still, tell: &Sender<Bystanders>) {
    let mut bystanders = Bystanders::look(None, writers(walker, still));
    let asks = bystanders.holders_of_fifos();
    // Where nobody listens any more the command has failed to begin.
    let _ = tell.send(bystanders);
    if let Some(asks) = asks {
        // It is gone only where there is nothing to be told of.
        let _ = asks.send(holders_of_fifos(walker));
    }
}

/// How a command is run.
#[derive(Debug, Default)]
struct Manner {
    /// Its standard descriptors, where they are not this process's.
    stdio: [Option<File>; 3],
    /// It gets this when this process ends.
    death_signal: Option<Signal>,
    network: Network,
    /// Where its signals are written down, if another process will commit.
    noted_in: Option<PathBuf>,
    /// Who need not be looked at.
    still: Still,
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
        // What the command starts and leaves behind is this process's to wait for.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .context(|| "becoming a subreaper".into())
            .map_err(StartError::View)?;
        let (directory, mut watch) = (self.directory.clone(), self.watch.take());
        let (made, still) = self.made.take().map(|Ahead { namespaces, still }| (namespaces, still)).unzip();
        let (death_signal, still) = (Some(Signal::KILL), still.unwrap_or_default());
        let manner = Manner { stdio, death_signal, network, noted_in: None, still };
        let kept = watch.as_ref().map(|watch| watch.kept().to_owned());
        let loaded = watch.as_mut().and_then(Watch::give_loaded);
        let enter = move || {
            if let Some(made) = made {
                made.join()?;
                if let Some(watch) = &mut watch {
                    watch.look_from_within(&plan, made).context(|| "looking at a view that was made ahead".into())?;
                }
                return Ok((watch, None));
            }
            let view = View::enter(&plan, &directory, watch.as_mut())?;
            Ok((watch, Some(view)))
        };
        Running::new(&self.scope, command, manner, enter, || loaded.or_else(|| load_ahead(&kept?)))
    }

    /// More paths that Pando itself looked up in the view.
    pub fn knows(&mut self, places: &BTreeSet<PathBuf>) {
        self.record = self.record.clone().with_places(places);
    }

    /// Makes the view and takes this process, which must have one thread, into it, for others to enter.
    pub fn hold(&mut self, plan: &ViewPlan) -> Result<View, CallError> {
        match &self.record.realm {
            None => View::enter(plan, &self.directory, self.watch.as_mut()),
            Some(realm) => View::enter_realm(plan, realm, self.watch.as_mut()),
        }
    }

    /// What ends its processes when it is written to: "1". It needs no rights that a holder inside a realm has not.
    pub fn killer(&self) -> Result<File, CallError> {
        let path = self.scope.path().join("cgroup.kill");
        File::options().write(true).open(&path).context(|| format!("opening {}", path.display()))
    }
}

impl Running {
    /// Runs a command in a transaction that another process holds.
    ///
    /// What it leaves running when this process ends cannot make the calls that are caught any more: they fail (ENOSYS).
    pub fn entering(home: &Home, record: &Record, command: &[OsString]) -> Result<Self, StartError> {
        let holder = record.holder;
        let manner = Manner { noted_in: Some(home.of(&record.name)), ..Manner::default() };
        let join = move || join(holder).map(|()| (None, None));
        Self::new(&Scope::at(&record.group), command, manner, join, || None)
    }

    fn new(
        scope: &Scope,
        command: &[OsString],
        manner: Manner,
        enter: impl FnOnce() -> Result<(Option<Watch>, Option<View>), CallError> + Send + 'static,
        meanwhile: impl FnOnce() -> Option<Walker>,
    ) -> Result<Self, StartError> {
        let group = scope.entrance().map_err(StartError::View)?;
        let (arguments, path) = (command.to_vec(), scope.path().to_owned());
        let Manner { stdio, death_signal, network, noted_in, still } = manner;
        let (tell, told) = channel();
        let (release, released) = channel::<()>();
        let (look_around, looked_around) = channel();
        let start = move || {
            let (watch, view) = enter().map_err(StartError::View)?;
            // A file that the caller has open outside would be a way around the view.
            inheritance::close_range_on_exec(3)
                .context(|| "keeping descriptors back".into())
                .map_err(StartError::View)?;
            let supervisor = supervisor(&path, network).map_err(StartError::View)?;
            let supervisor = match &noted_in {
                Some(directory) => supervisor.noting_in(directory),
                None => supervisor,
            };
            // Known before the command is there, which may listen itself.
            let mut bystanders: Bystanders = looked_around.recv().unwrap_or_default();
            let me = rustix::thread::gettid().as_raw_nonzero();
            bystanders.beside_view(PathBuf::from(format!("/proc/self/task/{me}/root")));
            let supervisor = supervisor.beside(bystanders);
            let stdio = stdio.each_ref().map(|file| file.as_ref().map(AsFd::as_fd));
            let (group, death_signal) = (Some(group.as_fd()), death_signal.map(Signal::as_raw));
            Program { arguments: &arguments, group, death_signal, stdio }
                .start()
                .map(|started| ((started, watch, Some(supervisor)), view))
                .map_err(StartError::Command)
        };
        let body = move || {
            let (started, view) =
                start().map_or_else(|error| (Err(error), None), |(started, view)| (Ok(started), view));
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
        // The view takes its time, on another processor if there is one.
        let walker = meanwhile();
        look(walker.as_ref(), &still, &look_around);
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
            watch.take_loaded(walker);
        }
        Ok(Self { started, watch, supervisor, release: Some(release), thread: Some(thread), looked: None })
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

    /// Answers one of the calls that reach outside; until then they wait. Before anything passes, it is looked whether the transaction, as `record` has it, can
    /// still be committed. A look that takes long is not taken again at once.
    pub fn answer_one(&mut self, when: WhenUnsupported, record: Option<&Record>) -> io::Result<Answered> {
        let Some(supervisor) = self.supervisor.as_mut() else { return Ok(Answered::Done) };
        let (watch, looked) = (self.watch.as_ref(), &mut self.looked);
        let mut lost = || {
            let record = record?;
            if looked.is_some_and(|(end, took)| end.elapsed() < took * PAUSE_OF_LOOKS) {
                return None;
            }
            let begun = Instant::now();
            let conflict = conflict_now(record, watch);
            *looked = Some((Instant::now(), begun.elapsed()));
            conflict.map(|conflict| conflict.to_string())
        };
        supervisor.answer_one(when, &mut lost)
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
        // Its thread has nothing to do any more, and ends by itself.
        drop((self.release.take(), self.thread.take()));
        let exited = status.exit_status().and_then(|code| u8::try_from(code).ok()).map(Ended::Exited);
        let ended = exited.unwrap_or_else(|| Ended::Killed(status.terminating_signal().unwrap_or(0)));
        let passed = self.supervisor.take().map(Supervisor::into_passed).unwrap_or_default();
        Ok(Rest { ended, watch: self.watch.take(), passed })
    }
}

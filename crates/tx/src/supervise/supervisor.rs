//! Answering the calls of a transaction's processes.

use super::bystanders::Bystanders;
use super::fifos::{Fifos, Opened};
use super::filtered::Filtered;
use super::held_signals::HeldSignals;
use super::object;
use super::policy::{Network, of};
use super::reached::Reached;
use super::surroundings::Surroundings;
use super::verdict::{Outside, Verdict};
use super::writes::KernelWrites;
use crate::state::mount_space::MountSpace;
use crate::state::record::Record;
use crate::validate::abort_reason::AbortReason;
use pando_kernel::process;
use pando_kernel::seccomp::notify::{Answer, Listener};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// No more addresses than this are kept; more of them say nothing new.
const MOST_CONNECTIONS: usize = 1000;

/// What is done when a transaction does what cannot be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnsupported {
    /// It is not done, and the transaction is aborted.
    Abort,
    /// It is not done, which is told; the command goes on.
    Refuse,
    /// It is done, and told.
    Warn,
}

/// Something that cannot be a part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The name of the system call.
    pub call: &'static str,
    /// The pid of who made it.
    pub pid: i32,
    /// The name of its program.
    pub program: String,
    /// What the call is about, where it is about one thing.
    pub object: Option<String>,
    /// Whether it was done, where that does not depend on what is to be done about such calls.
    pub was_done: Option<bool>,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, pid, program, object, .. } = self;
        write!(out, "{call} by process {pid}")?;
        if !program.is_empty() {
            write!(out, " ({program})")?;
        }
        if let Some(object) = object {
            write!(out, ", of {object},")?;
        }
        write!(out, " cannot be a part of a transaction")
    }
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It happened, or is held.
    Done,
    /// It cannot be a part of the transaction.
    Unsupported(Unsupported),
    /// It would have reached outside, and the transaction cannot be committed any more.
    Lost(AbortReason),
}

/// Answers the calls that are caught.
#[derive(Debug)]
pub struct Supervisor {
    listener: Listener,
    /// The line of /proc/PID/cgroup of who is inside.
    pub(super) group: String,
    /// The mount namespace of the view.
    pub(super) view: MountSpace,
    /// The list of the view's mounts (/proc/PID/mountinfo).
    pub(super) mounts: Option<File>,
    pub(super) surroundings: Surroundings,
    pub(super) network: Network,
    /// The transaction's directory, where signals are written down if another process will commit.
    noted_in: Option<PathBuf>,
    held: HeldSignals,
    /// Whether signals to others wait for the commit. Otherwise they are no part of the transaction.
    pub(super) holds_signals: bool,
    reached: Reached,
    pub(super) bystanders: Bystanders,
    /// Paths that were looked up in the view to watch what is there.
    places: BTreeSet<PathBuf>,
}

/// What reached outside, or is to.
#[derive(Debug, Default)]
pub struct Passed {
    /// Signals that wait for the commit.
    pub held: HeldSignals,
    /// What was reached at once.
    pub reached: Reached,
    /// Paths that Pando itself looked up in the view meanwhile.
    pub places: BTreeSet<PathBuf>,
    /// Where calls arrive: those of processes that go on are to be let through.
    pub listener: Option<Listener>,
    /// What heard of writes to files of the kernel's. Whoever closes it last waits for the kernel.
    pub hearing: Option<OwnedFd>,
}

impl AsFd for Supervisor {
    /// Readable when a call waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Supervisor {
    /// One for the processes in the group at `group`. The calling thread must be in the view. Who listens without a
    /// file is told [later](Self::beside).
    pub(crate) fn new(listener: Listener, group: &Path, network: Network) -> io::Result<Self> {
        let view = MountSpace::of("/proc/thread-self/ns/mnt")?;
        let mounts = File::open("/proc/thread-self/mountinfo").ok();
        Ok(Self { mounts, ..Self::over(listener, group, network, view, Surroundings::new(None)) })
    }

    /// One for the processes of a transaction whose view another process holds; they catch their calls by the program
    /// of [`filter`](super::filter). `bystanders` are those from before there were any.
    pub fn of(record: &Record, listener: Listener, network: Network, bystanders: Bystanders) -> io::Result<Self> {
        let (view, mounts) = record.holder().opened(|pid| {
            let mounts = File::open(format!("/proc/{pid}/mountinfo")).ok();
            Ok((MountSpace::of(&format!("/proc/{pid}/ns/mnt"))?, mounts))
        })?;
        let surroundings = Surroundings::new(record.target.as_ref());
        let supervisor = Self::over(listener, &record.group, network, view, surroundings);
        Ok(Self { mounts, ..supervisor }.beside(bystanders))
    }

    fn over(listener: Listener, group: &Path, network: Network, view: MountSpace, surroundings: Surroundings) -> Self {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // The last two names tell it from every other group; what stands before them depends on where the hierarchy is
        // mounted.
        let around = group.parent().map(name).unwrap_or_default();
        let group = format!("/{around}/{}", name(group));
        let (held, reached, bystanders) = (HeldSignals::default(), Reached::default(), Bystanders::default());
        listener.take_turns();
        Self {
            listener,
            group,
            view,
            mounts: None,
            surroundings,
            network,
            noted_in: None,
            held,
            holds_signals: true,
            reached,
            bystanders,
            places: BTreeSet::new(),
        }
    }

    /// The processes that it answers.
    pub(crate) fn filtered(&self) -> io::Result<Filtered> {
        Ok(Filtered { listener: self.listener.duplicate()?, view: self.view.duplicate()? })
    }

    /// The same beside these.
    pub(crate) fn beside(self, bystanders: Bystanders) -> Self {
        Self { bystanders, ..self }
    }

    /// The same, of which no signals to others wait for the commit.
    pub(crate) fn holding_no_signals(self) -> Self {
        Self { holds_signals: false, ..self }
    }

    /// Signals are written down in a transaction's directory from now on, for whoever commits it.
    pub fn noting_in(self, directory: &Path) -> Self {
        Self { noted_in: Some(directory.to_owned()), ..self }
    }

    /// Answers one call that waits. `lost` says, before anything reaches outside, what has doomed the transaction; it
    /// is told what Pando itself has looked up in the view.
    pub fn answer_one(
        &mut self,
        when: WhenUnsupported,
        lost: &mut dyn FnMut(&BTreeSet<PathBuf>) -> Option<AbortReason>,
    ) -> io::Result<Answered> {
        let Some(call) = self.listener.receive()? else { return Ok(Answered::Done) };
        let Some(caught) = of(call.number, call.older) else {
            self.listener.answer(&call, Answer::Continue)?;
            return Ok(Answered::Done);
        };
        let verdict = self.verdict(&call, caught);
        // What was looked up by its pid was its own only if it waits still: another may have that pid by now.
        if !self.listener.still_waits(&call) {
            return Ok(Answered::Done);
        }
        let reaches_out = matches!(verdict, Verdict::Outside(_))
            || matches!(verdict, Verdict::Unsupported(_)) && when == WhenUnsupported::Warn;
        if reaches_out {
            self.settle();
            if let Some(what) = lost(&self.places) {
                self.listener.answer(&call, Answer::Fail(libc::EPERM))?;
                return Ok(Answered::Lost(what));
            }
        }
        match verdict {
            Verdict::Inside => self.listener.answer(&call, Answer::Continue)?,
            Verdict::Fails(errno) => self.listener.answer(&call, Answer::Fail(errno))?,
            Verdict::Outside(passed) => {
                passed.into_iter().for_each(|one| self.has_passed(one));
                self.listener.answer(&call, Answer::Continue)?;
            }
            Verdict::Hold { process, pid, signal } => {
                let is_held = match &self.noted_in {
                    Some(directory) => HeldSignals::note(directory, pid, signal)?,
                    None => self.held.keep(process, signal),
                };
                // What the kernel says of signals that there is no room for.
                let answer = if is_held { Answer::Return(0) } else { Answer::Fail(libc::EAGAIN) };
                self.listener.answer(&call, answer)?;
            }
            Verdict::Unsupported(object) => {
                let program = process::describe(call.pid).map(|found| found.command).unwrap_or_default();
                let answer = match when {
                    WhenUnsupported::Abort | WhenUnsupported::Refuse => Answer::Fail(libc::EPERM),
                    WhenUnsupported::Warn => Answer::Continue,
                };
                // It still waits, so that what is read of it is its own.
                let object = object.or_else(|| object::of(&call, caught.name));
                self.listener.answer(&call, answer)?;
                let was_done = None;
                return Ok(Answered::Unsupported(Unsupported {
                    call: caught.name,
                    pid: call.pid,
                    program,
                    object,
                    was_done,
                }));
            }
        }
        Ok(Answered::Done)
    }

    /// Readable when somebody has [opened](Self::opened) what leads outside.
    pub fn openings(&self) -> Option<BorrowedFd<'_>> {
        self.bystanders.fifos.as_ref().map(AsFd::as_fd)
    }

    /// Waits until all is known that leads outside by being opened.
    pub fn settle(&mut self) {
        if let Some(fifos) = &mut self.bystanders.fifos {
            self.places = fifos.found().clone();
        }
    }

    /// What was opened that leads outside, or would but for the view.
    pub fn opened(&mut self) -> io::Result<Vec<Unsupported>> {
        let opened = self.bystanders.fifos.as_mut().map(Fifos::opened).transpose()?.unwrap_or_default();
        // Nobody else is in the view; what is bound in others open as well.
        let inside = opened.into_iter().filter(|one| !one.is_outside || self.is_inside(one.pid));
        let unsupported = |one: Opened| Unsupported {
            call: "open",
            pid: one.pid,
            program: process::describe(one.pid).map(|found| found.command).unwrap_or_default(),
            object: Some(format!("fifo {}", one.path.display().to_string().escape_debug())),
            was_done: Some(one.is_outside),
        };
        Ok(inside.map(unsupported).collect())
    }

    fn has_passed(&mut self, one: Outside) {
        let Reached { connections, sockets, .. } = &mut self.reached;
        match one {
            Outside::Machine(address) if connections.len() < MOST_CONNECTIONS => drop(connections.insert(address)),
            Outside::Socket(path) if sockets.len() < MOST_CONNECTIONS => drop(sockets.insert(path)),
            Outside::Machine(_) | Outside::Socket(_) => {}
        }
    }

    /// What was reached outside so far. What was written to files of the kernel's is told once.
    pub fn reached(&self) -> Reached {
        let written = self.bystanders.writes.as_ref().map(KernelWrites::read).unwrap_or_default();
        let mut reached = self.reached.clone();
        reached.written.extend(written);
        reached
    }

    /// What reached outside, or is to.
    pub fn into_passed(self) -> Passed {
        let reached = self.reached();
        let Self { held, places, listener, bystanders, .. } = self;
        let hearing = bystanders.writes.map(OwnedFd::from);
        Passed { held, reached, places, listener: Some(listener), hearing }
    }
}

//! Answering for a command in a guest, which is started by the daemon and hands over where its calls arrive before it
//! is executed.
//!
//! ```text
//!   the command, before it is executed ── where its calls wait ──▶ socket ─▶ thread: takes that, and answers,
//!                                                                            │      until the command has ended
//!                                                                            └─▶ what cannot be undone: ends the
//!                                                                                transaction's processes
//! ```

use super::heed::{Stopped, heed};
use anyhow::Context;
use pando_guest::shim::{FIRST_LOOKED_UP, LONGEST_LOOKED_UP};
use pando_kernel::{process::pidfd, socket::packet, trace::foreign_memory};
use pando_tx::{
    Answered, Bystanders, Listener, Looks, Network, OverlayPart, Passed, Record, StateDirectory, Supervisor,
    WhenUnsupported,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// How a command is answered for.
pub(super) struct Manner {
    pub(super) network: Network,
    pub(super) when: WhenUnsupported,
    /// Its signals are written down, for whoever commits.
    pub(super) note_signals: bool,
    /// Before anything passes outside it is looked whether it can still be committed.
    pub(super) looks: bool,
}

/// A command that is answered for, as long as this lives.
pub(super) struct Supervised {
    /// Closed to end the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<io::Result<Heard>>>,
}

/// What was heard of a command.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) passed: Passed,
    pub(super) stopped: Option<Stopped>,
}

impl Drop for Supervised {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Supervised {
    /// Begins to wait for the command that is to come; the other end of the socket is for it.
    pub(super) fn begin(home: &StateDirectory, record: &Record, manner: Manner) -> anyhow::Result<(Self, OwnedFd)> {
        let (ours, theirs) = packet::pair().context("cannot make a socket for the command's calls")?;
        packet::tell_senders(&ours).context("cannot make a socket for the command's calls")?;
        let (stopped, stop) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("cannot make a pipe")?;
        // From before the command, which may listen itself.
        let bystanders = Bystanders::of(record);
        let (home, record) = (home.clone(), record.clone());
        let answer = move || Answering { home, record, manner, stopped }.run(&ours, bystanders);
        let thread = std::thread::Builder::new().name("pando-answers".into()).spawn(answer);
        let thread = thread.context("cannot start a thread that answers for the command")?;
        Ok((Self { stop: Some(stop), thread: Some(thread) }, theirs))
    }

    /// The command has ended: what was heard of it.
    pub(super) fn end(mut self) -> anyhow::Result<Heard> {
        drop(self.stop.take());
        let thread = self.thread.take().context("nobody answers for the command any more")?;
        let heard = thread.join().map_err(|_| anyhow::anyhow!("the thread that answers for the command panicked"))?;
        heard.context("cannot answer for the command")
    }
}

/// The path of what a command is to look up first on the file system of a part, as it is told that.
fn looked_up_on(part: &OverlayPart) -> io::Result<Vec<u8>> {
    let path = [part.live.as_os_str().as_bytes(), FIRST_LOOKED_UP.to_bytes_with_nul()].concat();
    let is_short = path.len() <= LONGEST_LOOKED_UP;
    is_short.then_some(path).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))
}

/// The thread.
struct Answering {
    home: StateDirectory,
    record: Record,
    manner: Manner,
    stopped: OwnedFd,
}

impl Answering {
    fn run(self, socket: &OwnedFd, bystanders: Bystanders) -> io::Result<Heard> {
        let Some(listener) = self.listener(socket)? else { return Ok(Heard::default()) };
        pando_tx::note_canary(&self.home, &self.record, FIRST_LOOKED_UP)?;
        let supervisor = Supervisor::of(&self.record, listener, self.manner.network, bystanders)?;
        let mut supervisor = match self.manner.note_signals {
            true => supervisor.noting_in(&self.home.of(&self.record.name)),
            false => supervisor,
        };
        let stopped = self.answer(&mut supervisor).inspect_err(|_| self.end_processes())?;
        let passed = supervisor.into_passed();
        pando_tx::note_reached(&self.home, &self.record, &passed).map_err(io::Error::other)?;
        Ok(Heard { passed, stopped })
    }

    /// What the command sends before it is executed; nothing if that never comes.
    fn listener(&self, socket: &OwnedFd) -> io::Result<Option<Listener>> {
        if self.wait([Some(socket.as_fd())])? != [true] {
            return Ok(None);
        }
        let mut number = [0; 4];
        let (length, pid) = packet::receive_from(socket, &mut number)?;
        if length != number.len() {
            return Ok(None);
        }
        // It waits, so that the pid is its own.
        let listener = foreign_memory::descriptor(pidfd::open(pid)?, i32::from_ne_bytes(number))?;
        // The kernel forgets what was looked up on each file system by itself.
        for part in self.record.parts.iter().filter(|part| part.live != Path::new("/")) {
            packet::send(socket, &looked_up_on(part)?, &[])?;
        }
        packet::send(socket, b"k", &[])?;
        Ok(Some(listener.into()))
    }

    /// Answers until the command has ended, or is not to go on.
    fn answer(&self, supervisor: &mut Supervisor) -> io::Result<Option<Stopped>> {
        // One that is entered is not stopped.
        let mut looks = Looks::default();
        let mut doomed = |places: &BTreeSet<PathBuf>| {
            let doomed = pando_tx::doomed_open(&self.home, &self.record.name).filter(|_| !self.manner.note_signals);
            let mut look = || looks.look_at_open(&self.home, &self.record, places);
            doomed.or_else(|| if self.manner.looks { look() } else { None })
        };
        loop {
            let [called, opened] = self.wait([Some(supervisor.as_fd()), supervisor.openings()])?;
            let ends = !called && !opened;
            if ends {
                supervisor.settle();
            }
            // What the command has opened before its end is there with that.
            let mut answered: Vec<Answered> = supervisor.opened()?.into_iter().map(Answered::Unsupported).collect();
            if called {
                answered.push(supervisor.answer_one(self.manner.when, &mut doomed)?);
            }
            if let Some(stopped) = answered.into_iter().find_map(|one| heed(one, self.manner.when)) {
                self.end_processes();
                return Ok(Some(stopped));
            }
            if ends {
                return Ok(None);
            }
        }
    }

    /// Who waits for the command sees its end.
    fn end_processes(&self) {
        let _ = pando_tx::end_processes_of_open(&self.record);
    }

    /// Waits for something to read; what there is. Nothing, if this is to stop, or what is waited for has no other end
    /// any more.
    fn wait<const COUNT: usize>(&self, awaited: [Option<BorrowedFd<'_>>; COUNT]) -> io::Result<[bool; COUNT]> {
        // What is not there is stood in for by what wakes it up in any case.
        let mut fds: Vec<_> = awaited
            .iter()
            .map(|fd| PollFd::from_borrowed_fd(fd.unwrap_or(self.stopped.as_fd()), PollFlags::IN))
            .collect();
        fds.push(PollFd::new(&self.stopped, PollFlags::IN));
        loop {
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled?,
            };
            return Ok(std::array::from_fn(|number| fds[number].revents().contains(PollFlags::IN)));
        }
    }
}

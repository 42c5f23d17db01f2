//! The signals that this program gets for the process it stands for.

use crate::client::Client;
use crate::replies::Done;
use crate::state_root::StateRoot;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pando_api::{Method, ProcessNotice};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Passed on to the process.
const FORWARDED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];
/// `SI_KERNEL`, the sender of signals of a terminal.
const KERNEL: i32 = 0x80;
/// The most that wait for the process to run; more of the same say nothing new.
const MOST_WAITING: usize = 16;

/// Those of them that ask a program to end.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// How long a process that was asked to end may take to begin, so that it can be told.
const BEGINNING: Duration = Duration::from_secs(10);

/// What a signal asks of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Resize,
    Suspend,
    Forward(i32),
    /// The terminal sent it, to everybody in its foreground: who shares that with this program has it already.
    FromTerminal(i32),
}

/// The signals as a descriptor that poll(2) waits for: blocked, they can neither end this program past its drops nor
/// interrupt it.
pub(crate) struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Blocks the signals from now on; with a terminal also those about its size and job control.
    pub(crate) fn take(terminal: bool) -> Result<Self, nix::Error> {
        let mut set = SigSet::empty();
        set.extend(FORWARDED);
        if terminal {
            set.extend([Signal::SIGWINCH, Signal::SIGTSTP]);
        }
        set.thread_block()?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { descriptor })
    }

    /// The next one that has come.
    pub(crate) fn next(&mut self) -> Option<Asked> {
        let came = self.descriptor.read_signal().ok().flatten()?;
        let signal = came.ssi_signo.cast_signed();
        Some(match Signal::try_from(signal) {
            Ok(Signal::SIGWINCH) => Asked::Resize,
            Ok(Signal::SIGTSTP) => Asked::Suspend,
            _ if came.ssi_code == KERNEL => Asked::FromTerminal(signal),
            _ => Asked::Forward(signal),
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Brings signals to the process: over a connection of its own, because the first one is busy until the process has
/// ended.
pub(crate) struct Forwarder {
    root: StateRoot,
    client: Option<Client>,
    waiting: Vec<i32>,
    /// Until when the process is to begin that was asked to end.
    until: Option<Instant>,
}

impl Forwarder {
    pub(crate) fn new(root: &StateRoot) -> Self {
        Self { root: root.clone(), client: None, waiting: Vec::new(), until: None }
    }

    /// Sends `signal` to the process, or keeps it until there is one.
    pub(crate) fn forward(&mut self, signal: i32, process: Option<&ProcessNotice>) {
        if self.waiting.len() < MOST_WAITING {
            self.waiting.push(signal);
        }
        match process {
            Some(process) => self.deliver(process),
            // Who asks twice does not want to wait.
            None if ENDING.iter().any(|ending| *ending as i32 == signal) => {
                let patience = if self.until.is_some() { Duration::ZERO } else { BEGINNING };
                self.until = Some(Instant::now() + patience);
            }
            None => {}
        }
    }

    /// How much longer a process that was asked to end is waited for before it has begun.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Sends what waits. A failure is told and no more: the process may have ended at this moment.
    pub(crate) fn deliver(&mut self, process: &ProcessNotice) {
        self.until = None;
        for signal in std::mem::take(&mut self.waiting) {
            if let Err(error) = self.send(signal, process) {
                eprintln!("pando: signal {signal} was not delivered: {}", crate::complaint::sentences(&error));
                self.client = None;
            }
        }
    }

    fn send(&mut self, signal: i32, process: &ProcessNotice) -> anyhow::Result<()> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.root.socket())?,
        };
        // Answers are not waited for: a daemon that hangs must not take the terminal with it. Nor do they say more than
        // the exit will.
        while let Ok(Some(_)) = client.receive_now::<Done>() {}
        let (name, pid) = (process.guest.clone(), process.pid);
        client.send(Method::Signal { name, pid, signal }, false, Vec::new())?;
        self.client = Some(client);
        Ok(())
    }
}

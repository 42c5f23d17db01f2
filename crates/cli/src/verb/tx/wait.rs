//! Waiting for a command that runs in a transaction, and for the signals that are meant for it.

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pando_tx::{Rest, Running, Unsupported, WhenUnsupported};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Signals that would end this program, and are the command's to answer.
const PASSED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

/// `SI_KERNEL`: a terminal sent it, and to the command as well.
const FROM_TERMINAL: i32 = 0x80;

/// The signals, blocked from now on: none can end this program between two of its steps.
pub(super) struct Signals(SignalFd);

impl Signals {
    pub(super) fn take() -> anyhow::Result<Self> {
        let mut set = SigSet::empty();
        set.extend(PASSED);
        set.thread_block().context("cannot block signals")?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
        Ok(Self(descriptor.context("cannot listen for signals")?))
    }

    /// Waits for the command's end, and answers for what it does outside meanwhile.
    pub(super) fn wait(
        &mut self,
        mut running: Running,
        limit: Option<Duration>,
        when: WhenUnsupported,
    ) -> anyhow::Result<Waited> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Waited::TooLong);
            }
            let [ended, signalled, called] = self.poll(&running, left)?;
            if signalled {
                self.pass(&running);
            }
            if called && let Some(supervisor) = running.supervisor() {
                let unsupported = supervisor.answer_one(when).context("cannot answer for the command")?;
                match unsupported {
                    Some(unsupported) if when == WhenUnsupported::Abort => return Ok(Waited::Unsupported(unsupported)),
                    Some(unsupported) => eprintln!("pando: warning: {unsupported}; it was done"),
                    None => {}
                }
            }
            if ended {
                return Ok(Waited::Ended(running.wait()?));
            }
        }
    }

    /// What there is: an end, a signal, a call.
    fn poll(&self, running: &Running, left: Option<Duration>) -> anyhow::Result<[bool; 3]> {
        let seconds = |left: Duration| left.as_secs().cast_signed();
        let left = left.map(|left| Timespec { tv_sec: seconds(left), tv_nsec: left.subsec_nanos().into() });
        let waited_for = [Some(running.as_fd()), Some(self.0.as_fd()), running.calls()];
        let fds = waited_for.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut fds: Vec<_> = fds.collect();
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for the command"),
        }
        let is = |number: usize, flag| fds.get(number).is_some_and(|fd| fd.revents().contains(flag));
        Ok([is(0, PollFlags::IN), is(1, PollFlags::IN), is(2, PollFlags::IN)])
    }

    /// Passes on what was meant for the command.
    fn pass(&self, running: &Running) {
        while let Ok(Some(signal)) = self.0.read_signal() {
            if signal.ssi_code != FROM_TERMINAL {
                running.signal(signal.ssi_signo.cast_signed());
            }
        }
    }
}

/// What came of waiting.
pub(super) enum Waited {
    /// The command has ended.
    Ended(Rest),
    /// It has not, in time.
    TooLong,
    /// It did what cannot be undone.
    Unsupported(Unsupported),
}

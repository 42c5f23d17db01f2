//! Waiting for a command that runs in a transaction, and for the signals that are meant for it.

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pando_tx::{Ended, Running, Watch};
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

    /// Waits for the command's end; `None` if it has not ended in time.
    pub(super) fn wait(
        &mut self,
        running: Running,
        limit: Option<Duration>,
    ) -> anyhow::Result<Option<(Ended, Option<Watch>)>> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let left =
                left.map(|left| Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() });
            let mut fds =
                [PollFd::new(&running, PollFlags::IN), PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno).context("cannot wait for the command"),
            }
            let ended = !fds[0].revents().is_empty();
            while let Ok(Some(signal)) = self.0.read_signal() {
                if signal.ssi_code != FROM_TERMINAL {
                    running.signal(signal.ssi_signo.cast_signed());
                }
            }
            if ended {
                return Ok(Some(running.wait()?));
            }
        }
    }
}

//! Waiting for a command that runs in a transaction, and for the signals that are meant for it.

use super::heed::{Stopped, heed};
use crate::complaint::OWN_FAILURE;
use crate::session::signals::{Asked, Signals};
use anyhow::Context;
use pando_tx::{Answered, Attempt, Ended, Passed, Reached, Rest, Running, Transaction, Watch, WhenUnsupported};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How often it is looked whether a command outgrows the memory that its changes are kept in.
const LOOK: Duration = Duration::from_millis(20);

/// What comes of waiting for an answer.
pub(super) enum Line {
    Text(String),
    /// There will be none.
    End,
    /// A signal is to end this program.
    Signal(i32),
}

/// The signals that end a program which does nothing about them.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// What waits for a command: the signals that this program gets are the command's to answer.
pub(super) struct Waiting(Signals);

impl Waiting {
    pub(super) fn take() -> anyhow::Result<Self> {
        Ok(Self(Signals::take(false).context("cannot take over the signals")?))
    }

    /// [Waits](wait) for the command's end. The signals that come meanwhile are passed on.
    pub(super) fn wait(
        &mut self,
        running: Running,
        limit: Option<Duration>,
        when: WhenUnsupported,
        transaction: Option<&Transaction>,
    ) -> anyhow::Result<Waited> {
        wait(self, running, limit, when, transaction)
    }

    /// Waits for some time, while no command runs; a signal that is to end this program ends that, and is the answer.
    pub(super) fn rest(&mut self, span: Duration) -> anyhow::Result<Option<i32>> {
        let deadline = Instant::now() + span;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno).context("cannot wait"),
            }
            if let Some(signal) = self.ending() {
                return Ok(Some(signal));
            }
        }
    }

    /// A line of the standard input, which is a terminal.
    pub(super) fn line(&mut self) -> anyhow::Result<Line> {
        const LONGEST: usize = 4096;
        let input = std::io::stdin();
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&input, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno).context("cannot wait for an answer"),
            }
            let is_answered = !fds[1].revents().is_empty();
            if let Some(signal) = self.ending() {
                return Ok(Line::Signal(signal));
            }
            if is_answered {
                let mut bytes = [0; LONGEST];
                // A terminal gives a line at a time; one that has hung up gives an error.
                return Ok(match rustix::io::read(&input, &mut bytes) {
                    Ok(count @ 1..) => Line::Text(String::from_utf8_lossy(&bytes[..count]).into_owned()),
                    Ok(0) | Err(_) => Line::End,
                });
            }
        }
    }

    /// A signal that has come and is to end this program.
    fn ending(&mut self) -> Option<i32> {
        while let Some(asked) = self.0.next() {
            if let Asked::Forward(signal) | Asked::FromTerminal(signal) = asked
                && ENDING.iter().any(|ending| ending.as_raw() == signal)
            {
                return Some(signal);
            }
        }
        None
    }
}

/// Where signals for a command come from.
pub(super) trait Asker {
    /// Can be read when there is something.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Passes on what was meant for the command; whether anybody is interested in its end still.
    fn pass(&mut self, running: &Running) -> bool;
}

impl Asker for Waiting {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn pass(&mut self, running: &Running) -> bool {
        while let Some(asked) = self.0.next() {
            // What the terminal sent it has sent to the command as well.
            if let Asked::Forward(signal) = asked {
                running.signal(signal);
            }
        }
        true
    }
}

/// Waits for a command's end, and answers for what it does outside meanwhile. With its transaction it is stopped when
/// that is doomed or outgrows its memory.
pub(super) fn wait(
    asker: &mut impl Asker,
    mut running: Running,
    limit: Option<Duration>,
    when: WhenUnsupported,
    transaction: Option<&Transaction>,
) -> anyhow::Result<Waited> {
    let record = transaction.map(Transaction::record);
    let in_memory = transaction.filter(|one| one.is_in_memory());
    let deadline = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Waited::TooLong(running.reached()));
        }
        if in_memory.is_some_and(Transaction::outgrows_memory) {
            return Ok(Waited::Stopped(Stopped::Outgrown, running.reached()));
        }
        let pause = in_memory.map(|_| LOOK).into_iter().chain(left).min();
        let [ended, asked, called, opened] = happened(asker.descriptor(), &running, pause)?;
        if asked && !asker.pass(&running) {
            return Ok(Waited::Gone(running.reached()));
        }
        if called {
            let answered = running.answer_one(when, record).context("cannot answer for the command")?;
            if let Some(stopped) = heed(answered, when) {
                return Ok(Waited::Stopped(stopped, running.reached()));
            }
        }
        if ended {
            running.settle();
        }
        if opened || ended {
            let opened = running.opened().context("cannot hear of what the command opens")?;
            let mut heeded = opened.into_iter().map(|one| heed(Answered::Unsupported(one), when));
            if let Some(stopped) = heeded.find_map(|stopped| stopped) {
                return Ok(Waited::Stopped(stopped, running.reached()));
            }
        }
        if ended {
            return Ok(Waited::Ended(running.wait()?));
        }
    }
}

/// What there is: an end, something asked, a call, something that was opened. What a command has opened before its end
/// is there with that.
fn happened(asker: BorrowedFd<'_>, running: &Running, left: Option<Duration>) -> anyhow::Result<[bool; 4]> {
    let seconds = |left: Duration| left.as_secs().cast_signed();
    let left = left.map(|left| Timespec { tv_sec: seconds(left), tv_nsec: left.subsec_nanos().into() });
    let (calls, openings) = (running.calls(), running.openings());
    // In the place of what there is not its end is waited for twice.
    let end = running.as_fd();
    let waited_for = [end, asker, calls.unwrap_or(end), openings.unwrap_or(end)];
    let mut fds = waited_for.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno).context("cannot wait for the command"),
    }
    let [end, asked, call, opening] = fds.map(|fd| fd.revents());
    let is = |events: PollFlags| events.contains(PollFlags::IN);
    // Who has gone is told by more than words of his.
    Ok([is(end), !asked.is_empty(), calls.is_some() && is(call), openings.is_some() && is(opening)])
}

/// What came of waiting.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is taken apart at once")]
pub(super) enum Waited {
    /// The command has ended.
    Ended(Rest),
    /// It has not, in time. What it has reached outside until then.
    TooLong(Reached),
    /// It is not to go on. What it has reached outside until then.
    Stopped(Stopped, Reached),
    /// Nobody is interested any more. What it has reached outside until then.
    Gone(Reached),
}

/// What is left of a command beside how it ended.
pub(super) struct Left {
    pub(super) watch: Option<Watch>,
    pub(super) reached: Reached,
}

impl Waited {
    /// Whether the command has ended, and said that all is well.
    pub(super) fn has_succeeded(&self) -> bool {
        matches!(self, Self::Ended(Rest { ended: Ended::Exited(0), .. }))
    }

    /// Why its transaction is aborted.
    pub(super) fn why(&self) -> Attempt {
        let (code, words) = match self {
            Self::Ended(Rest { ended: Ended::Exited(code), .. }) => (*code, format!("exit code {code}")),
            Self::Ended(Rest { ended: ended @ Ended::Killed(signal), .. }) => {
                (ended.code(), format!("ended by {}", pando_kernel::process::signal::name(*signal)))
            }
            Self::TooLong(_) => (OWN_FAILURE, "it took too long".to_owned()),
            Self::Gone(_) => (OWN_FAILURE, "its user has gone".to_owned()),
            Self::Stopped(stopped, _) => return stopped.into(),
        };
        Attempt::Aborted(code, words)
    }

    pub(super) fn left(self) -> Left {
        match self {
            Self::Ended(Rest { watch, passed: Passed { reached, .. }, .. }) => Left { watch, reached },
            Self::TooLong(reached) | Self::Stopped(_, reached) | Self::Gone(reached) => Left { watch: None, reached },
        }
    }
}

//! The loop of `run`, `exec` and `shell`: one poll(2) over the daemon, the signals and the relays.

use super::detach_keys::DetachKeys;
use super::end::End;
use super::raw_mode::RawMode;
use super::relay::{Brought, Relay};
use super::signals::{Asked, Forwarder, Signals};
use super::stdio::Stdio;
use super::{TerminalOptions, master};
use crate::client::{Broken, Client};
use crate::replies::Noticed;
use crate::state_root::StateRoot;
use anyhow::{Context, bail};
use pando_api::{Method, Process, ProcessNotice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::stdio::{stdin, stdout};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long the first of the detach keys waits for the second before it is passed on.
const KEY_PATIENCE: Duration = Duration::from_secs(1);
/// How often a terminal that nobody has open is looked at again.
const REST: Duration = Duration::from_millis(50);
/// How long after the exit output may still be on its way through the terminal, when a process left behind keeps that
/// open.
const LAST_OUTPUT: Duration = Duration::from_millis(100);
/// How long after the exit output is waited for at all, and how much of it is read: a process left behind may never
/// stop writing. A pipe and a terminal hold no more than that, so of what the command printed nothing is lost. The time
/// in which a slow reader takes it does not count.
const LAST_READ: Duration = Duration::from_secs(3);
const LAST_BYTES: usize = 2 << 20;

/// Starts the process of `method` and stands for it until it has ended: the answer is its exit code.
pub(crate) fn attach(
    root: &StateRoot,
    options: TerminalOptions,
    process: Process,
    method: impl FnOnce(Process) -> Method,
) -> anyhow::Result<u8> {
    if let Some(call) = pando_front::handed_over() {
        let mut session = Session::resume(root, call, options.detach_keys)?;
        session.hear()?;
        let ended = session.carry();
        return end(session, ended);
    }
    attach_plainly(root, options, (None, None), process, method)
}

fn attach_plainly(
    root: &StateRoot,
    options: TerminalOptions,
    (beside, until): (Option<&OwnedFd>, Option<&OwnedFd>),
    mut process: Process,
    method: impl FnOnce(Process) -> Method,
) -> anyhow::Result<u8> {
    process.terminal = options.wanted();
    if process.terminal {
        let size = master::callers_size();
        (process.rows, process.columns) = (size.ws_row, size.ws_col);
        if let Ok(term) = std::env::var("TERM") {
            process.env.entry("TERM".to_owned()).or_insert(term);
        }
    }
    let given = (!process.terminal).then(Default::default);
    let method = method(process);
    converse_surely(root, Given { stdio: given.as_ref(), beside, until }, &options.detach_keys, &method)
}

/// The same for a process whose standard descriptors are not all the caller's: those that are given stand in the place
/// of his, and it has no terminal then. What is to go along `beside` them is the last of the call's descriptors. When
/// the other end of `until` is closed the process is waited for no longer.
pub(crate) fn attach_instead(
    root: &StateRoot,
    options: TerminalOptions,
    given: &[Option<File>; 3],
    (beside, until): (Option<&OwnedFd>, Option<&OwnedFd>),
    process: Process,
    method: impl FnOnce(Process) -> Method,
) -> anyhow::Result<u8> {
    if given.iter().all(Option::is_none) {
        return attach_plainly(root, options, (beside, until), process, method);
    }
    converse_surely(root, Given { stdio: Some(given), beside, until }, &options.detach_keys, &method(process))
}

/// Descriptors for a call.
#[derive(Clone, Copy)]
struct Given<'a> {
    /// Those that stand in the place of the caller's own; `None` for a process that gets a terminal.
    stdio: Option<&'a [Option<File>; 3]>,
    /// One that goes along.
    beside: Option<&'a OwnedFd>,
    /// One whose other end is closed when nobody is to wait any longer.
    until: Option<&'a OwnedFd>,
}

/// Makes a call, once more if the daemon ended before it had read it, and carries for it to its end.
fn converse_surely(root: &StateRoot, given: Given<'_>, keys: &DetachKeys, method: &Method) -> anyhow::Result<u8> {
    let (session, ended) = match converse(root, given, keys, method) {
        // The next daemon has never heard of it, and nothing that was typed is lost.
        Err(error) if error.is::<Broken>() && given.stdio.is_some() => converse(root, given, keys, method)?,
        other => other?,
    };
    end(session, ended)
}

/// Makes a call, and carries for it to its end. [`Broken::Unread`] is an error of its own where the call can be made
/// again. Without descriptors, given or the caller's own, the process gets a terminal.
fn converse(
    root: &StateRoot,
    given: Given<'_>,
    keys: &DetachKeys,
    method: &Method,
) -> anyhow::Result<(Session, anyhow::Result<Ended>)> {
    let (mut session, descriptors) = Session::prepare(root, given, keys.clone())?;
    let ended = session.client.send(method.clone(), true, descriptors).and_then(|()| session.carry());
    match ended {
        Err(error) if matches!(error.downcast_ref(), Some(Broken::Unread)) && session.inward.is_empty() => {
            Err(Broken::Unread.into())
        }
        ended => Ok((session, ended)),
    }
}

fn end(mut session: Session, ended: anyhow::Result<Ended>) -> anyhow::Result<u8> {
    // The terminal is as it was before anything is said on it.
    let (notice, master, note) = (session.notice.take(), session.master.take(), session.note.take());
    let outward = std::mem::take(&mut session.outward);
    drop(session);
    match (ended?, notice) {
        (Ended::Exited(code), _) => {
            let left = outward.into_iter().filter(Relay::is_lasting).filter_map(Relay::leave);
            left.into_iter().try_for_each(|(source, sink)| crate::verb::carry_on(source, sink).map(drop))?;
            if let Some(note) = note {
                eprintln!("pando: {}", crate::printable::printable(&note));
            }
            Ok(code)
        }
        (Ended::Detached, notice) => {
            let master = master.expect("only a terminal has keys to detach");
            crate::verb::hold(master)?;
            let name = notice.map_or_else(|| "the guest".to_owned(), |notice| format!("guest '{}'", notice.guest));
            eprintln!("\r\nDetached from {name}: it goes on running. `pando ls` shows it, `pando kill` ends it.");
            Ok(0)
        }
    }
}

/// How a session ends without an error.
enum Ended {
    Exited(u8),
    Detached,
}

struct Session {
    client: Client,
    signals: Signals,
    forwarder: Forwarder,
    keys: Option<DetachKeys>,
    /// Where the master of the guest's terminal will arrive.
    arrival: Option<UnixStream>,
    master: Option<OwnedFd>,
    raw: Option<RawMode>,
    inward: Vec<Relay>,
    outward: Vec<Relay>,
    notice: Option<ProcessNotice>,
    /// Whose other end is closed when nobody is to wait any longer.
    until: Option<OwnedFd>,
    /// The exit code.
    exit: Option<u8>,
    /// What the daemon says about it.
    note: Option<String>,
    /// How long output was waited for since, all in all.
    quiet: Duration,
}

/// What poll(2) waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Daemon,
    Signals,
    Arrival,
    Over,
    ReadInward(usize),
    WriteInward(usize),
    ReadOutward(usize),
    WriteOutward(usize),
}

impl Session {
    /// Everything ready for the call, and the descriptors that go with it.
    fn prepare(root: &StateRoot, given: Given<'_>, keys: DetachKeys) -> anyhow::Result<(Self, Vec<OwnedFd>)> {
        let (stdio, arrival) = match given.stdio {
            None => {
                let (ours, guests) = UnixStream::pair().context("cannot make a socket for the terminal")?;
                let descriptors = vec![guests.into()];
                (Stdio { descriptors, inward: Vec::new(), outward: Vec::new() }, Some(ours))
            }
            Some(given) => (Stdio::of_caller_but(given)?, None),
        };
        // The daemon may have to be started: before the signals are blocked, so that ctrl-C ends the wait.
        let client = crate::daemon_start::connected(root)?;
        let session = Self::new(root, client, given.stdio.is_none(), keys)?;
        let Stdio { mut descriptors, inward, outward } = stdio;
        let beside = given.beside.map(|fd| fcntl_dupfd_cloexec(fd, 3)).transpose();
        descriptors.extend(beside.context("cannot pass a descriptor on")?);
        let until = given.until.map(|fd| fcntl_dupfd_cloexec(fd, 3)).transpose().context("cannot keep a descriptor")?;
        Ok((Self { arrival, inward, outward, until, ..session }, descriptors))
    }

    /// One whose call was made before this program had begun.
    fn resume(root: &StateRoot, call: pando_front::Call, keys: DetachKeys) -> anyhow::Result<Self> {
        let client = Client::after(call.socket.into(), call.heard).context("cannot go on with the call")?;
        Self::new(root, client, false, keys)
    }

    fn new(root: &StateRoot, client: Client, terminal: bool, keys: DetachKeys) -> anyhow::Result<Self> {
        let signals = Signals::take(terminal).map_err(std::io::Error::from).context("cannot take over the signals")?;
        Ok(Self {
            client,
            signals,
            forwarder: Forwarder::new(root),
            keys: Some(keys),
            arrival: None,
            master: None,
            raw: None,
            inward: Vec::new(),
            outward: Vec::new(),
            notice: None,
            until: None,
            exit: None,
            note: None,
            quiet: Duration::ZERO,
        })
    }

    /// Carries until the process has ended and its output is written.
    fn carry(&mut self) -> anyhow::Result<Ended> {
        loop {
            if let Some(code) = self.exit {
                let late = self.quiet > LAST_READ;
                self.outward.iter_mut().filter(|relay| late || relay.is_resting()).for_each(Relay::end);
                if self.outward.iter().all(Relay::is_done) {
                    return Ok(Ended::Exited(code));
                }
            }
            let (since, writes) = (Instant::now(), self.writes());
            let ready = self.wait()?;
            if self.exit.is_some() && !writes {
                self.quiet += since.elapsed();
            }
            match self.exit {
                // Nothing came for a while, and a process that was left behind may keep the output open for ever.
                Some(code) if ready.is_empty() => return Ok(Ended::Exited(code)),
                None if ready.is_empty() => self.wake(),
                _ => {}
            }
            for source in ready {
                if let Some(ended) = self.serve(source)? {
                    return Ok(ended);
                }
            }
            if self.forwarder.patience() == Some(Duration::ZERO) {
                bail!("the command has not begun, and is waited for no longer; it may begin later");
            }
            if self.master.is_some() && self.outward.iter().any(Relay::is_broken) {
                self.hang_up();
            }
        }
    }

    /// Whether output waits to be written.
    fn writes(&self) -> bool {
        self.outward.iter().any(|relay| relay.writable().is_some())
    }

    /// Nobody reads what the terminal shows any more. The command learns of it as of every terminal that is gone: by
    /// SIGHUP.
    fn hang_up(&mut self) {
        (self.master, self.raw) = (None, None);
        self.inward.clear();
        self.outward.clear();
    }

    /// Sleeps until something can be done; empty when a patience ran out.
    fn wait(&self) -> anyhow::Result<Vec<Source>> {
        let mut watched = Vec::with_capacity(8);
        if self.exit.is_none() {
            watched.push((Source::Daemon, self.client.as_fd(), PollFlags::IN));
        }
        watched.push((Source::Signals, self.signals.as_fd(), PollFlags::IN));
        watched.extend(self.arrival.as_ref().map(|socket| (Source::Arrival, socket.as_fd(), PollFlags::IN)));
        watched.extend(self.until.as_ref().map(|until| (Source::Over, until.as_fd(), PollFlags::IN)));
        for (index, relay) in self.inward.iter().enumerate() {
            watched.extend(relay.readable().map(|(fd, flags)| (Source::ReadInward(index), fd, flags)));
            watched.extend(relay.writable().map(|(fd, flags)| (Source::WriteInward(index), fd, flags)));
        }
        for (index, relay) in self.outward.iter().enumerate() {
            watched.extend(relay.readable().map(|(fd, flags)| (Source::ReadOutward(index), fd, flags)));
            watched.extend(relay.writable().map(|(fd, flags)| (Source::WriteOutward(index), fd, flags)));
        }
        let mut polled: Vec<PollFd<'_>> =
            watched.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let patience = self.patience().map(|patience| Timespec::try_from(patience).unwrap_or_default());
        loop {
            match poll(&mut polled, patience.as_ref()) {
                Err(Errno::INTR) => continue,
                other => other.context("cannot wait for the guest")?,
            };
            let ready = watched.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
            return Ok(ready.map(|((source, _, _), _)| *source).collect());
        }
    }

    fn patience(&self) -> Option<Duration> {
        let keys = self.inward.iter().any(Relay::holds_keys).then_some(KEY_PATIENCE);
        let rest = self.outward.iter().any(Relay::is_resting).then_some(REST);
        // What goes to somebody else afterwards is not waited for.
        let left = self.outward.iter().all(|relay| relay.is_done() || relay.is_lasting());
        let last = self.exit.filter(|_| !self.writes()).map(|_| if left { Duration::ZERO } else { LAST_OUTPUT });
        [keys, rest, last, self.forwarder.patience()].into_iter().flatten().min()
    }

    /// Nothing happened in time: held keys are passed on, a terminal without users is looked at again.
    fn wake(&mut self) {
        self.inward.iter_mut().for_each(Relay::release_keys);
        self.outward.iter_mut().for_each(Relay::wake);
    }

    fn serve(&mut self, source: Source) -> anyhow::Result<Option<Ended>> {
        match source {
            Source::Daemon => self.hear()?,
            Source::Signals => self.obey_signals()?,
            Source::Arrival => self.begin_terminal()?,
            Source::Over => bail!("its time is over"),
            Source::ReadInward(index) if self.inward[index].read() == Brought::Detach => {
                return Ok(Some(Ended::Detached));
            }
            Source::ReadInward(_) => {}
            Source::WriteInward(index) => self.inward[index].write(),
            Source::ReadOutward(index) => drop(self.outward[index].read()),
            Source::WriteOutward(index) => self.outward[index].write(),
        }
        Ok(None)
    }

    /// What the daemon says: that the process runs, or how it ended.
    fn hear(&mut self) -> anyhow::Result<()> {
        while let Some(answer) = self.client.receive_now::<Noticed>().with_context(|| self.fate())? {
            let notice = answer.reply.notice;
            if notice.exited {
                let code = notice.exit_code.and_then(|code| u8::try_from(code).ok());
                let Some(code) = code else {
                    let note = notice.note.map(|note| format!("; {note}")).unwrap_or_default();
                    bail!("the command ended, but nobody could tell how{note}")
                };
                self.exit = Some(code);
                self.note = notice.note;
                self.wake();
                self.outward.iter_mut().for_each(|relay| relay.bound(LAST_BYTES));
                // The terminal may have arrived together with the exit.
                return if self.arrival.is_some() { self.begin_terminal_if_here() } else { Ok(()) };
            }
            anyhow::ensure!(answer.continues, "the daemon said that the command runs, and then no more about it");
            self.forwarder.deliver(&notice);
            if let Some(note) = &notice.note {
                // In raw mode a line has to be ended as on a machine of teletypes.
                let end = if self.raw.is_some() { "\r\n" } else { "\n" };
                eprint!("pando: warning: {}{end}", crate::printable::printable(note));
            }
            self.notice = Some(notice);
        }
        Ok(())
    }

    /// What becomes of the process when the conversation about it breaks off.
    fn fate(&self) -> String {
        match &self.notice {
            Some(notice) => format!("cannot follow the command in guest '{}', which may go on running", notice.guest),
            None => "cannot run the command".to_owned(),
        }
    }

    fn obey_signals(&mut self) -> anyhow::Result<()> {
        while let Some(asked) = self.signals.next() {
            match (asked, &self.raw) {
                (Asked::Resize, _) => self.master.iter().for_each(master::resize),
                (Asked::Suspend, Some(raw)) => raw.suspend().context("cannot suspend")?,
                // Before the terminal is ours there is nothing to give back; the user may ask again.
                (Asked::Suspend, None) => {}
                (Asked::Forward(signal) | Asked::FromTerminal(signal), _) => {
                    self.forwarder.forward(signal, self.notice.as_ref())
                }
            }
        }
        Ok(())
    }

    fn begin_terminal_if_here(&mut self) -> anyhow::Result<()> {
        let Some(arrival) = &self.arrival else { return Ok(()) };
        let mut polled = [PollFd::new(arrival, PollFlags::IN)];
        let here = poll(&mut polled, Some(&Timespec::default())).context("cannot wait for the guest's terminal")?;
        if here > 0 { self.begin_terminal() } else { Ok(()) }
    }

    /// The guest's terminal is here: from now on the caller's is raw, and both are tied together.
    fn begin_terminal(&mut self) -> anyhow::Result<()> {
        let Some(arrival) = self.arrival.take() else { return Ok(()) };
        // Closed without a terminal: the daemon's fault, which says why, is on its way.
        let Some(master) = master::take(&arrival)? else { return Ok(()) };
        master::resize(&master);
        let copy = |fd: &OwnedFd| fcntl_dupfd_cloexec(fd, 3).context("cannot use the guest's terminal");
        let (typed, shown) = (copy(&master)?, copy(&master)?);
        self.master = Some(master);
        self.raw = Some(RawMode::enter().context("cannot switch the terminal to raw mode")?);
        let keys = self.keys.take().expect("a terminal begins once");
        self.inward.push(Relay::typing(End::Callers(stdin()), End::Ours(typed), keys));
        self.outward.push(Relay::new(End::Ours(shown), End::Callers(stdout())));
        Ok(())
    }
}

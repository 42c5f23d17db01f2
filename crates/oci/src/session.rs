//! A command that stays until its container's process has ended: signals are passed on, a terminal is carried.

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use oci_spec::runtime::Process;
use pando_kernel::{process::pidfd, socket::packet};
use rustix::event::{PollFd, PollFlags};
use rustix::termios::{
    OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Signals that are passed on.
const FORWARDED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
];

/// What stays until a process has ended.
pub(crate) struct Session {
    signals: SignalFd,
    terminal: Option<Terminal>,
}

/// A process's terminal, which is carried to the caller's.
struct Terminal {
    /// Where the master comes.
    socket: OwnedFd,
    master: Option<OwnedFd>,
    before: Option<Termios>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal may be gone; there is nothing to restore then.
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, before);
        }
    }
}

impl Session {
    /// Takes over the signals. With a terminal also the socket that its master is to be sent to.
    pub(crate) fn begin(terminal: bool) -> Result<(Self, Option<OwnedFd>)> {
        let mut set = SigSet::empty();
        set.extend(FORWARDED);
        set.thread_block().context("blocking signals")?;
        let signals =
            SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).context("taking signals")?;
        if !terminal {
            return Ok((Self { signals, terminal: None }, None));
        }
        let (socket, theirs) = packet::pair().context("making a socket pair")?;
        let terminal = Terminal { socket, master: None, before: None };
        Ok((Self { signals, terminal: Some(terminal) }, Some(theirs)))
    }

    /// Carries and waits until the process, a child of this one, has ended: its exit code, as shells tell it.
    pub(crate) fn wait(mut self, pid: i32, process: &OwnedFd) -> Result<u8> {
        if let Some(terminal) = &mut self.terminal {
            terminal.take()?;
        }
        // Whether more may come from the caller, and from the terminal.
        let (mut input, mut output) = (true, true);
        loop {
            let stdin = io::stdin();
            let master = self.terminal.as_ref().and_then(|terminal| terminal.master.as_ref()).filter(|_| output);
            let mut fds = vec![PollFd::new(process, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            fds.extend(master.map(|master| PollFd::new(master, PollFlags::IN)));
            fds.extend(master.filter(|_| input).map(|_| PollFd::new(&stdin, PollFlags::IN)));
            match rustix::event::poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled.context("waiting for the process")?,
            };
            let happened: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if let Some(master) = master {
                if happened.get(3) == Some(&true) {
                    input = carry(stdin.as_fd(), master.as_fd())?;
                }
                if happened[2] {
                    output = carry(master.as_fd(), io::stdout().as_fd())?;
                }
            }
            if happened[1] {
                self.pass_signal(process);
            }
            // What a process has printed is read before its end counts.
            if happened[0] && happened.get(2) != Some(&true) {
                return Ok(end(pid));
            }
        }
    }

    /// Carries what a process has printed that did not become its program, as far as it is there.
    pub(crate) fn carry_rest(mut self) {
        let Some(terminal) = &mut self.terminal else { return };
        if terminal.take().is_err() {
            return;
        }
        // Nobody has the other end any more: what is read last is an error.
        while terminal
            .master
            .as_ref()
            .is_some_and(|master| carry(master.as_fd(), io::stdout().as_fd()).unwrap_or(false))
        {}
    }

    fn pass_signal(&mut self, process: &OwnedFd) {
        while let Ok(Some(came)) = self.signals.read_signal() {
            let number = came.ssi_signo.cast_signed();
            match &self.terminal {
                Some(terminal) if number == Signal::SIGWINCH as i32 => terminal.resize(),
                _ => drop(pidfd::send_signal(process, number)),
            }
        }
    }
}

impl Terminal {
    /// Takes the master, which was sent before the process was ready, and has the caller's terminal be raw.
    fn take(&mut self) -> Result<()> {
        let mut byte = [0; 64];
        let (_, fds) = packet::receive(&self.socket, &mut byte).context("waiting for the terminal")?;
        let Some(master) = fds.into_iter().next() else { bail!("the process sent no terminal") };
        self.master = Some(master);
        if isatty(io::stdin()) {
            let before = tcgetattr(io::stdin()).context("asking for the terminal's mode")?;
            let mut raw = before.clone();
            raw.make_raw();
            // Lines end here as this terminal wants it, and are not changed on the way.
            raw.output_modes |= OutputModes::OPOST;
            tcsetattr(io::stdin(), OptionalActions::Drain, &raw).context("setting the terminal's mode")?;
            self.before = Some(before);
        }
        self.resize();
        Ok(())
    }

    fn resize(&self) {
        if let (Some(master), Ok(size)) = (&self.master, tcgetwinsize(io::stdin())) {
            let _ = tcsetwinsize(master, size);
        }
    }
}

/// A terminal's process with the size of the caller's terminal, where its configuration gives none: it may ask at once.
pub(crate) fn with_size(mut process: Process) -> Process {
    if process.terminal().unwrap_or(false)
        && process.console_size().is_none()
        && let Ok(size) = tcgetwinsize(io::stdin())
    {
        let text = serde_json::json!({"height": size.ws_row, "width": size.ws_col});
        process.set_console_size(serde_json::from_value(text).ok());
    }
    process
}

/// Carries what can be read at once. Whether there may be more later.
fn carry(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<bool> {
    let mut bytes = [0; 4096];
    let length = match rustix::io::read(from, &mut bytes) {
        Ok(0) | Err(rustix::io::Errno::IO) => return Ok(false),
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return Ok(true),
        read => read.context("reading from a terminal")?,
    };
    let mut rest = &bytes[..length];
    while !rest.is_empty() {
        match rustix::io::write(to, rest) {
            Ok(written) => rest = &rest[written..],
            Err(rustix::io::Errno::INTR) => {}
            // Nobody reads it any more.
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// The exit code of a child that has ended, as shells tell it.
fn end(pid: i32) -> u8 {
    const SIGNALLED: i32 = 128;
    let code = crate::launch::reap(pid).and_then(|status| {
        status.exit_status().or_else(|| status.terminating_signal().map(|signal| SIGNALLED + signal))
    });
    u8::try_from(code.unwrap_or(255)).unwrap_or(255)
}

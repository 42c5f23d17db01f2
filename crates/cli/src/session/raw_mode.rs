//! The caller's terminal in raw mode, for as long as this value lives.

use rustix::io::Errno;
use rustix::stdio::stdin;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

/// Puts the terminal's own mode back when dropped, be it by return, error or panic. Signals that would end this program
/// are read from a descriptor while it lives, so they cannot pass the drop by.
pub(crate) struct RawMode {
    before: Option<Termios>,
}

impl RawMode {
    /// Makes standard input raw, if it is a terminal.
    pub(crate) fn enter() -> Result<Self, Errno> {
        let before = if isatty(stdin()) { Some(tcgetattr(stdin())?) } else { None };
        let mode = Self { before };
        mode.make_raw()?;
        Ok(mode)
    }

    fn make_raw(&self) -> Result<(), Errno> {
        let Some(before) = &self.before else { return Ok(()) };
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Drain, &raw)
    }

    fn restore(&self) {
        if let Some(before) = &self.before {
            // The terminal may be gone; there is nothing to restore then.
            let _ = tcsetattr(stdin(), OptionalActions::Drain, before);
        }
    }

    /// Stops this program as SIGTSTP asks, with the terminal as its shell wants it.
    pub(crate) fn suspend(&self) -> Result<(), Errno> {
        self.restore();
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::STOP)?;
        self.make_raw()
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.restore();
    }
}

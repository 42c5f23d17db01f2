//! The caller's terminal as it is, but for the keys that leave what it is attached to.
//!
//! A line is edited and shown by the terminal, which gives it out when it is complete. The last of the detach keys
//! completes one too, so that it need not be followed by Return; and where it would start the terminal's output again
//! (ctrl-Q), it no longer does.

use rustix::io::Errno;
use rustix::stdio::stdin;
use rustix::termios::{InputModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr};

/// Puts the terminal's own mode back when dropped.
#[derive(Debug)]
pub(crate) struct LineMode(Option<Termios>);

impl LineMode {
    /// Has `key` complete a line at standard input, if that is a terminal.
    pub(crate) fn enter(key: Option<u8>) -> Result<Self, Errno> {
        let Some(key) = key.filter(|_| isatty(stdin())) else { return Ok(Self(None)) };
        let before = tcgetattr(stdin())?;
        let mut changed = before.clone();
        changed.special_codes[SpecialCodeIndex::VEOL] = key;
        changed.input_modes.remove(InputModes::IXON);
        tcsetattr(stdin(), OptionalActions::Drain, &changed)?;
        Ok(Self(Some(before)))
    }
}

impl Drop for LineMode {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // The terminal may be gone; there is nothing to restore then.
            let _ = tcsetattr(stdin(), OptionalActions::Drain, before);
        }
    }
}

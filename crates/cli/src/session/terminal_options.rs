//! Whether a process gets a terminal, and how the caller leaves it.

use super::detach_keys::DetachKeys;
use rustix::stdio::{stdin, stdout};
use rustix::termios::isatty;

/// The options of `run`, `exec` and `shell` about the terminal.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "The terminal")]
pub(crate) struct TerminalOptions {
    /// Give the command a terminal [default: when standard input and output are terminals]
    #[arg(short, long, overrides_with = "no_tty")]
    tty: bool,
    /// Give the command no terminal
    #[arg(short = 'T', long, overrides_with = "tty")]
    no_tty: bool,
    /// With --detach, give the command an input that stays open, for `pando attach`; otherwise standard input is always
    /// passed on
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// The keys that leave the command running and end this one
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::DEFAULT)]
    pub(crate) detach_keys: DetachKeys,
}

impl TerminalOptions {
    /// A terminal where the caller has one, and no keys that would leave the command running.
    pub(crate) fn without_keys() -> Self {
        Self { detach_keys: DetachKeys::none(), ..Self::default() }
    }

    /// Whether a terminal was asked for by name.
    pub(crate) fn demanded(&self) -> bool {
        self.tty && !self.no_tty
    }

    /// Whether the process gets a terminal.
    pub(crate) fn wanted(&self) -> bool {
        !self.no_tty && (self.tty || (isatty(stdin()) && isatty(stdout())))
    }
}

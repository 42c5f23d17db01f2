//! A process in a guest, tied to the caller: its input and output, its terminal, its signals, its exit code.
//!
//! ```text
//!   no terminal   fds 0–2 ──as they are──▶ process          (a terminal or file to write to: a pipe, and a relay)
//!   terminal      caller's tty ◀──relay──▶ master ⇄ slave   (the slave is the guest's own; ours never goes inside)
//!   signals       signalfd ──Signal, on a second connection──▶ process
//! ```
//!
//! A guest that got hold of the caller's terminal could type into the caller's shell (TIOCSTI) or read what is typed
//! there; a directory would let it leave its root by fchdir(2). Neither is ever passed.

mod attach;
pub(crate) mod detach_keys;
mod detached;
mod end;
pub(crate) mod line_mode;
mod master;
mod raw_mode;
mod relay;
pub(crate) mod signals;
mod stdio;
mod terminal_options;

pub(crate) use attach::{attach, attach_instead};
pub(crate) use detached::start_detached;
pub(crate) use end::End;
pub(crate) use terminal_options::TerminalOptions;

//! What a transaction would do outside of files: caught call by call (seccomp user notification), and held back or not
//! supported.
//!
//! ```text
//!   a call of `policy` ─▶ supervise ─▶ inside: carried out
//!                                      a signal to a process outside: kept, sent when the transaction has committed
//!                                      a connection to another machine: made and noted, unless the network is refused
//!                                      anything else: not supported; the transaction is aborted, or its user warned
//! ```

mod argument;
mod bystanders;
#[cfg(test)]
mod calls;
mod connection;
mod fifos;
mod filtered;
mod held_signals;
mod local_socket;
mod message;
mod mounting;
mod named_path;
mod namespace;
mod object;
mod policy;
mod reached;
mod receiver;
mod rights;
mod still;
mod supervisor;
mod surroundings;
mod system_v;
mod verdict;
mod writes;

pub use bystanders::Bystanders;
pub(crate) use fifos::Holders;
pub(crate) use filtered::Filtered;
pub use held_signals::HeldSignals;
pub use pando_kernel::seccomp::notify::Listener;
pub(crate) use policy::numbers;
pub use policy::{Network, filter};
pub use reached::{Reached, note as note_reached};
pub use still::Still;
pub use supervisor::{Answered, Passed, Supervisor, Unsupported, WhenUnsupported};

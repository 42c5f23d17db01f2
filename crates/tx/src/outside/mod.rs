//! What a transaction would do outside of files: caught call by call (seccomp user notification), and held back or not supported.
//!
//! ```text
//!   a call of `policy` ─▶ supervise ─▶ inside: carried out
//!                                      a signal to a process outside: kept, sent when the transaction has committed
//!                                      anything else: not supported; the transaction is aborted, or its user warned
//! ```

mod held_signals;
mod policy;
mod supervise;

pub use held_signals::HeldSignals;
pub(crate) use policy::numbers;
pub use supervise::{Supervisor, Unsupported, WhenUnsupported};

//! System transactions inside a program: what is done to files between a beginning and an end is done as a whole, or
//! not at all, and nobody else sees any of it before.
//!
//! ```text
//!   begin ─▶ the daemon gives a view ─▶ this process enters it ─▶ its open files are opened once more there
//!                                            │ works
//!   end ◀─ open files lead outside again ◀─ the daemon validates and commits ◀─ this process leaves it
//! ```
//!
//! The program speaks to Pando's daemon over a connection that this library keeps. Should the program be killed, the
//! kernel closes that, and the daemon aborts. Should the daemon be killed, the program learns so from its next call.
//!
//! ```no_run
//! let tries = pando::begin(pando::Flags::DURABLE)?;
//! std::fs::write("/etc/motd", format!("changed as a whole, at try {tries}\n"))?;
//! match pando::end()? {
//!     pando::Ended::Committed => {}
//!     other => eprintln!("{other:?}: {:?}", pando::reason()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod c_interface;
mod calls;
mod children;
mod connection;
mod descriptors;
mod failure;
mod flags;
mod mappings;
mod process_state;
mod transaction;
mod view;

pub use failure::Failure;
pub use flags::Flags;
pub use transaction::{Ended, Status, abort, begin, end, reason, status};

//! The log: what was committed, with what an undo needs, and the undo.
//!
//! ```text
//!   commit ─▶ kept ahead of the commit point ─▶ in place ─▶ entry of the log ─▶ put back, in the view of a transaction
//!             (journal/keep)                                (entries)            of its own, which is committed
//! ```

mod as_left;
mod bounds;
mod entries;
mod held_files;
mod lifted;
mod put_back;

pub use bounds::KeepBounds;
pub use entries::{Entry, LogError, Logged, clear, entry, list};
pub(crate) use entries::{add, prune};
pub use put_back::{PutBack, Standing, put_back};

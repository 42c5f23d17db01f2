//! The run of a command as a transaction, as often as it takes.
//!
//! ```text
//!   attempt ─▶ committed, aborted ─▶ concluded
//!      ▲    └▶ lost to others ─▶ the lesson ─▶ a pause ─▶ again
//!      └───────────────────────────────────────────────────┘
//! ```
//!
//! Whether a command runs again, how often, and what the next run does otherwise is decided here. How one attempt goes
//! is the [`Runner`]'s: on the host, or in a target.

mod attempt;
mod backoff;
mod held_output;
mod lesson;
mod replayed_input;
mod retry;

pub use attempt::{Attempt, Tried};
pub use held_output::HeldOutput;
pub use lesson::{Lesson, Otherwise};
pub use replayed_input::{Feeding, ReplayedInput};
pub use retry::{Concluded, MOST_VIEWS, Retry, RetryPolicy, Runner, run_with_retries};

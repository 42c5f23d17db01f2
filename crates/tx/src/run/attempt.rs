//! How one attempt to run a command in a transaction ended.

use crate::supervise::Reached;
use crate::transaction::daemons::Settled;
use crate::validate::abort_reason::AbortReason;
use crate::validate::change_set::Figures;

/// The end of an attempt.
#[derive(Debug)]
pub enum Attempt {
    /// The command did well, and all that it did is in the live tree.
    Committed(Figures, Settled),
    /// Its exit code, and why nothing was committed. Another run would do the same.
    Aborted(u8, String),
    /// The transaction cannot be committed any more, for a reason that says nothing about its command.
    Lost(AbortReason),
    /// The command has failed, with this exit code, and what others were doing may be why: it cannot have been told all
    /// that it was told at any one moment.
    Misled(u8, String, AbortReason),
    /// What is mounted was changed while its view was made: its command has not begun.
    NotBegun,
    /// What it changes takes more memory than there is for that.
    Outgrown,
}

/// What one attempt leaves for the report.
#[derive(Debug)]
pub struct Tried {
    /// How the attempt has ended.
    pub attempt: Attempt,
    /// How many processes were left in the transaction, and were ended.
    pub ended: usize,
    /// Mounts that can be written outside and could not inside.
    pub read_only: Vec<String>,
    /// What it has reached outside at once. That is not undone.
    pub reached: Reached,
}

impl Tried {
    /// An attempt that ended before its command began.
    pub fn without_command(attempt: Attempt) -> Self {
        Self { attempt, ended: 0, read_only: Vec::new(), reached: Reached::default() }
    }
}

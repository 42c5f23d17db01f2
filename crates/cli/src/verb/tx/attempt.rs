//! How one attempt to run a command in a transaction ended.

use super::heed::Stopped;
use super::report::Outcome;
use crate::complaint::OWN_FAILURE;
use pando_tx::{Figures, Loss, Settled};

/// How it ended.
pub(super) enum Attempt {
    Committed(Figures, Settled),
    /// The exit code, and why.
    Aborted(u8, String),
    /// It cannot be committed any more.
    Lost(Loss),
    /// The command has failed, with this exit code, and what others were doing may be why: it cannot have been told all that it was told at any one moment.
    Misled(u8, String, Loss),
    /// Something was mounted or unmounted while its view was made: its command has not begun.
    NotBegun(Loss),
    /// What it changes takes more memory than there is for that.
    Outgrown,
}

/// What is told of one that has outgrown that.
pub(super) const OUTGROWN: &str =
    "its changes outgrew the memory for them (leave out --in-memory, or give it a larger size)";

impl Attempt {
    /// What is told of it, and the exit code.
    pub(super) fn outcome(&self) -> (Outcome<'_>, u8) {
        match self {
            Self::Committed(figures, settled) => (Outcome::Committed(*figures, settled), 0),
            Self::Aborted(code, why) | Self::Misled(code, why, _) => (Outcome::Aborted(why), *code),
            Self::Lost(loss) | Self::NotBegun(loss) => (Outcome::Aborted(loss.words()), OWN_FAILURE),
            Self::Outgrown => (Outcome::Aborted(OUTGROWN), OWN_FAILURE),
        }
    }
}

impl From<&Stopped> for Attempt {
    fn from(stopped: &Stopped) -> Self {
        match stopped {
            Stopped::Unsupported(unsupported) => Self::Aborted(OWN_FAILURE, unsupported.to_string()),
            Stopped::Lost(loss) => Self::Lost(loss.clone()),
            Stopped::Outgrown => Self::Outgrown,
        }
    }
}

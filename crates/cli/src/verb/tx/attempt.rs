//! How one attempt to run a command in a transaction ended.

use super::heed::Stopped;
use super::report::Outcome;
use crate::complaint::OWN_FAILURE;
use pando_tx::{AbortReason, Figures, Settled};

/// How it ended.
pub(super) enum Attempt {
    Committed(Figures, Settled),
    /// The exit code, and why.
    Aborted(u8, String),
    /// It cannot be committed any more.
    Lost(AbortReason),
    /// The command has failed, with this exit code, and what others were doing may be why: it cannot have been told all
    /// that it was told at any one moment.
    Misled(u8, String, AbortReason),
    /// What is mounted was changed while its view was made: its command has not begun.
    NotBegun,
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
            Self::Aborted(code, why) | Self::Misled(code, why, _) => (Outcome::Aborted(why.into()), *code),
            Self::Lost(reason) => (Outcome::Aborted(reason.to_string().into()), OWN_FAILURE),
            Self::NotBegun => (Outcome::Aborted(AbortReason::MountsChanged.to_string().into()), OWN_FAILURE),
            Self::Outgrown => (Outcome::Aborted(OUTGROWN.into()), OWN_FAILURE),
        }
    }
}

impl From<&Stopped> for Attempt {
    fn from(stopped: &Stopped) -> Self {
        match stopped {
            Stopped::Unsupported(unsupported) => Self::Aborted(OWN_FAILURE, unsupported.to_string()),
            Stopped::Lost(reason) => Self::Lost(reason.clone()),
            Stopped::Outgrown => Self::Outgrown,
        }
    }
}

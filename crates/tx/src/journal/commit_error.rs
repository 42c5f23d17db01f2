//! Why a transaction was not committed.

use crate::change::partial::Dependence;
use crate::change::upper::WalkError;
use crate::journal::apply::ApplyError;
use crate::validate::conflict::Conflict;
use std::io;

/// Why a transaction was not committed, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Others changed what it built on. Nothing was done.
    #[error("{0}")]
    Conflict(Conflict),
    /// It was to be committed without something that belongs to the rest. Nothing was done.
    #[error("{0}")]
    Torn(Dependence),
    /// Nothing that it changed was selected. Nothing was done.
    #[error("it has changed nothing at {0} or below; `pando tx diff` shows what it has changed")]
    Unchanged(String),
    /// Its changes cannot be read. Nothing was done.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// It could not be made ready. Nothing was done.
    #[error("{what}: {source}")]
    Prepare {
        /// What was tried, on what.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// It is committed, but could not be applied to its end: `recover` has to finish it.
    #[error("it is committed, but its changes are not all in place yet: {0}")]
    Unfinished(#[from] ApplyError),
}

//! Why a transaction was not committed.

use crate::change::partial::Dependence;
use crate::change::upper::WalkError;
use crate::journal::apply::ApplyError;
use crate::validate::conflict::Conflict;
use pando_kernel::CallError;
use std::io;
use std::time::Duration;

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
    /// Its user could not have done that himself. Nothing was done.
    #[error("{path}: {why}")]
    NotAllowed {
        /// The path.
        path: String,
        /// Why.
        why: String,
    },
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
    /// Others were kept out for as long as that is allowed, and it was not done. Nothing was done.
    #[error(
        "others would have had to wait for more than {} s, and --strict refuses to go on without: leave it out, or allow more by --hold-timeout",
        .0.as_secs_f64()
    )]
    Lapsed(Duration),
    /// Somebody came past the gate who could not be kept out. Nothing was done.
    #[error(
        "a call that could not be held, such as one of io_uring, came past the gate, and --strict refuses to go on then: \
         leave it out, or run it again"
    )]
    Passed,
    /// It is committed, but could not be applied to its end: `recover` has to finish it.
    #[error("it is committed, but its changes are not all in place yet: {0}")]
    Unfinished(#[from] ApplyError),
}

impl From<CallError> for ApplyError {
    fn from(error: CallError) -> Self {
        Self::new(error.what, error.source)
    }
}

impl CommitError {
    /// What has failed ahead of the commit point.
    pub(crate) fn ahead(error: CallError) -> Self {
        Self::Prepare { what: error.what, source: error.source }
    }

    /// The same where it was another commit that could not be finished: nothing was done of this one.
    pub(crate) fn of_another(self) -> Self {
        match self {
            Self::Unfinished(error) => Self::Prepare {
                what: "finishing an earlier commit, which was interrupted".into(),
                source: io::Error::other(error.to_string()),
            },
            other => other,
        }
    }
}

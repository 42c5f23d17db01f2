//! Why a transaction cannot be committed any more, though its command may have done well: it has to be run again.

use crate::validate::conflict::Conflict;
use std::fmt;
use std::path::Path;

/// The reason why a run is aborted that says nothing about its command. Another run may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AbortReason {
    /// Others did something to what it has read or changed.
    Conflict(Conflict),
    /// Another transaction has committed, and said with these words what that changed.
    CommittedBefore(String),
    /// Something was mounted or unmounted while its view was made, before its command began.
    MountsChanged,
}

impl AbortReason {
    /// Whether the transaction that was in its way has ended: then there is nothing to wait for.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::CommittedBefore(_))
    }

    /// Whether memory ran short, so that it is not known any more what was read. Another run may be helped by
    /// [synchronous writes](crate::Transaction::write_synchronously).
    pub fn is_lack_of_memory(&self) -> bool {
        matches!(self, Self::Conflict(Conflict::Forgotten))
    }

    /// The object that others have changed, if it is there still. Another run may be helped by
    /// [telling who changes what of it](crate::Transaction::tell_apart).
    pub fn changed_object(&self) -> Option<&Path> {
        match self {
            Self::Conflict(conflict) => conflict.changed_object(),
            Self::CommittedBefore(_) | Self::MountsChanged => None,
        }
    }

    /// The directory in which others have changed names, where it is not known which. Another run may be helped by
    /// [knowing the names](crate::Transaction::know_names) in it.
    pub fn directory_of_names(&self) -> Option<&Path> {
        match self {
            Self::Conflict(conflict) => conflict.directory_of_names(),
            Self::CommittedBefore(_) | Self::MountsChanged => None,
        }
    }
}

impl From<Conflict> for AbortReason {
    fn from(conflict: Conflict) -> Self {
        Self::Conflict(conflict)
    }
}

impl fmt::Display for AbortReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict(conflict) => conflict.fmt(out),
            Self::CommittedBefore(words) => out.write_str(words),
            Self::MountsChanged => out.write_str("what is mounted was changed while the view was made"),
        }
    }
}

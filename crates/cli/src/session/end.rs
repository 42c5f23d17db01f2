//! One end of a relay: a descriptor of the caller's, or one that this program made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Where a relay reads or writes.
#[derive(Debug)]
pub(crate) enum End {
    /// Standard input, output or error. Never made non-blocking: the shell that waits behind us shares it.
    Callers(BorrowedFd<'static>),
    /// Ours, closed when the relay is done with it.
    Ours(OwnedFd),
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Callers(descriptor) => *descriptor,
            Self::Ours(descriptor) => descriptor.as_fd(),
        }
    }
}

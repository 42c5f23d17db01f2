//! What an ipc namespace keeps whether or not a process uses it: POSIX message queues, and what System V's calls make. Opened before anybody is stopped, since
//! to enter a namespace takes a thread.

use crate::image::namespace_kind::IPC;
use crate::queues::Queues;
use crate::sysv::Keys;
use pando_kernel::CallError;

/// Both, of the first process's namespace.
#[derive(Debug)]
pub(crate) struct Ipc {
    pub(crate) queues: Queues,
    pub(crate) keys: Keys,
}

impl Ipc {
    /// That of a process.
    pub(crate) fn of(init: i32) -> Result<Self, CallError> {
        let at = IPC.at(init);
        Ok(Self { queues: Queues::of(&at)?, keys: Keys::of(&at)? })
    }
}

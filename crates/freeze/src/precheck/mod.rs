//! What cannot be frozen, named before anything is stopped, and once more when all processes stand still: a file for
//! each kind of object, and [`survey`] that asks all.

pub(crate) mod aio;
pub(crate) mod descriptors;
pub(crate) mod dispatched_calls;
pub(crate) mod host_settings;
pub(crate) mod inotify;
pub(crate) mod own_network;
pub(crate) mod own_proc;
pub(crate) mod pidfd;
pub(crate) mod pipes;
pub(crate) mod sharing;
pub(crate) mod sockets;
pub(crate) mod survey;
pub(crate) mod sysv;
pub(crate) mod terminals;
pub(crate) mod unsupported_state;

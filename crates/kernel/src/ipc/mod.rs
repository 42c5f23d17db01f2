//! System V and POSIX queues, segments and semaphores.

pub mod mqueue;
pub mod sysv;

//! Descriptors that the daemon's one thread waits on.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor to wait on until it can be read.
pub(crate) fn readable<T: AsFd + AsRawFd>(fd: T) -> io::Result<AsyncFd<T>> {
    // tokio deprecates this for types that merely know a descriptor's number. Ours own theirs, and this crate holds no
    // unsafe code.
    #[expect(deprecated, reason = "every type passed here owns its descriptor")]
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// A descriptor to wait on until the kernel tells of something by POLLPRI.
pub(crate) fn urgent<T: AsFd + AsRawFd>(fd: T) -> io::Result<AsyncFd<T>> {
    #[expect(deprecated, reason = "every type passed here owns its descriptor")]
    AsyncFd::with_interest(fd, Interest::PRIORITY)
}

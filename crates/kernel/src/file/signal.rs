//! The signal by which an open file tells of itself (`F_GETSIG` of fcntl(2)).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The signal that reports a file's readiness (F_GETSIG); 0 for the usual one, SIGIO.
///
/// # Errors
///
/// EBADF alone: every open file has one.
pub fn get(file: impl AsFd) -> io::Result<i32> {
    const F_GETSIG: libc::c_int = 11;
    // SAFETY: this call touches no memory.
    let signal = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), F_GETSIG) };
    if signal < 0 { Err(io::Error::last_os_error()) } else { Ok(signal) }
}

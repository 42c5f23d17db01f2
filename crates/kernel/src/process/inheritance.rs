//! What a program inherits of the one that executed it: descriptors, and a session keyring.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Marks every descriptor from `first` on as close-on-exec (close_range(2) with CLOSE_RANGE_CLOEXEC, since Linux 5.11),
/// whatever code opened it.
///
/// # Errors
///
/// EINVAL before Linux 5.11.
pub fn close_range_on_exec(first: u32) -> io::Result<()> {
    // SAFETY: the call takes numbers and closes nothing now; no memory is passed.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor from `first` on (close_range(2), since Linux 5.9): for a program that has just begun, and
/// wants nothing else of the process that started it. It must not have opened anything yet that it uses afterwards.
///
/// # Errors
///
/// ENOSYS before Linux 5.9.
pub fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: no memory is passed; the caller has nothing of its own among these numbers.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Begins a session keyring of its own, without a name and with nothing in it (keyctl(2)): whoever started this program
/// has keys in his that are not for those that it starts. A kernel without keyrings has none.
///
/// # Errors
///
/// EDQUOT where the user has as many keyrings as he may.
pub fn begin_session_keyring() -> io::Result<()> {
    // SAFETY: a null name is none; no memory is passed.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) };
    let error = io::Error::last_os_error();
    if joined >= 0 || error.raw_os_error() == Some(libc::ENOSYS) { Ok(()) } else { Err(error) }
}

/// A copy of a descriptor that this program was started with, by its number, which is closed on exec.
///
/// # Errors
///
/// EBADF where there is none of that number.
pub fn copy_of(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers alone, and makes a new descriptor.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Closes every descriptor but these, which are in order (close_range(2), since Linux 5.9): for the copy of a process
/// that goes on without executing a program. It takes no lock and no memory.
///
/// # Safety
///
/// Nothing may use what owned the others.
pub(crate) unsafe fn close_all_but(kept: &[i32]) {
    let mut first = 0_u32;
    for number in kept.iter().map(|number| number.cast_unsigned()).chain([u32::MAX]) {
        if number > first {
            let last = if number == u32::MAX { u32::MAX } else { number - 1 };
            // SAFETY: no memory is passed; by the caller's word nobody uses what these numbers were.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = number.saturating_add(1);
    }
}

//! Huge pages in the place of small ones, in the memory of another process: process_madvise(2) with MADV_COLLAPSE
//! (Linux 6.1).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes of a huge page.
pub const HUGE: u64 = 2 << 20;

/// Puts huge pages in the place of what a process, by its descriptor, has between two addresses. It runs on meanwhile;
/// what it reads and writes is the same.
///
/// # Errors
///
/// EINVAL for memory that cannot have any, ENOMEM and EAGAIN where there are none to be had now: what came before has
/// them all the same.
pub fn collapse(process: impl AsFd, (start, end): (u64, u64)) -> io::Result<()> {
    const MADV_COLLAPSE: libc::c_int = 25;
    let range = libc::iovec { iov_base: start as *mut libc::c_void, iov_len: end.saturating_sub(start) as usize };
    // SAFETY: the kernel reads one iovec of ours; the addresses in it are of the other process, and nothing that is
    // there changes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_fd().as_raw_fd(),
            &raw const range,
            1_usize,
            MADV_COLLAPSE,
            0_u32,
        )
    };
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

//! What of a file is in memory (cachestat(2)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// cachestat(2), by the same number on every architecture.
const CACHESTAT: libc::c_long = 451;

/// struct cachestat_range (linux/mman.h): all of the file where the length is 0.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// struct cachestat (linux/mman.h), in pages.
#[repr(C)]
#[derive(Default)]
struct Found {
    cached: u64,
    dirty: u64,
    written_back: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// How many pages of an open file are in memory (since Linux 6.5).
///
/// # Errors
///
/// ENOSYS before; EOPNOTSUPP for what has no pages of its own.
pub fn resident_pages(file: BorrowedFd<'_>) -> io::Result<u64> {
    resident_pages_within(file, 0, 0)
}

/// The number of pages of a part of the file that are in memory: `length` bytes from `offset` on, or all that follows
/// where `length` is 0.
///
/// # Errors
///
/// Those of [`resident_pages`].
pub fn resident_pages_within(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<u64> {
    let range = Range { offset, length };
    let mut found = Found::default();
    // SAFETY: the kernel reads the range and writes the answer; both have the layout that it expects and outlive the
    // call.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0) };
    if result == 0 { Ok(found.cached) } else { Err(io::Error::last_os_error()) }
}

/// Begins to write all that is dirty of a file, after what is being written (sync_file_range(2)). A write to the file
/// through memory afterwards shows in its times: a page that is clean is protected, and the first write to it goes
/// through the file system. Files of an overlay have no pages of their own.
///
/// # Errors
///
/// EIO, ENOSPC where the disk does not take it.
pub fn write_back(file: BorrowedFd<'_>) -> io::Result<()> {
    sync_range(file, libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE)
}

/// Writes all that is dirty of a file, and waits until the disk has taken it (sync_file_range(2)). That is no barrier:
/// the disk may still lose it, and the file system what it has noted of it, until either is flushed.
///
/// # Errors
///
/// EIO, ENOSPC where the disk does not take it; ESPIPE for what is no file of a disk.
pub fn write_out(file: BorrowedFd<'_>) -> io::Result<()> {
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, libc::SYNC_FILE_RANGE_WRITE | wait)
}

fn sync_range(file: BorrowedFd<'_>, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: numbers only.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The size of a page of memory, in bytes.
pub fn page_size() -> u64 {
    // SAFETY: it takes a number and gives one.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn what_was_just_written_is_in_memory() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 40_960]).unwrap();
        match resident_pages(file.as_fd()) {
            Ok(pages) => {
                assert_eq!(pages, 10);
                assert_eq!(resident_pages_within(file.as_fd(), 4096, 8192).unwrap(), 2);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSYS)),
        }
    }
}

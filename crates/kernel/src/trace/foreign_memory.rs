//! The memory and the descriptors of another process: process_vm_readv(2), process_vm_writev(2), kcmp(2),
//! pidfd_getfd(2).

use std::cmp::Ordering;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Fills `bytes` from a process's memory at `address` (process_vm_readv(2), since Linux 3.2).
///
/// # Errors
///
/// EFAULT where it has no memory there, also where only a part is missing; EPERM where it may not be traced; ESRCH
/// where it has gone.
pub fn read(pid: i32, address: u64, bytes: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    // SAFETY: the kernel writes into the slice; the remote address is checked in the other process.
    let count = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    whole(count, bytes.len())
}

/// Writes `bytes` into a process's memory at `address` (process_vm_writev(2), since Linux 3.2).
///
/// # Errors
///
/// EFAULT where that process could not write there; EPERM where it may not be traced; ESRCH where it has gone.
pub fn write(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    // SAFETY: the kernel reads the slice; the remote address is checked in the other process.
    let count = unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    whole(count, bytes.len())
}

fn whole(count: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(count) {
        Ok(count) if count == wanted => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Which kind of thing two processes may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Shared {
    /// An open file description; the numbers are descriptors.
    File = 0,
    /// The memory (`mm_struct`).
    Memory = 1,
    /// The table of descriptors.
    Descriptors = 2,
    /// Root, working directory and umask.
    Directories = 3,
    /// Signal handlers.
    Handlers = 4,
}

/// Whether two processes share a thing, and if not, an order among things (kcmp(2), since Linux 3.5). The descriptors
/// matter for files only.
///
/// # Errors
///
/// EPERM where one of them may not be traced; ESRCH where one has gone; EBADF where a descriptor is not open.
pub fn compare(kind: Shared, (pid, fd): (i32, i32), (other, other_fd): (i32, i32)) -> io::Result<Ordering> {
    // SAFETY: touches no memory.
    match unsafe { libc::syscall(libc::SYS_kcmp, pid, other, kind as i32, fd, other_fd) } {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Ordering::Greater),
    }
}

/// What an epoll instance watches: the instance's descriptor, the number that the watched file had when it was added,
/// and how many of that number come before it in the list of /proc/PID/fdinfo (`struct kcmp_epoll_slot`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct EpollSlot {
    /// The descriptor of the epoll instance, in the process that has it.
    pub instance: u32,
    /// The number that the watched file had when it was added.
    pub number: u32,
    /// How many come before it.
    pub before: u32,
}

/// Whether a descriptor of a process leads to the open file that an epoll instance of another one watches (kcmp(2),
/// KCMP_EPOLL_TFD, since Linux 4.13).
///
/// # Errors
///
/// ENOENT where the instance watches no such file; ESRCH where a process has gone; EBADF where a descriptor is not
/// open.
pub fn is_watched((pid, fd): (i32, i32), (other, slot): (i32, EpollSlot)) -> io::Result<bool> {
    const KCMP_EPOLL_TFD: i32 = 7;
    // SAFETY: the kernel reads the three words of `slot`, which outlives the call.
    match unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_EPOLL_TFD, fd, &raw const slot) } {
        -1 => Err(io::Error::last_os_error()),
        order => Ok(order == 0),
    }
}

/// A copy of another process's descriptor (pidfd_getfd(2), since Linux 5.6).
///
/// # Errors
///
/// EBADF where the process has no such descriptor; EPERM where it may not be traced; ESRCH where it has gone.
pub fn descriptor(process: impl AsFd, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_fd().as_raw_fd(), fd, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn me() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn own_memory_is_read_and_written_as_a_strangers() {
        let mut place = *b"before";
        let mut seen = [0; 6];
        write(me(), (&raw mut place) as u64, b"behind").unwrap();
        read(me(), (&raw const place) as u64, &mut seen).unwrap();
        assert_eq!(&seen, b"behind");
        assert_eq!(read(me(), 16, &mut seen).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn a_duplicate_is_the_same_description_and_a_second_open_is_not() {
        let one = std::fs::File::open("/dev/null").unwrap();
        let copy = one.try_clone().unwrap();
        let two = std::fs::File::open("/dev/null").unwrap();
        let with =
            |other: &std::fs::File| compare(Shared::File, (me(), one.as_raw_fd()), (me(), other.as_raw_fd())).unwrap();
        assert_eq!(with(&copy), Ordering::Equal);
        assert_ne!(with(&two), Ordering::Equal);
    }
}

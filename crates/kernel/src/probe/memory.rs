//! Memory: as a file, handed in by a process, shared between processes.

use super::{Area, Finding, Verdict};
use crate::memory;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const AREA: Area = Area("memory");

const UFFD_API: u64 = 0xAA;
/// `_IOWR(UFFDIO, 0x3F, struct uffdio_api)` (linux/userfaultfd.h)
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;

const PAGE: usize = 4096;

pub(super) fn find() -> Vec<Finding> {
    let ksm = advise_mergeable();
    vec![
        AREA.needed("sealed memory file, executable", "3.17", executable(), "the shim of guests cannot be started"),
        AREA.wanted("userfaultfd", "4.3", faults(), "thawed guests wait until all their memory is read"),
        AREA.wanted(
            "reads held up",
            "2.6.37",
            reads(),
            "what guests see of their limits in /proc/meminfo, /proc/stat and others is up to five seconds old",
        ),
        AREA.wanted("pressure", "4.20", pressure(), "the watchdog goes by free memory and swap, and is later"),
        AREA.wanted("same-page merging", "2.6.32", ksm, "equal memory of guests is not shared"),
    ]
}

/// A queue that readers of files wait for (fanotify).
fn reads() -> Verdict {
    match crate::file::read_gate::ReadGate::new() {
        Ok(_) => Verdict::Granted,
        Err(error) => Verdict::of(&error.source),
    }
}

fn pressure() -> Verdict {
    match std::fs::read_to_string("/proc/pressure/memory") {
        Ok(_) => Verdict::Granted,
        // It may be built in and turned off (the boot argument psi=1 turns it on).
        Err(error) => Verdict::of(&error),
    }
}

/// Executes a sealed file that is no program: the kernel says so only after it found that it may be executed.
fn executable() -> Verdict {
    let file = match memory::file::sealed("pando-doctor", b"no program", true) {
        Ok(file) => file,
        Err(error) => return Verdict::of(&error),
    };
    if rustix::io::write(&file, b"x").is_ok() {
        return Verdict::Partial("seals do not keep from writing".into());
    }
    match execute(&file) {
        error if error.raw_os_error() == Some(libc::ENOEXEC) => Verdict::Granted,
        error => Verdict::refused(&error),
    }
}

/// Comes back only with an error, since the file is no program; were it one, it would replace this process.
fn execute(file: &OwnedFd) -> io::Error {
    const NAME: &CStr = c"pando-doctor";
    let arguments = [NAME.as_ptr(), std::ptr::null()];
    let environment: [*const libc::c_char; 1] = [std::ptr::null()];
    // SAFETY: path and lists are C strings that end in null.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            file.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

fn faults() -> Verdict {
    match offered() {
        Err(error) => Verdict::of(&error),
        Ok(features) if features & UFFD_FEATURE_PAGEFAULT_FLAG_WP == 0 => {
            Verdict::Partial("without write protection".into())
        }
        Ok(features) if features & UFFD_FEATURE_WP_ASYNC == 0 => {
            Verdict::Partial("without asynchronous write protection".into())
        }
        Ok(_) => Verdict::Granted,
    }
}

/// What userfaultfd can do here: `struct uffdio_api` says it when it is asked for nothing.
fn offered() -> io::Result<u64> {
    // SAFETY: the call takes numbers alone.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut api = [UFFD_API, 0, 0];
    // SAFETY: the request's number says that the kernel may fill in 24 bytes, which the array has.
    match unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) } {
        0 => Ok(api[1]),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Offers a page for merging (MADV_MERGEABLE).
fn advise_mergeable() -> io::Result<()> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place that the kernel chooses touches no other memory.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page is this function's own.
    let advised = match unsafe { libc::madvise(page, PAGE, libc::MADV_MERGEABLE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: nothing refers to the page any more.
    unsafe { libc::munmap(page, PAGE) };
    advised
}

//! Filters of system calls, by putting one that allows everything onto a thread.

use super::child::in_a_thread;
use super::{Area, Finding};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

const AREA: Area = Area("seccomp");

pub(super) fn find() -> Vec<Finding> {
    let filter = action(libc::SECCOMP_RET_ERRNO).and_then(|()| in_a_thread(|| put_on(0).map(drop)));
    let notified = action(libc::SECCOMP_RET_USER_NOTIF).and_then(|()| in_a_thread(listened));
    vec![
        AREA.needed("filter", "3.5", filter, "guests could make calls that reach beyond them"),
        AREA.wanted("user notification", "5.0", notified, "no call of a guest can be answered by Pando in its place"),
    ]
}

/// Whether filters may give this answer (SECCOMP_GET_ACTION_AVAIL, since Linux 4.14).
fn action(action: u32) -> io::Result<()> {
    // SAFETY: the kernel reads one number.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn listened() -> io::Result<()> {
    let fd = put_on(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Puts a filter that allows everything onto this thread. It stays there.
fn put_on(flags: libc::c_ulong) -> io::Result<i32> {
    rustix::thread::set_no_new_privs(true)?;
    let mut allow =
        libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let program = libc::sock_fprog { len: 1, filter: &raw mut allow };
    // SAFETY: the kernel copies the one instruction that the program says it has.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

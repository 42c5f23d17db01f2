//! A mount namespace of a process's own.

use rustix::mount::{MountPropagationFlags, mount_change};
use std::io;

/// Puts this process into a new mount namespace (unshare(2), since Linux 2.6.16). What is mounted from then on is seen
/// by this process and its children alone: nothing reaches the host, and nothing comes from there.
///
/// # Errors
///
/// EPERM without `CAP_SYS_ADMIN`; ENOSPC where no more may be made (`user.max_mnt_namespaces`).
pub fn unshare() -> io::Result<()> {
    // SAFETY: no memory is passed; this thread gets a root and a working directory of its own, the same as before.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

//! Attaching a detached tree in another mount namespace (setns(2), move_mount(2)).

use crate::mount::Tree;
use crate::{CallError, Context};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::mount::MoveMountFlags;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Attaches a tree at the path `at` below the directory `root`, which lies in the mount namespace `namespace`. No link
/// leads out of `root`. A thread of its own does it: this one stays where it is.
///
/// # Errors
///
/// ENOENT where there is no such path.
pub fn attach_in(tree: &Tree, namespace: BorrowedFd<'_>, root: BorrowedFd<'_>, at: &CStr) -> Result<(), CallError> {
    let act = || -> io::Result<()> {
        // SAFETY: numbers only. From here on this thread alone has this root and this working directory, as setns(2)
        // demands.
        if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: numbers only; the thread ends in the other namespace, and holds nothing that depends on the old one.
        if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let place = rustix::fs::openat2(root, at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), confined)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(rustix::mount::move_mount(tree.as_fd(), c"", place.as_fd(), c"", flags)?)
    };
    let done = std::thread::scope(|scope| scope.spawn(act).join());
    let done = done.unwrap_or_else(|_| Err(io::Error::other("it failed inside Pando")));
    done.context(|| format!("attaching /{} in another mount namespace", at.to_string_lossy()))
}

//! Mounts whose attributes their holder cannot take back.
//!
//! A mount that is attached in a guest's mount namespace belongs to it: root in there, with CAP_SYS_ADMIN in its user
//! namespace, may make it writable again. What the kernel *copies* into the mount namespace of another user namespace
//! keeps its attributes for good (mount_namespaces(7), "Restrictions on mount namespaces"), and so does every clone of
//! such a copy. So a short-lived child attaches the mount in a namespace of its own, enters a new user and mount
//! namespace, and clones the copy that it finds there.

use crate::mount::Tree;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A clone of a detached mount and of the mounts below it, with the same attributes, locked. The mount itself goes.
///
/// # Errors
///
/// EPERM or ENOSPC where no user namespace can be made (`user.max_user_namespaces`).
pub fn lock(tree: Tree) -> io::Result<Tree> {
    let is_directory = rustix::fs::fstat(tree.as_fd()).map(|found| found.st_mode & libc::S_IFMT == libc::S_IFDIR)?;
    // The child shares our descriptors, and puts the clone in the place of this one.
    let place = rustix::io::fcntl_dupfd_cloexec(tree.as_fd(), 3)?;
    let mut process: RawFd = -1;
    // SAFETY: the structure is plain numbers, for which zero means "nothing".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = (libc::CLONE_FILES | libc::CLONE_PIDFD) as u64;
    arguments.pidfd = (&raw mut process) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: no memory is shared, so the child returns here on a copy of this stack; being the copy of one thread of
    // perhaps many, it makes only system calls, which take no lock, and never returns from this block.
    let pid = unsafe {
        let pid = libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments));
        if pid == 0 {
            libc::_exit(clone_locked(tree.as_fd().as_raw_fd(), is_directory, place.as_raw_fd()));
        }
        pid
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    let mut status = 0;
    // SAFETY: waits for our own child and writes to the number.
    while unsafe { libc::waitpid(pid as i32, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    drop(process);
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(Tree::from(place)),
        (true, errno) => Err(io::Error::from_raw_os_error(errno)),
        (false, _) => Err(io::Error::other("the process that was to lock a mount was killed")),
    }
}

/// What the child does: 0, or an error number.
///
/// # Safety
///
/// To be called in a child of one thread that shares nothing but descriptors, both of which are open.
unsafe fn clone_locked(tree: RawFd, is_directory: bool, place: RawFd) -> i32 {
    // Not on the root: a process with a mount over that counts as chrooted, and makes no user namespaces. Both are
    // there wherever guests are.
    let at = if is_directory { c"/proc" } else { c"/dev/null" };
    // Nothing of what is mounted here may be seen outside.
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the strings live on; everything else is numbers. The last step closes a descriptor that its owner expects
    // to have been replaced.
    unsafe {
        let steps: [&dyn Fn() -> i64; 5] = [
            &|| i64::from(libc::unshare(libc::CLONE_NEWNS)),
            &|| i64::from(libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null())),
            &|| {
                const F_EMPTY_PATH: u32 = 4;
                libc::syscall(libc::SYS_move_mount, tree, c"".as_ptr(), libc::AT_FDCWD, at.as_ptr(), F_EMPTY_PATH)
            },
            &|| i64::from(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)),
            &|| {
                const CLONE: i32 = 1;
                let flags = CLONE | libc::O_CLOEXEC | libc::AT_RECURSIVE;
                let fd = libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, at.as_ptr(), flags);
                if fd < 0 {
                    return fd;
                }
                let moved = libc::dup3(fd as RawFd, place, libc::O_CLOEXEC);
                libc::close(fd as RawFd);
                i64::from(moved)
            },
        ];
        for step in steps {
            if step() < 0 {
                return *libc::__errno_location();
            }
        }
    }
    0
}

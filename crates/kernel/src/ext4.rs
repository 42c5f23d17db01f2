//! What ext4 alone offers.

use crate::mount::Tree;
use crate::{CallError, Context};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::AsRawFd;

/// `EXT4_IOC_RESIZE_FS` (fs/ext4/ext4.h): `_IOW('f', 16, __u64)`.
const RESIZE_FS: libc::c_ulong = 0x4008_6610;

/// Makes a mounted file system larger, as large as so many bytes, while it is in use (EXT4_IOC_RESIZE_FS, since Linux 3.7). Its device has to be as large already.
///
/// # Errors
///
/// EPERM without CAP_SYS_RESOURCE; EINVAL for less than it has.
pub fn grow(tree: &Tree, bytes: u64) -> Result<(), CallError> {
    let attempt = || -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(tree, ".", flags, Mode::empty())?;
        let block = u64::try_from(rustix::fs::fstatfs(&root)?.f_bsize).unwrap_or(4096).max(1);
        let blocks = bytes / block;
        // SAFETY: the kernel reads the number, and keeps no pointer to it.
        let result = unsafe { libc::ioctl(root.as_raw_fd(), RESIZE_FS, &raw const blocks) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    attempt().context(|| format!("making a file system {bytes} bytes large"))
}

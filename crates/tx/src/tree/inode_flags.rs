//! What chattr(1) sets of a file or directory: flags that only its file system knows, and that are asked for through
//! the object itself.

use rustix::fs::{FileType, IFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Opens what is open as a mere place, with its flags; nothing where there are none: only files and directories have
/// any, and not on every file system.
pub(crate) fn open_with_flags(object: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, IFlags)>> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(object)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(None);
    }
    let path = format!("/proc/self/fd/{}", object.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOATIME | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty())?;
    match rustix::fs::ioctl_getflags(&opened) {
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(None),
        flags => Ok(Some((opened, flags?))),
    }
}

/// Has an object's flags be what `change` makes of them, where it has any.
pub(crate) fn change_flags(object: BorrowedFd<'_>, change: impl FnOnce(&mut IFlags)) -> io::Result<()> {
    let Some((opened, now)) = open_with_flags(object)? else { return Ok(()) };
    let mut wanted = now;
    change(&mut wanted);
    if wanted != now {
        rustix::fs::ioctl_setflags(&opened, wanted)?;
    }
    Ok(())
}

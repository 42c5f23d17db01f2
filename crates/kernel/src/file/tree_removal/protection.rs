//! Removing what chattr(1) protects.

use rustix::fs::{AtFlags, FileType, IFlags, Mode, OFlags, ResolveFlags, openat2, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const PROTECTING: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// Unlinks a file that is protected, or that lies in a directory that is. A file that has another name is protected
/// again: that one may be in use.
pub(super) fn unlink(directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    lift(directory)?;
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::PERM) => {}
        done => return done,
    }
    let Some(file) = open_plain(directory, name)? else { return Err(Errno::PERM) };
    let before = lift(file.as_fd())?;
    let unlinked = unlinkat(directory, name, AtFlags::empty());
    if let Some(before) = before
        && (unlinked.is_err() || rustix::fs::fstat(&file)?.st_nlink > 0)
    {
        rustix::fs::ioctl_setflags(&file, before)?;
    }
    unlinked
}

/// Lifts what protects an open file or directory; the flags that it had before, if any of them did.
pub(super) fn lift(object: BorrowedFd<'_>) -> Result<Option<IFlags>, Errno> {
    let before = match rustix::fs::ioctl_getflags(object) {
        // Its file system knows no flags. Or it was opened as a mere place, by a caller that names the top of a tree:
        // what that lies in is not ours to change.
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::BADF) => return Ok(None),
        flags => flags?,
    };
    if !before.intersects(PROTECTING) {
        return Ok(None);
    }
    rustix::fs::ioctl_setflags(object, before.difference(PROTECTING))?;
    Ok(Some(before))
}

/// Opens a file that is a plain one; to open another kind may do something.
fn open_plain(directory: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let place =
        match openat2(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), confined) {
            Err(Errno::LOOP) => return Ok(None),
            place => place?,
        };
    if !FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode).is_file() {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOATIME | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/self/fd/{}", place.as_raw_fd()), flags, Mode::empty()).map(Some)
}

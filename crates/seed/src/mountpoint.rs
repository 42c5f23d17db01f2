//! Places inside a new root that is not the root yet, and whose files a guest may have arranged: every path is resolved inside it (openat2(2),
//! RESOLVE_IN_ROOT), so that no link leads to the host's files.

use core::ffi::CStr;
use pando_seed::Make;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::MoveMountFlags;

/// How often a path is looked up again; the next time nearly always succeeds.
const MAX_TRIES: u32 = 64;

/// A path inside `root`, opened as a mere place.
pub(crate) fn resolve(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    open(root, path, OFlags::PATH | OFlags::CLOEXEC)
}

/// What a path inside `root` means, opened.
pub(crate) fn open(root: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let attempt = || rustix::fs::openat2(root, path, flags, Mode::empty(), confined);
    // EAGAIN: a rename or a mount anywhere on the machine raced with a `..` of a link on the way.
    let found = (1..MAX_TRIES).map(|_| attempt()).find(|found| !matches!(found, Err(Errno::AGAIN)));
    found.unwrap_or_else(attempt)
}

/// Attaches a detached tree at a path inside `root`.
pub(crate) fn attach(tree: BorrowedFd<'_>, root: BorrowedFd<'_>, at: &CStr, make: Make) -> Result<(), Errno> {
    let place = match (resolve(root, at), make) {
        (Err(Errno::NOENT), Make::Skip) => return Ok(()),
        (Err(Errno::NOENT), Make::Directory | Make::File) => {
            build(root, at, make)?;
            resolve(root, at)?
        }
        (outcome, _) => outcome?,
    };
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", place.as_fd(), c"", flags)
}

/// Makes what is missing of a path: directories, and a file at its end where one is wanted.
fn build(root: BorrowedFd<'_>, at: &CStr, make: Make) -> Result<(), Errno> {
    const LONGEST: usize = 4096;
    let path = at.to_bytes();
    let mut prefix = [0_u8; LONGEST];
    if path.len() >= LONGEST {
        return Err(Errno::NAMETOOLONG);
    }
    prefix[..path.len()].copy_from_slice(path);
    let mut parent = rustix::io::fcntl_dupfd_cloexec(root, 3)?;
    let mut start = 0;
    while start < path.len() {
        let end = path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |length| start + length);
        if end > start {
            let up_to_here = |prefix: &mut [u8; LONGEST],
                              from: usize,
                              act: &mut dyn FnMut(&CStr) -> Result<OwnedFd, Errno>| {
                let saved = prefix[end];
                prefix[end] = 0;
                let outcome = CStr::from_bytes_with_nul(&prefix[from..=end]).map_err(|_| Errno::INVAL).and_then(act);
                prefix[end] = saved;
                outcome
            };
            let found = up_to_here(&mut prefix, 0, &mut |path| resolve(root, path));
            parent = match found {
                Err(Errno::NOENT) => {
                    let file = end == path.len() && make == Make::File;
                    up_to_here(&mut prefix, start, &mut |name| make_one(parent.as_fd(), name, file))?
                }
                found => found?,
            };
        }
        start = end + 1;
    }
    Ok(())
}

/// Makes one name in a directory, and opens it as a mere place.
fn make_one(parent: BorrowedFd<'_>, name: &CStr, file: bool) -> Result<OwnedFd, Errno> {
    if file {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        drop(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o644))?);
    } else {
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
    }
    rustix::fs::openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

//! Places inside a new root that is not the root yet, and whose files a guest may have arranged: every path is resolved
//! inside it (openat2(2), RESOLVE_IN_ROOT), so that no link leads to the host's files.

use core::ffi::CStr;
use pando_shim::{Make, PathTooLong, WalkedPath};
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
    look_up(root, path, flags, ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
}

fn look_up(root: BorrowedFd<'_>, path: &CStr, flags: OFlags, rules: ResolveFlags) -> Result<OwnedFd, Errno> {
    let attempt = || rustix::fs::openat2(root, path, flags, Mode::empty(), rules);
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
    attach_to(tree, place.as_fd())
}

/// Attaches a detached tree at a place.
pub(crate) fn attach_to(tree: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", place, c"", flags)
}

/// A path inside `root`, opened as a mere place, which is made where it is missing: no link is on the way there. `None`
/// where a missing one is passed over.
pub(crate) fn plain(root: BorrowedFd<'_>, at: &CStr, make: Make) -> Result<Option<OwnedFd>, Errno> {
    let rules = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let attempt = || look_up(root, at, OFlags::PATH | OFlags::CLOEXEC, rules);
    match (attempt(), make) {
        (Err(Errno::NOENT), Make::Skip) => Ok(None),
        (Err(Errno::NOENT), Make::Directory | Make::File) => {
            build(root, at, make)?;
            attempt().map(Some)
        }
        (found, _) => found.map(Some),
    }
}

/// Makes a directory inside `root`, and those above it, where they are missing.
pub(crate) fn make_directory(root: BorrowedFd<'_>, at: &CStr) -> Result<(), Errno> {
    match resolve(root, at) {
        Err(Errno::NOENT) => build(root, at, Make::Directory),
        found => found.map(drop),
    }
}

/// The most links to nothing that are followed on the way to a path: as many as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Makes what is missing of a path: directories, and a file at its end where one is wanted. Where a link leads to
/// nothing, what it leads to is made, inside `root` as well: /etc/resolv.conf often is such a link, into a /run that is
/// empty until something is started.
fn build(root: BorrowedFd<'_>, at: &CStr, make: Make) -> Result<(), Errno> {
    let mut path = WalkedPath::new(at).map_err(too_long)?;
    let mut links = 0;
    let mut parent = rustix::io::fcntl_dupfd_cloexec(root, 3)?;
    let mut start = 0;
    while start < path.length() {
        let end = path.end_of_name(start);
        if end > start {
            let found = path.cut(0, end, |prefix| resolve(root, prefix));
            parent = match found {
                Err(Errno::NOENT) => match path.cut(start, end, |name| link_at(parent.as_fd(), name))? {
                    Some(link) if links < MAX_LINKS => {
                        let read = |room: &mut [u8]| rustix::fs::readlinkat_raw(&link, c"", room).map_err(Unfollowed);
                        path.follow(start, end, read).map_err(|Unfollowed(errno)| errno)?;
                        links += 1;
                        (parent, start) = (rustix::io::fcntl_dupfd_cloexec(root, 3)?, 0);
                        continue;
                    }
                    Some(_) => return Err(Errno::LOOP),
                    None => {
                        let file = end == path.length() && make == Make::File;
                        path.cut(start, end, |name| make_one(parent.as_fd(), name, file))?
                    }
                },
                found => found?,
            };
        }
        start = end + 1;
    }
    Ok(())
}

/// Why a link was not followed.
struct Unfollowed(Errno);

impl From<PathTooLong> for Unfollowed {
    fn from(long: PathTooLong) -> Self {
        Self(too_long(long))
    }
}

fn too_long(_: PathTooLong) -> Errno {
    Errno::NAMETOOLONG
}

/// The link of a name in a directory, opened as a mere place; `None` where there is nothing of that name.
fn link_at(parent: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    match rustix::fs::openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(link) => Ok(Some(link)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
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

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

/// The most links to nothing that are followed on the way to a path: as many as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Makes what is missing of a path: directories, and a file at its end where one is wanted. Where a link leads to nothing, what it leads to is made, inside `root`
/// as well: /etc/resolv.conf often is such a link, into a /run that is empty until something is started.
fn build(root: BorrowedFd<'_>, at: &CStr, make: Make) -> Result<(), Errno> {
    let mut path = Path::new(at)?;
    let mut links = 0;
    let mut parent = rustix::io::fcntl_dupfd_cloexec(root, 3)?;
    let mut start = 0;
    while start < path.length {
        let end = path.end_of_name(start);
        if end > start {
            let found = path.cut(0, end, &mut |prefix| resolve(root, prefix));
            parent = match found {
                Err(Errno::NOENT) => match path.cut(start, end, &mut |name| link_at(parent.as_fd(), name))? {
                    Some(link) if links < MAX_LINKS => {
                        path.follow(start, end, &link)?;
                        links += 1;
                        (parent, start) = (rustix::io::fcntl_dupfd_cloexec(root, 3)?, 0);
                        continue;
                    }
                    Some(_) => return Err(Errno::LOOP),
                    None => {
                        let file = end == path.length && make == Make::File;
                        path.cut(start, end, &mut |name| make_one(parent.as_fd(), name, file))?
                    }
                },
                found => found?,
            };
        }
        start = end + 1;
    }
    Ok(())
}

/// The link of a name in a directory, opened as a mere place; `None` where there is nothing of that name.
fn link_at(parent: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    match rustix::fs::openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(link) => Ok(Some(link)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

const LONGEST: usize = 4096;

/// A path that is gone along name by name, and whose links are replaced by what they say.
struct Path {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Path {
    fn new(text: &CStr) -> Result<Self, Errno> {
        let text = text.to_bytes();
        let mut bytes = [0; LONGEST];
        // A zero has to fit in behind it.
        if text.len() >= LONGEST {
            return Err(Errno::NAMETOOLONG);
        }
        bytes[..text.len()].copy_from_slice(text);
        Ok(Self { bytes, length: text.len() })
    }

    /// Where the name that begins at `start` ends.
    fn end_of_name(&self, start: usize) -> usize {
        let slash = self.bytes[start..self.length].iter().position(|byte| *byte == b'/');
        slash.map_or(self.length, |length| start + length)
    }

    /// Does something with a part of it.
    fn cut<T>(&mut self, from: usize, to: usize, act: &mut dyn FnMut(&CStr) -> Result<T, Errno>) -> Result<T, Errno> {
        let saved = core::mem::replace(&mut self.bytes[to], 0);
        let outcome = CStr::from_bytes_with_nul(&self.bytes[from..=to]).map_err(|_| Errno::INVAL).and_then(act);
        self.bytes[to] = saved;
        outcome
    }

    /// Puts what a link says in the place of its name, from `start` to `end`: all that is before it too, where that begins at the root.
    fn follow(&mut self, start: usize, end: usize, link: &OwnedFd) -> Result<(), Errno> {
        // What comes after the name waits at the end of the room.
        let rest = self.length - end;
        let moved = LONGEST - 1 - rest;
        self.bytes.copy_within(end..self.length, moved);
        let read = rustix::fs::readlinkat_raw(link, c"", &mut self.bytes[start..moved])?;
        // One that fills the room may be cut.
        if read == 0 || start + read >= moved {
            return Err(Errno::NAMETOOLONG);
        }
        let begin = if self.bytes[start] == b'/' { 0 } else { start };
        self.bytes.copy_within(start..start + read, begin);
        self.bytes.copy_within(moved..moved + rest, begin + read);
        self.length = begin + read + rest;
        Ok(())
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

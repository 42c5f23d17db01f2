//! Mounts inside a new root, held by descriptor.
//!
//! What is hidden and protected in procfs and sysfs is what keeps the machine's settings from a container. A path to
//! them, looked up once more, may lead elsewhere by then: an image has a link in the place of `/proc`, into a volume
//! that a neighbour changes, or that was not mounted yet. So such a file system, new or the host's own, goes to a plain
//! place alone, and a path below it is looked up beneath its mount. Likewise what is changed later is the mount that
//! was made, and not what its path leads to afterwards.

use crate::mountpoint;
use core::ffi::CStr;
use pando_shim::Mountpoint;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// The most that are held: more than any configuration has of its own file systems.
const MOST: usize = 64;

/// The mounts that were made so far.
pub(crate) struct HeldMounts([Option<HeldMount>; MOST]);

impl Default for HeldMounts {
    fn default() -> Self {
        Self([const { None }; MOST])
    }
}

struct HeldMount {
    /// The path that it was mounted at, relative to the new root.
    at: &'static CStr,
    mount: OwnedFd,
    /// Whether it shows what the kernel has to say.
    kernels: bool,
}

/// Whether a tree shows what the kernel has to say, or stands where others look for that.
fn is_kernels(tree: BorrowedFd<'_>, at: &CStr) -> bool {
    const PROC_SUPER_MAGIC: i64 = 0x9fa0;
    const SYSFS_MAGIC: i64 = 0x6265_6572;
    // Those two always answer.
    let shows = |found: rustix::fs::StatFs| matches!(found.f_type, PROC_SUPER_MAGIC | SYSFS_MAGIC);
    matches!(at.to_bytes(), b"proc" | b"sys") || rustix::fs::fstatfs(tree).is_ok_and(shows)
}

impl HeldMounts {
    /// Attaches a tree of others inside `root`. On the way to one of the kernel's no link may be (ELOOP).
    pub(crate) fn attach(
        &mut self,
        tree: BorrowedFd<'_>,
        root: BorrowedFd<'_>,
        on: &Mountpoint<'static>,
    ) -> Result<(), Errno> {
        if is_kernels(tree, on.at.c_str()) {
            return self.attach_plainly(rustix::io::fcntl_dupfd_cloexec(tree, 3)?, root, on);
        }
        let (root, at) = self.place(root, on.at.c_str());
        mountpoint::attach(tree, root, at, on.make)
    }

    /// Attaches a new file system inside `root`, and holds it.
    pub(crate) fn attach_new(
        &mut self,
        tree: OwnedFd,
        root: BorrowedFd<'_>,
        on: &Mountpoint<'static>,
    ) -> Result<(), Errno> {
        if is_kernels(tree.as_fd(), on.at.c_str()) {
            return self.attach_plainly(tree, root, on);
        }
        let (root, at) = self.place(root, on.at.c_str());
        mountpoint::attach(tree.as_fd(), root, at, on.make)?;
        // One more than are held cannot be changed, which whoever wants that is told.
        if let Some(free) = self.free() {
            *free = Some(HeldMount { at: on.at.c_str(), mount: tree, kernels: false });
        }
        Ok(())
    }

    fn attach_plainly(&mut self, tree: OwnedFd, root: BorrowedFd<'_>, on: &Mountpoint<'static>) -> Result<(), Errno> {
        let (root, at) = self.place(root, on.at.c_str());
        let Some(place) = mountpoint::plain(root, at, on.make)? else { return Ok(()) };
        let free = self.free().ok_or(Errno::NOSPC)?;
        mountpoint::attach_to(tree.as_fd(), place.as_fd())?;
        *free = Some(HeldMount { at: on.at.c_str(), mount: tree, kernels: true });
        Ok(())
    }

    fn free(&mut self) -> Option<&mut Option<HeldMount>> {
        self.0.iter_mut().find(|held| held.is_none())
    }

    /// Where a path inside `root` is to be looked up, and what of it: in the mount that it lies in, if that is one of
    /// the kernel's. No link of the kernel's leads out of there.
    pub(crate) fn place<'a>(&'a self, root: BorrowedFd<'a>, path: &'a CStr) -> (BorrowedFd<'a>, &'a CStr) {
        self.beneath(root, path, |held| held.kernels)
    }

    /// The same, of any mount that is held: for what is put into a file system that was made for this root.
    pub(crate) fn own_place<'a>(&'a self, root: BorrowedFd<'a>, path: &'a CStr) -> (BorrowedFd<'a>, &'a CStr) {
        self.beneath(root, path, |_| true)
    }

    fn beneath<'a>(
        &'a self,
        root: BorrowedFd<'a>,
        path: &'a CStr,
        counts: impl Fn(&HeldMount) -> bool,
    ) -> (BorrowedFd<'a>, &'a CStr) {
        // What was mounted last lies over what was mounted before.
        let mounts = self.0.iter().rev().flatten().filter(|held| counts(held));
        let mut found = mounts.filter_map(|held| Some((held.mount.as_fd(), held.below(path)?)));
        found.next().map_or((root, path), |(mount, rest)| (mount, if rest.is_empty() { c"." } else { rest }))
    }

    /// A path inside `root`, opened as a mere place.
    pub(crate) fn resolve(&self, root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
        let (root, path) = self.place(root, path);
        mountpoint::resolve(root, path)
    }

    /// The mount that was made at a path (ENOSPC where it is not held).
    pub(crate) fn made_at(&self, path: &CStr) -> Result<BorrowedFd<'_>, Errno> {
        let mut made = self.0.iter().rev().flatten().filter(|held| held.at == path);
        made.next().map(|held| held.mount.as_fd()).ok_or(Errno::NOSPC)
    }
}

impl HeldMount {
    /// What is left of a path below it; `None` where the path is elsewhere.
    fn below<'a>(&self, path: &'a CStr) -> Option<&'a CStr> {
        let rest = path.to_bytes_with_nul().strip_prefix(self.at.to_bytes())?;
        // Doubled slashes are one.
        let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
        let whole = slashes > 0 || rest.first() == Some(&0);
        CStr::from_bytes_with_nul(&rest[slashes..]).ok().filter(|_| whole)
    }
}

//! Read-only images of metadata (Documentation/filesystems/erofs.rst), mounted straight from a file.

use crate::mount::{Attributes, Tree};
use crate::{CallError, Context};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// Mounts the image in the file at `path`, without a loop device (since Linux 6.12).
///
/// The kernel parses it: only images that Pando wrote itself, where nobody else can write, may be given.
///
/// # Errors
///
/// ENOTBLK where erofs mounts block devices only: an older kernel, or a file on an overlay. ENODEV without erofs.
pub fn mount(path: &Path) -> Result<Tree, CallError> {
    let make = || {
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let context = rustix::mount::fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // An option takes 255 bytes; a path may be longer. The number of the descriptor means nothing afterwards: the
        // kernel holds the file.
        let short = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::mount::fsconfig_set_string(context.as_fd(), "source", short)?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        rustix::mount::fsmount(
            context.as_fd(),
            FsMountFlags::FSMOUNT_CLOEXEC,
            Attributes::MOUNT_ATTR_RDONLY | Attributes::MOUNT_ATTR_NODEV,
        )
    };
    make().map(Tree::from).context(|| format!("mounting the image {}", path.display()))
}

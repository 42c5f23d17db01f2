//! Host directories and files shown inside a guest.

use pando_api::Volume;
use pando_kernel::mount::{Attributes, Tree};
use pando_kernel::{CallError, Context, mount_lock};
use std::os::fd::BorrowedFd;
use std::path::Path;

/// The volume's tree, owned inside as it is outside if the guest has a user namespace: root's files are the guest's root's.
pub fn tree(volume: &Volume, user_namespace: Option<BorrowedFd<'_>>) -> Result<Tree, CallError> {
    let tree = Tree::clone_of(Path::new(&volume.source), false)?;
    if let Some(namespace) = user_namespace {
        tree.map_ids(namespace)?;
    }
    let mut attributes = Attributes::MOUNT_ATTR_NODEV;
    if volume.read_only {
        attributes |= Attributes::MOUNT_ATTR_RDONLY;
    }
    tree.set_attributes(false, attributes)?;
    if volume.read_only && user_namespace.is_some() {
        // Root in there could make it writable again: a guest may have CAP_SYS_ADMIN over its own mounts.
        return mount_lock::lock(tree).context(|| format!("locking the volume {}", volume.source));
    }
    Ok(tree)
}

/// Whether the volume's source is something else than a directory.
pub fn is_file(volume: &Volume) -> Result<bool, CallError> {
    let source = std::fs::metadata(&volume.source).context(|| format!("looking at the volume {}", volume.source))?;
    Ok(!source.is_dir())
}

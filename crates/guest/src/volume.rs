//! Host directories and files shown inside a guest, with the file systems that are mounted below them.
//!
//! What a volume's path leads to is found once a start; then it is a descriptor ([`operator_path`]).
//!
//! [`operator_path`]: pando_kernel::file::operator_path

use pando_api::Volume;
use pando_kernel::file::operator_path::{OperatorPath, Shared};
use pando_kernel::mount::{self, Attributes, MountEntry, Tree};
use pando_kernel::{CallError, Context};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// What the volume's path leads to on the host. `shared` are the directories that guests can write to.
pub fn find(volume: &Volume, shared: &[Shared]) -> Result<OperatorPath, CallError> {
    OperatorPath::open(Path::new(&volume.source), shared).context(|| format!("looking at the volume {}", volume.source))
}

/// The volume's tree, owned inside as it is outside if the guest has a user namespace: root's files are the guest's
/// root's. What is mounted below is part of it. Where the owners of one of those file systems cannot be mapped, such as
/// of /proc, all of them are nobody's, and what others than the owner may do everybody inside may.
pub fn tree(volume: &Volume, source: &OperatorPath, user_namespace: Option<BorrowedFd<'_>>) -> Result<Tree, CallError> {
    let tree = Tree::clone_below(source).map_err(|error| CallError {
        what: format!("{} of the volume {}", error.what, volume.source),
        source: error.source,
    })?;
    if let Some(namespace) = user_namespace
        && let Err(error) = tree.map_ids_of_all(namespace)
    {
        tracing::debug!(%error, volume = volume.source, "what is mounted below it is nobody's");
        tree.map_ids(namespace)
            .map_err(|error| why_unmapped(error, source.path(), &mount::mounts().unwrap_or_default()))?;
    }
    let mut attributes = Attributes::MOUNT_ATTR_NODEV;
    if volume.read_only {
        attributes |= Attributes::MOUNT_ATTR_RDONLY;
    }
    tree.set_attributes(true, attributes)?;
    if volume.read_only && user_namespace.is_some() {
        // Root in there could make it writable again: a guest may have CAP_SYS_ADMIN over its own mounts.
        return mount::lock::lock(tree).context(|| format!("locking the volume {}", volume.source));
    }
    Ok(tree)
}

/// The kernel's EINVAL in words.
fn why_unmapped(error: CallError, source: &Path, mounts: &[MountEntry]) -> CallError {
    if error.source.kind() != io::ErrorKind::InvalidInput {
        return error;
    }
    let own = mounts.iter().rev().filter(|entry| source.starts_with(&entry.at));
    let Some(own) = own.max_by_key(|entry| entry.at.as_os_str().len()) else { return error };
    let instead = match own.kind.as_str() {
        "devtmpfs" => format!("--device {} gives the guest a device", source.display()),
        _ => "give a directory of another file system, or start the guest with --userns host".to_owned(),
    };
    let why = format!(
        "it lies on a file system of kind {}, whose owners this kernel cannot map to a guest's; {instead}",
        own.kind
    );
    CallError { what: format!("showing the volume {}", source.display()), source: io::Error::other(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_file_system_is_named() {
        let table = b"27 1 254:0 / / rw - ext4 /dev/vda rw\n40 27 0:1 / /srv rw - overlay overlay rw\n";
        let mounts: Vec<_> = mount::entries(table).collect();
        let error = |errno| CallError { what: String::new(), source: io::Error::from_raw_os_error(errno) };
        let said = why_unmapped(error(22), Path::new("/srv/a"), &mounts);
        assert!(said.source.to_string().contains("kind overlay"), "{said}");
        let table = b"27 1 254:0 / / rw - ext4 /dev/vda rw\n30 27 0:6 / /dev rw - devtmpfs udev rw\n";
        let mounts: Vec<_> = mount::entries(table).collect();
        assert!(
            why_unmapped(error(22), Path::new("/dev/fuse"), &mounts).source.to_string().contains("--device /dev/fuse")
        );
        let mounts = Vec::new();
        assert_eq!(why_unmapped(error(1), Path::new("/srv/a"), &mounts).source.raw_os_error(), Some(1));
    }
}

//! A tree as a stranger sees it: a user that owns nothing there, is in no group and has no power over files.
//!
//! An overlay looks at the trees below it as the user that made it, each time that something is opened or looked up.
//! One that was made by a stranger gives no user, however powerful, what that stranger could not read: also what
//! becomes private later, what an access list says, what bears another name.

use crate::mount::overlay::{Stage, refuses_descriptors};
use crate::mount::{Attributes, Tree};
use crate::{CallError, Context};
use rustix::mount::{FsMountFlags, FsOpenFlags};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

/// An id that is nobody's: container managers, systemd and account tools give none so high.
const STRANGER: u32 = u32::MAX - 0x1_0000;

/// Nothing of these is safe over a tree that others change.
const OPTIONS: [(&str, &str); 3] = [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow")];

/// The tree, read-only, as a stranger sees it. Its owners are shown as the tree shows them; it cannot be given another
/// map itself. On kernels that take no descriptors for layers it is made by way of `beside`, a directory of the host.
///
/// # Errors
///
/// EINVAL where the tree lies on two overlays already.
pub fn seen_by_stranger(tree: &Tree, name: &str, beside: &Path) -> Result<Tree, CallError> {
    let seen = || format!("looking at the files of {name} as a stranger does");
    // The kernel wants two trees. The other one lies in no directory of the first.
    let empty = empty()?;
    let by_descriptors = |context: BorrowedFd<'_>| -> rustix::io::Result<()> {
        rustix::mount::fsconfig_set_fd(context, "lowerdir+", tree.as_fd())?;
        rustix::mount::fsconfig_set_fd(context, "lowerdir+", empty.as_fd())
    };
    match make(name, &by_descriptors) {
        Err(error) if refuses_descriptors(&error) => {
            let stage = Stage::new(beside).context(seen)?;
            let attach = |tree: &Tree, name: &str| stage.attach(tree, name).context(seen);
            let layers = [attach(tree, "tree")?, attach(&new_empty()?, "empty")?].join(":");
            make(name, &|context| rustix::mount::fsconfig_set_string(context, "lowerdir", layers.as_str()))
                .context(seen)
        }
        made => made.context(seen),
    }
}

fn new_empty() -> Result<Tree, CallError> {
    Tree::new("tmpfs", &[("size", "4k"), ("mode", "0755")], Attributes::MOUNT_ATTR_RDONLY)
}

/// An empty tree. It stays: letting one go that is attached nowhere waits for a grace period.
fn empty() -> Result<&'static Tree, CallError> {
    static EMPTY: OnceLock<Tree> = OnceLock::new();
    if let Some(empty) = EMPTY.get() {
        return Ok(empty);
    }
    let made = new_empty()?;
    Ok(EMPTY.get_or_init(|| made))
}

fn make(name: &str, name_layers: &dyn Fn(BorrowedFd<'_>) -> rustix::io::Result<()>) -> io::Result<Tree> {
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "source", name)?;
    name_layers(context.as_fd())?;
    for (key, value) in OPTIONS {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)?;
    }
    let create = || -> io::Result<OwnedFd> {
        become_stranger()?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        let attributes = Attributes::MOUNT_ATTR_RDONLY | Attributes::MOUNT_ATTR_NODEV;
        Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
    };
    // A thread of its own: what it gives up it never gets back.
    let made = std::thread::scope(|scope| scope.spawn(create).join());
    made.unwrap_or_else(|_| Err(io::Error::other("the thread that makes it failed"))).map(Tree::from)
}

/// Gives up all that this thread may do to files; what is left is that it may mount.
fn become_stranger() -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    crate::file::fs_owner::set(STRANGER);
    let mount = CapabilitySet::SYS_ADMIN;
    let sets = CapabilitySets { effective: mount, permitted: mount, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    if crate::file::fs_owner::current() == (STRANGER, STRANGER) {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    /// Needs root; without it there is nothing to see.
    #[test]
    fn what_others_may_not_read_is_not_read_by_root_either_whenever_it_became_private() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: mounting needs root");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let mode = |name: &str, mode| std::fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
        mode("", 0o755);
        for (name, bits) in [("open", 0o644), ("private", 0o600), ("of the group", 0o640), ("later", 0o644)] {
            std::fs::write(path(name), name).unwrap();
            mode(name, bits);
        }
        std::fs::create_dir(path("closed")).unwrap();
        std::fs::write(path("closed/file"), "inside").unwrap();
        mode("closed", 0o710);
        std::fs::hard_link(path("private"), path("another name")).unwrap();
        let tree = seen_by_stranger(&Tree::clone_of(root.path(), false).unwrap(), "test", root.path()).unwrap();
        let shown = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/self/fd/{}/{name}", tree.as_fd().as_raw_fd()));
            text.map_err(|error| error.kind())
        };
        assert_eq!(shown("open").unwrap(), "open");
        assert_eq!(shown("later").unwrap(), "later");
        mode("later", 0o600);
        for name in ["private", "of the group", "later", "closed/file", "another name"] {
            assert_eq!(shown(name), Err(io::ErrorKind::PermissionDenied), "{name}");
        }
    }
}

//! The memory devices of the host (null, zero, full, random, urandom) that a guest is given as standard descriptors:
//! each as a node of its own.
//!
//! The host's node is one inode for the whole machine. A process that has it open may lock it (flock), watch it
//! (inotify) and set its times, and with the host's ids its mode, owner and attributes: so a guest would keep the host
//! from its /dev/null, and talk to its neighbours. A node of the same numbers behaves the same, and belongs to no
//! other: it is made for one descriptor, and has lost its name when the guest gets it.

use pando_kernel::mount::{Attributes, Tree};
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The major number of memory devices, and the minor ones of those that have no state: null, zero, full, random,
/// urandom.
const MEMORY: u32 = 1;
const STATELESS: [u32; 5] = [3, 5, 7, 8, 9];

const PERMISSIONS: u32 = 0o666;

/// Where the node is made. By this name /proc shows it, with "(deleted)" after it.
const DIRECTORY: &str = "dev";
const NAME: &str = "dev/null";

/// A node of the guest's own in place of a memory device, opened as `given` is; `None` if that is something else.
pub(crate) fn own(given: &OwnedFd) -> Result<Option<OwnedFd>, CallError> {
    let making = || "making a device of the guest's own".to_owned();
    let about = rustix::fs::fstat(given).context(making)?;
    let (major, minor) = (rustix::fs::major(about.st_rdev), rustix::fs::minor(about.st_rdev));
    let is_device = FileType::from_raw_mode(about.st_mode) == FileType::CharacterDevice;
    if !is_device || major != MEMORY || !STATELESS.contains(&minor) {
        return Ok(None);
    }
    let kept = OFlags::ACCMODE | OFlags::APPEND | OFlags::NONBLOCK;
    let flags = rustix::fs::fcntl_getfl(given).context(making)? & kept;
    node(minor, flags).map(Some)
}

fn node(minor: u32, flags: OFlags) -> Result<OwnedFd, CallError> {
    let tree = place()?;
    let tree = tree.lock().unwrap_or_else(PoisonError::into_inner);
    tree.make_device(NAME, FileType::CharacterDevice, PERMISSIONS, (MEMORY, minor))?;
    let opened = rustix::fs::openat(&*tree, NAME, flags | OFlags::CLOEXEC, Mode::empty());
    let unlinked = rustix::fs::unlinkat(&*tree, NAME, AtFlags::empty());
    let ready = |node: OwnedFd| {
        unlinked?;
        // Whatever this process's umask.
        rustix::fs::fchmod(&node, Mode::from_raw_mode(PERMISSIONS))?;
        Ok::<_, Errno>(node)
    };
    opened.and_then(ready).context(|| "opening a device of the guest's own".into())
}

/// A file system in memory that nobody sees, for as long as this process lives. One node at a time has the name.
fn place() -> Result<&'static Mutex<Tree>, CallError> {
    static PLACE: OnceLock<Mutex<Tree>> = OnceLock::new();
    if let Some(place) = PLACE.get() {
        return Ok(place);
    }
    let attributes = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NOEXEC;
    let tree = Tree::new("tmpfs", &[("mode", "0700"), ("size", "64k")], attributes)?;
    rustix::fs::mkdirat(tree.as_fd(), DIRECTORY, Mode::from_raw_mode(0o700))
        .context(|| "making a place for devices of guests".into())?;
    Ok(PLACE.get_or_init(|| Mutex::new(tree)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    fn identity(file: &OwnedFd) -> (u64, u64) {
        let about = rustix::fs::fstat(file).unwrap();
        (about.st_dev, about.st_ino)
    }

    #[test]
    fn what_is_no_memory_device_stays() {
        assert!(own(&tempfile::tempfile().unwrap().into()).unwrap().is_none());
        assert!(own(&rustix::pipe::pipe().unwrap().0).unwrap().is_none());
    }

    #[test]
    fn each_descriptor_has_its_own_node_of_the_same_kind() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let null: OwnedFd = File::open("/dev/null").unwrap().into();
        let (one, two) = (own(&null).unwrap().unwrap(), own(&null).unwrap().unwrap());
        assert!(identity(&one) != identity(&null) && identity(&two) != identity(&null));
        assert_ne!(identity(&one), identity(&two));
        let about = rustix::fs::fstat(&one).unwrap();
        assert_eq!((about.st_rdev, about.st_mode & 0o7777), (rustix::fs::makedev(1, 3), PERMISSIONS));
        assert_eq!(rustix::io::write(&one, b"x"), Err(Errno::BADF), "it is open to be read alone, as the given one");
        let zero: OwnedFd = File::open("/dev/zero").unwrap().into();
        let mut bytes = [1; 4];
        File::from(own(&zero).unwrap().unwrap()).read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 4]);
    }
}

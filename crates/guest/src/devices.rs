//! A guest's /dev: a small file system with the nodes that every program expects, and no others.

use crate::host_device::HostDevice;
use pando_kernel::mount::{Attributes, Tree};
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

/// Name, major and minor number (Documentation/admin-guide/devices.txt).
const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 6] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", "/proc/kcore"),
];

/// What all files of /dev, shared memory included, may take together.
const SIZE: &str = "64m";

/// The file that has another content in each guest, and in each clone another than in what was frozen: by it a program
/// finds out that its memory is a copy.
pub const GENERATION: &str = "pando-generation";

/// Makes it, owned by `owner` on the host.
///
/// It is made outside the guest's user namespace, where alone device nodes come alive; the guest owns the directory but
/// cannot make nodes in it.
pub fn tree(owner: u32) -> Result<Tree, CallError> {
    let id = owner.to_string();
    let options = [("mode", "0755"), ("size", SIZE), ("nr_inodes", "4k"), ("uid", &id), ("gid", &id)];
    let attributes = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NOEXEC;
    let tree = Tree::new("tmpfs", &options, attributes)?;
    for (name, major, minor) in NODES {
        tree.make_device(name, FileType::CharacterDevice, 0o666, (major, minor))?;
        permit(&tree, name, 0o666)?;
        own(&tree, name, owner)?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, &tree, name).context(|| format!("making /dev/{name}"))?;
        own(&tree, name, owner)?;
    }
    for (name, mode) in [("pts", 0o755), ("mqueue", 0o755), ("shm", 0o1777)] {
        rustix::fs::mkdirat(&tree, name, Mode::from_raw_mode(mode)).context(|| format!("making /dev/{name}"))?;
        permit(&tree, name, mode)?;
        own(&tree, name, owner)?;
    }
    generation(&tree).context(|| format!("making /dev/{GENERATION}"))?;
    permit(&tree, GENERATION, 0o444)?;
    own(&tree, GENERATION, owner)?;
    Ok(tree)
}

/// Adds nodes of the host's devices to one that [`tree`] made, before anything of its guest has run: nobody has put
/// anything there. Each is a node of the guest's own, as all the others are, and the host's inode stays the host's.
///
/// # Errors
///
/// The kernel's; EEXIST where the name is taken.
pub fn give(tree: &Tree, owner: u32, devices: &[HostDevice]) -> Result<(), CallError> {
    for device in devices {
        let parents = device.name.match_indices('/').map(|(at, _)| &device.name[..at]);
        for parent in parents {
            match rustix::fs::mkdirat(tree, parent, Mode::from_raw_mode(0o755)) {
                Err(rustix::io::Errno::EXIST) => {}
                made => {
                    made.context(|| format!("making /dev/{parent}"))?;
                    permit(tree, parent, 0o755)?;
                    own(tree, parent, owner)?;
                }
            }
        }
        tree.make_device(&device.name, device.kind, device.mode, device.numbers)?;
        permit(tree, &device.name, device.mode)?;
        own(tree, &device.name, owner)?;
    }
    Ok(())
}

/// 128 random bits, as 32 hexadecimal digits and a line's end.
fn generation(tree: &Tree) -> std::io::Result<()> {
    let mut random = [0; 16];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(tree, GENERATION, flags, Mode::from_raw_mode(0o444))?;
    File::from(file).write_all(format!("{:032x}\n", u128::from_ne_bytes(random)).as_bytes())
}

/// Sets a mode whatever this process's umask.
fn permit(tree: &Tree, name: &str, mode: u32) -> Result<(), CallError> {
    rustix::fs::chmodat(tree.as_fd(), name, Mode::from_raw_mode(mode), AtFlags::empty())
        .context(|| format!("making /dev/{name}"))
}

/// Gives a file, or a link itself, to the guest's root.
fn own(tree: &Tree, name: &str, owner: u32) -> Result<(), CallError> {
    let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
    rustix::fs::chownat(tree.as_fd(), name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
        .context(|| format!("making /dev/{name}"))
}

//! Which of the mounts below a tree belong to it.
//!
//! A copy of `/` should hold `/usr` and `/boot` though they be file systems of their own, but not `/proc`, a network
//! share or a stick that happens to be plugged in. The mount table decides by path, before the mount point is touched:
//! a look at the root of a share whose server is down would hang, and one at an automount point would mount it.

use pando_kernel::CallError;
use pando_kernel::mount::{self, MountEntry};
use rustix::fs::{major, minor, stat};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// File systems on disks of this machine, that hold a system's own files. squashfs and iso9660 are not among them:
/// those mounted below a root are packages and discs.
const ON_DISK: [&str; 17] = [
    "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "ntfs3", "overlay",
    "reiserfs", "ubifs", "vfat", "xfs", "zfs",
];

/// File systems in memory: nothing to copy, but their root may be looked at without risk.
const IN_MEMORY: [&str; 15] = [
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "mqueue",
    "proc",
    "pstore",
    "ramfs",
    "securityfs",
    "sysfs",
    "tmpfs",
];

/// How a mount below a tree is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is a part of the tree: copied.
    Part,
    /// Not copied; its root directory may be looked at.
    Empty,
    /// Not copied and not touched: it may hang.
    Foreign,
}

/// The mounts below one directory, by their path relative to it.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    below: HashMap<PathBuf, Standing>,
}

impl Mounts {
    /// Those below `tree`, an absolute path without symbolic links, as the kernel lists them now.
    pub(crate) fn read(tree: &Path) -> Result<Self, CallError> {
        Ok(Self::among(tree, &mount::mounts()?, &is_removable))
    }

    fn among(tree: &Path, entries: &[MountEntry], removable: &dyn Fn(&MountEntry) -> bool) -> Self {
        // Where the tree itself is: its device, and its path in that file system.
        let own =
            entries.iter().filter(|entry| tree.starts_with(&entry.at)).max_by_key(|entry| entry.at.as_os_str().len());
        let mut parts: Vec<(&str, PathBuf)> = own
            .map(|entry| (&*entry.device, entry.root.join(tree.strip_prefix(&entry.at).unwrap_or(Path::new("")))))
            .into_iter()
            .collect();
        let mut below = HashMap::new();
        for entry in entries {
            let Ok(path) = entry.at.strip_prefix(tree) else { continue };
            if path.as_os_str().is_empty() {
                continue;
            }
            // A bind mount of what is copied anyway, the tree itself perhaps: once is enough.
            let again = parts.iter().any(|(device, root)| *device == entry.device && entry.root.starts_with(root));
            let standing = if IN_MEMORY.contains(&&*entry.kind) || again {
                Standing::Empty
            } else if ON_DISK.contains(&&*entry.kind) && !removable(entry) {
                parts.push((&entry.device, entry.root.clone()));
                Standing::Part
            } else {
                Standing::Foreign
            };
            // Of several mounts on one place the last is the one that is seen.
            below.insert(path.to_owned(), standing);
        }
        Self { below }
    }

    /// The mount at `path`, if there is one.
    pub(crate) fn at(&self, path: &Path) -> Option<Standing> {
        self.below.get(path).copied()
    }
}

/// Kinds of file systems whose owners the kernel can map to a guest's (mount_setattr(2)).
const MAPPED: [&str; 7] = ["btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "xfs"];

/// What is mounted below a directory that a guest uses as it lies there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountsBelow {
    /// What can be shown, by path below the directory: what is mounted in one of these comes with it.
    pub shown: Vec<PathBuf>,
    /// What is left out: it lies in memory, on another machine, on a disk that can be pulled out, or on a file system
    /// whose owners cannot be mapped.
    pub left_out: Vec<PathBuf>,
}

/// What is mounted below `tree`, an absolute path without symbolic links. With the host's ids owners need no mapping.
///
/// # Errors
///
/// The mount table cannot be read.
pub fn mounts_below(tree: &Path, hosts_ids: bool) -> Result<MountsBelow, CallError> {
    Ok(below(tree, &mount::mounts()?, hosts_ids, &is_removable))
}

fn below(tree: &Path, entries: &[MountEntry], hosts_ids: bool, removable: &dyn Fn(&MountEntry) -> bool) -> MountsBelow {
    let mounts = Mounts::among(tree, entries, removable);
    // The last one on a place is the one that is seen.
    let kind = |path: &Path| {
        let at = tree.join(path);
        entries.iter().rev().find(|entry| entry.at == at).map_or("", |entry| entry.kind.as_str())
    };
    let mut paths: Vec<&PathBuf> = mounts.below.keys().collect();
    paths.sort();
    let mut found = MountsBelow::default();
    for path in paths {
        if found.shown.iter().any(|shown| path.starts_with(shown)) {
            continue;
        }
        let can_be = mounts.at(path) == Some(Standing::Part) && (hosts_ids || MAPPED.contains(&kind(path)));
        if can_be { &mut found.shown } else { &mut found.left_out }.push(path.clone());
    }
    found
}

/// Whether the mount's device can be pulled out: a stick, a card, anything on USB.
fn is_removable(entry: &MountEntry) -> bool {
    // btrfs and overlay have device numbers of their own; the source names the disk, if there is one.
    let device = match stat(&*entry.source) {
        Ok(stat) if entry.source.starts_with("/dev/") => format!("{}:{}", major(stat.st_rdev), minor(stat.st_rdev)),
        _ => entry.device.clone(),
    };
    let Ok(disk) = std::fs::canonicalize(Path::new("/sys/dev/block").join(device)) else { return false };
    // A partition's directory lies in its disk's.
    let flagged = |place: &Path| std::fs::read(place.join("removable")).is_ok_and(|flag| flag.starts_with(b"1"));
    let usb = disk.as_os_str().as_bytes().windows(4).any(|part| part == b"/usb");
    usb || flagged(&disk) || disk.parent().is_some_and(flagged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &[u8] = b"\
27 1 254:0 / / rw - ext4 /dev/vda rw\n\
22 27 0:21 / /proc rw - proc proc rw\n\
40 27 254:1 / /usr rw shared:1 - xfs /dev/vdb rw\n\
41 27 254:0 /srv/www /export/a\\040b rw - ext4 /dev/vda rw\n\
42 27 0:50 / /net/home rw - nfs4 server:/home rw\n\
43 27 0:51 / /misc rw - autofs systemd-1 rw\n\
44 27 8:1 / /backup rw - ext4 /dev/sdb1 rw\n\
45 27 7:0 / /snap/x/1 ro - squashfs /dev/loop0 ro\n\
46 27 0:52 / /tmp rw - tmpfs tmpfs rw\n";

    fn among(tree: &str, table: &[u8], removable: &dyn Fn(&MountEntry) -> bool) -> Mounts {
        Mounts::among(Path::new(tree), &mount::entries(table).collect::<Vec<_>>(), removable)
    }

    #[test]
    fn disks_are_parts_the_rest_is_not() {
        let mounts = among("/", HOST, &|entry| entry.device == "8:1");
        let at = |path: &str| mounts.at(Path::new(path));
        assert_eq!(at("usr"), Some(Standing::Part));
        assert_eq!(at("proc"), Some(Standing::Empty));
        assert_eq!(at("tmp"), Some(Standing::Empty));
        assert_eq!(at("export/a b"), Some(Standing::Empty), "a bind mount of what is copied anyway");
        for foreign in ["net/home", "misc", "backup", "snap/x/1"] {
            assert_eq!(at(foreign), Some(Standing::Foreign), "{foreign}");
        }
        assert_eq!(at("etc"), None);
    }

    #[test]
    fn what_is_on_disks_is_shown_and_the_rest_named() {
        let table: Vec<_> = mount::entries(HOST).collect();
        let found = below(Path::new("/"), &table, false, &|entry| entry.device == "8:1");
        assert_eq!(found.shown, [PathBuf::from("usr")]);
        assert!(found.left_out.contains(&"net/home".into()) && found.left_out.contains(&"tmp".into()), "{found:?}");
        let nested = b"27 1 254:0 / / rw - ext4 /dev/vda rw\n40 27 254:1 / /t/a rw - ext4 /dev/vdb rw\n\
            41 40 0:9 / /t/a/b rw - tmpfs tmpfs rw\n42 27 0:7 / /t/o rw - overlay overlay rw\n";
        let table: Vec<_> = mount::entries(nested).collect();
        let found = below(Path::new("/t"), &table, false, &|_| false);
        assert_eq!((found.shown, found.left_out), (vec!["a".into()], vec![PathBuf::from("o")]), "b comes with a");
        assert_eq!(below(Path::new("/t"), &table, true, &|_| false).shown.len(), 2);
    }

    #[test]
    fn only_mounts_below_the_tree_count() {
        let mounts = among("/export", HOST, &|_| false);
        assert_eq!(mounts.at(Path::new("a b")), Some(Standing::Part), "outside of what is copied");
        assert_eq!(mounts.at(Path::new("usr")), None);
    }

    #[test]
    fn strange_lines_are_passed_over() {
        let mounts = among("/", b"\n \n1 2 3\n1 2 3 \\ \\0 x - \n\xff", &|_| false);
        assert_eq!(mounts.at(Path::new("x")), None);
    }
}

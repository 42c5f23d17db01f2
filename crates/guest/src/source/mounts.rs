//! Which of the mounts below a tree belong to it.
//!
//! A copy of `/` should hold `/usr` and `/boot` though they be file systems of their own, but not `/proc`, a network share or
//! a stick that happens to be plugged in. The mount table decides by path, before the mount point is touched: a look at the
//! root of a share whose server is down would hang, and one at an automount point would mount it.

use rustix::fs::{major, minor, stat};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const TABLE: &str = "/proc/self/mountinfo";

/// File systems on disks of this machine, that hold a system's own files. squashfs and iso9660 are not among them: those
/// mounted below a root are packages and discs.
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

struct Entry<'a> {
    device: &'a [u8],
    root: PathBuf,
    point: PathBuf,
    kind: &'a [u8],
    source: PathBuf,
}

impl Mounts {
    /// Those below `tree`, an absolute path without symbolic links, as the kernel lists them now.
    pub(crate) fn read(tree: &Path) -> io::Result<Self> {
        Ok(Self::from_table(tree, &std::fs::read(TABLE)?, &is_removable))
    }

    fn from_table(tree: &Path, table: &[u8], removable: &dyn Fn(&Entry<'_>) -> bool) -> Self {
        let entries: Vec<_> = table.split(|byte| *byte == b'\n').filter_map(parse).collect();
        // Where the tree itself is: its device, and its path in that file system.
        let own = entries
            .iter()
            .filter(|entry| tree.starts_with(&entry.point))
            .max_by_key(|entry| entry.point.as_os_str().len());
        let mut parts: Vec<(&[u8], PathBuf)> = own
            .map(|entry| (entry.device, entry.root.join(tree.strip_prefix(&entry.point).unwrap_or(Path::new("")))))
            .into_iter()
            .collect();
        let mut below = HashMap::new();
        for entry in &entries {
            let Ok(path) = entry.point.strip_prefix(tree) else { continue };
            if path.as_os_str().is_empty() {
                continue;
            }
            // A bind mount of what is copied anyway, the tree itself perhaps: once is enough.
            let again = parts.iter().any(|(device, root)| *device == entry.device && entry.root.starts_with(root));
            let standing = if IN_MEMORY.iter().any(|kind| kind.as_bytes() == entry.kind) || again {
                Standing::Empty
            } else if ON_DISK.iter().any(|kind| kind.as_bytes() == entry.kind) && !removable(entry) {
                parts.push((entry.device, entry.root.clone()));
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

/// One line of mountinfo: `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS…] - TYPE SOURCE OPTIONS`.
fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let mut words = line.split(|byte| *byte == b' ');
    let (device, root, point) = (words.nth(2)?, words.next()?, words.next()?);
    words.find(|word| *word == b"-")?;
    let (kind, source) = (words.next()?, words.next()?);
    Some(Entry { device, root: unescape(root), point: unescape(point), kind, source: unescape(source) })
}

/// The kernel writes blank, tab, newline and backslash as `\040` and so on.
fn unescape(word: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                plain.push(byte);
                rest = &after[3..];
            }
            _ => {
                plain.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// Whether the mount's device can be pulled out: a stick, a card, anything on USB.
fn is_removable(entry: &Entry<'_>) -> bool {
    // btrfs and overlay have device numbers of their own; the source names the disk, if there is one.
    let device = match stat(&entry.source) {
        Ok(stat) if entry.source.starts_with("/dev") => format!("{}:{}", major(stat.st_rdev), minor(stat.st_rdev)),
        _ => String::from_utf8_lossy(entry.device).into_owned(),
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

    #[test]
    fn disks_are_parts_the_rest_is_not() {
        let mounts = Mounts::from_table(Path::new("/"), HOST, &|entry| entry.device == b"8:1");
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
    fn only_mounts_below_the_tree_count() {
        let mounts = Mounts::from_table(Path::new("/export"), HOST, &|_| false);
        assert_eq!(mounts.at(Path::new("a b")), Some(Standing::Part), "outside of what is copied");
        assert_eq!(mounts.at(Path::new("usr")), None);
    }

    #[test]
    fn strange_lines_are_passed_over() {
        let mounts = Mounts::from_table(Path::new("/"), b"\n \n1 2 3\n1 2 3 \\ \\0 x - \n\xff", &|_| false);
        assert_eq!(mounts.at(Path::new("x")), None);
    }
}

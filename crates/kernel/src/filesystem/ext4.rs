//! What ext4 alone offers.

use crate::mount::Tree;
use crate::{CallError, Context};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// `EXT4_IOC_RESIZE_FS` (fs/ext4/ext4.h): `_IOW('f', 16, __u64)`.
const RESIZE_FS: libc::c_ulong = 0x4008_6610;

/// Makes a mounted file system larger, as large as so many bytes, while it is in use (EXT4_IOC_RESIZE_FS, since Linux
/// 3.7). Its device has to be as large already.
///
/// # Errors
///
/// EPERM without CAP_SYS_RESOURCE; EINVAL for less than it has.
pub fn grow(tree: &Tree, bytes: u64) -> Result<(), CallError> {
    let attempt = || -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(tree, ".", flags, Mode::empty())?;
        let block = u64::try_from(rustix::fs::fstatfs(&root)?.f_bsize).unwrap_or(4096).max(1);
        let blocks = bytes / block;
        // SAFETY: the kernel reads the number, and keeps no pointer to it.
        let result = unsafe { libc::ioctl(root.as_raw_fd(), RESIZE_FS, &raw const blocks) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    attempt().context(|| format!("making a file system {bytes} bytes large"))
}

/// Where the superblock lies on a device, and in it (Documentation/filesystems/ext4/super.rst): the magic number, and
/// what the file system has that others need not know of.
const SUPERBLOCK: u64 = 1024;
const MAGIC_AT: usize = 0x38;
const MAGIC: u16 = 0xEF53;
const FEATURES_AT: usize = 0x5C;

/// Of those: it has a journal; its journal takes the changes of single files ahead of others' that were before them.
const HAS_JOURNAL: u32 = 0x4;
const FAST_COMMIT: u32 = 0x400;

/// Whether the ext4 on a device loses the last changes to its names first when the power fails: there is one journal,
/// of whole commits (no `fast_commit`, since Linux 5.10).
///
/// # Errors
///
/// EACCES for a process that may not read the device; ENOENT where it has no node under /dev; EINVAL if there is no
/// ext4 on it.
pub fn keeps_order(device: u64) -> io::Result<bool> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}"))?;
    let disk = File::open(Path::new("/dev").join(link.file_name().ok_or(io::ErrorKind::NotFound)?))?;
    if disk.metadata()?.rdev() != device {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut superblock = [0; FEATURES_AT + 4];
    disk.read_exact_at(&mut superblock, SUPERBLOCK)?;
    features(&superblock).map(|features| features & (HAS_JOURNAL | FAST_COMMIT) == HAS_JOURNAL)
}

fn features(superblock: &[u8; FEATURES_AT + 4]) -> io::Result<u32> {
    let [low, high] = [superblock[MAGIC_AT], superblock[MAGIC_AT + 1]];
    if u16::from_le_bytes([low, high]) != MAGIC {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(superblock.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_of_an_ext4_alone() {
        let mut superblock = [0; FEATURES_AT + 4];
        assert!(features(&superblock).is_err());
        superblock[MAGIC_AT..MAGIC_AT + 2].copy_from_slice(&[0x53, 0xEF]);
        superblock[FEATURES_AT..].copy_from_slice(&[0x3C, 0x04, 0, 0]);
        assert_eq!(features(&superblock).unwrap(), 0x43C);
    }
}

//! What btrfs alone offers: subvolumes, and quota groups that bound them.

use crate::filesystem::project_quota::open;
use crate::{CallError, Context};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `BTRFS_IOC_SUBVOL_CREATE` and `BTRFS_IOC_QGROUP_LIMIT` (linux/btrfs.h).
const CREATE: libc::c_ulong = 0x5000_940E;
const LIMIT: libc::c_ulong = 0x8030_942B;

/// `BTRFS_SUPER_MAGIC`.
const MAGIC: u32 = 0x9123_683E;
/// The inode of every subvolume's root directory.
const TOP: u64 = 256;

/// `BTRFS_QGROUP_LIMIT_MAX_RFER`: all that the subvolume refers to.
const REFERRED: u64 = 1;
/// What takes a limit back.
const NONE: u64 = u64::MAX;

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct Volume {
    fd: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_qgroup_limit_args`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Limit {
    group: u64,
    flags: u64,
    most_referred: u64,
    most_exclusive: u64,
    reserved_referred: u64,
    reserved_exclusive: u64,
}

/// Whether a directory is a subvolume of a btrfs.
pub fn is_subvolume(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let magic = rustix::fs::statfs(directory).map(|found| found.f_type as u32);
    magic.is_ok_and(|magic| magic == MAGIC) && directory.symlink_metadata().is_ok_and(|found| found.ino() == TOP)
}

/// Makes a subvolume (BTRFS_IOC_SUBVOL_CREATE). It is removed like an empty directory (since Linux 4.18).
///
/// # Errors
///
/// ENOTTY on another file system.
pub fn make_subvolume(at: &Path) -> Result<(), CallError> {
    let attempt = || {
        let (Some(above), Some(name)) = (at.parent(), at.file_name()) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        let mut volume = Box::new(Volume { fd: 0, name: [0; 4088] });
        let name = name.as_bytes();
        // The last byte stays the end of the string.
        volume.name[..name.len().min(4087)].copy_from_slice(&name[..name.len().min(4087)]);
        let above = open(above)?;
        // SAFETY: the kernel reads the structure, which has its layout, and keeps no pointer to it.
        let result = unsafe { libc::ioctl(above.as_raw_fd(), CREATE, &raw const *volume) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    attempt().context(|| format!("making the subvolume {}", at.display()))
}

/// Bounds what a subvolume may hold (BTRFS_IOC_QGROUP_LIMIT, since Linux 3.6); 0 takes the bound back.
///
/// # Errors
///
/// ENOTCONN where quotas were not turned on (`btrfs quota enable`).
pub fn limit(subvolume: &Path, bytes: u64) -> Result<(), CallError> {
    let attempt = || {
        let most_referred = if bytes == 0 { NONE } else { bytes };
        let limit = Limit { flags: REFERRED, most_referred, ..Limit::default() };
        let subvolume = open(subvolume)?;
        // SAFETY: the kernel reads the structure, which has its layout, and keeps no pointer to it.
        let result = unsafe { libc::ioctl(subvolume.as_raw_fd(), LIMIT, &raw const limit) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    attempt().context(|| format!("bounding the subvolume {}", subvolume.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_size() {
        assert_eq!((size_of::<Volume>(), size_of::<Limit>()), (4096, 48));
    }

    #[test]
    fn another_file_system_has_no_subvolumes() {
        assert!(!is_subvolume(Path::new("/proc")));
        assert!(make_subvolume(Path::new("/proc/none")).is_err());
    }
}

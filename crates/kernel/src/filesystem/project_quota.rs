//! Quotas of a project: of all files that were made in a directory, and in those below it (quotactl(2)).

use crate::{CallError, Context};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` (linux/fs.h), of 28 bytes each.
const GET_ATTRIBUTES: libc::c_ulong = 0x801C_581F;
const SET_ATTRIBUTES: libc::c_ulong = 0x401C_5820;
/// `FS_XFLAG_PROJINHERIT`: what is made in the directory belongs to its project.
const INHERIT: u32 = 0x200;

/// `PRJQUOTA` in the low byte of each request (linux/quota.h, linux/dqblk_xfs.h).
const PROJECT: libc::c_uint = 2;
const GET_QUOTA: libc::c_uint = 0x80_0007 << 8 | PROJECT;
const SET_QUOTA: libc::c_uint = 0x80_0008 << 8 | PROJECT;
const GET_STATE: libc::c_uint = 0x5808 << 8 | PROJECT;

/// `QIF_BLIMITS | QIF_ILIMITS`: which numbers are meant.
const LIMITS: u32 = 1 | 4;
/// `FS_QUOTA_PDQ_ENFD`: projects are held to their limits.
const ENFORCED: u16 = 1 << 5;
/// Limits of bytes are told in blocks of so many.
const BLOCK: u64 = 1024;

/// `struct fsxattr` (linux/fs.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// `struct if_dqblk` (linux/quota.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    blocks_hard: u64,
    blocks_soft: u64,
    bytes_used: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    inodes_used: u64,
    times: [u64; 2],
    valid: u32,
}

/// What a project may have and has; a limit of 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The most bytes that the project may have.
    pub bytes: u64,
    /// The most files and directories that the project may have.
    pub inodes: u64,
    /// The bytes that the project has now.
    pub bytes_used: u64,
    /// The files and directories that the project has now.
    pub inodes_used: u64,
}

/// Whether the file system of a directory holds projects to their limits (Q_XGETQSTATV; quotactl_fd(2), since Linux
/// 5.14).
///
/// # Errors
///
/// ENOSYS where neither kernel nor file system knows quotas.
pub fn is_enforced(directory: &File) -> io::Result<bool> {
    /// `struct fs_quota_statv` has fewer bytes; its first is the version that is asked for, its third and fourth are
    /// the flags.
    const WORDS: usize = 64;
    let mut state = [0_u64; WORDS];
    state[0] = 1_u64.to_le();
    call(directory, GET_STATE, 0, state.as_mut_ptr().cast())?;
    let bytes = state[0].to_ne_bytes();
    Ok(u16::from_ne_bytes([bytes[2], bytes[3]]) & ENFORCED != 0)
}

/// The project of a directory; 0 where it has none.
///
/// # Errors
///
/// ENOTTY and EOPNOTSUPP where the file system has no projects.
pub fn project(directory: &File) -> io::Result<u32> {
    attributes(directory).map(|found| found.project)
}

/// The project that all that is made in a directory belongs to, if it is said to be the directory's.
///
/// # Errors
///
/// ENOTTY and EOPNOTSUPP where the file system has no projects.
pub fn inherited(directory: &File) -> io::Result<Option<u32>> {
    attributes(directory).map(|found| (found.flags & INHERIT != 0).then_some(found.project))
}

/// Makes a directory, and all that will be made in it, belong to a project (FS_IOC_FSSETXATTR, since Linux 4.5). No
/// process in a user namespace can take its files back out of it.
///
/// # Errors
///
/// ENOTTY and EOPNOTSUPP where the file system has no projects; EPERM inside a user namespace.
pub fn join(directory: &File, project: u32) -> Result<(), CallError> {
    let attempt = || {
        let mut attributes = attributes(directory)?;
        attributes.flags |= INHERIT;
        attributes.project = project;
        // SAFETY: the kernel reads the structure, which has its layout, and keeps no pointer to it.
        let result = unsafe { libc::ioctl(directory.as_raw_fd(), SET_ATTRIBUTES, &raw const attributes) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    attempt().context(|| format!("giving a directory to project {project}"))
}

/// What a project of the directory's file system may have and has; nothing at all for one that nobody has used.
///
/// # Errors
///
/// ENOSYS where neither kernel nor file system knows quotas.
pub fn quota(directory: &File, project: u32) -> io::Result<Quota> {
    let mut entry = Entry::default();
    match call(directory, GET_QUOTA, project, (&raw mut entry).cast()) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(Quota::default()),
        Err(error) => Err(error),
        Ok(()) => Ok(Quota {
            bytes: entry.blocks_hard * BLOCK,
            inodes: entry.inodes_hard,
            bytes_used: entry.bytes_used,
            inodes_used: entry.inodes_used,
        }),
    }
}

/// Sets the limits of a project (Q_SETQUOTA); 0 takes one back.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN; ESRCH where quotas of projects are off.
pub fn limit(directory: &File, project: u32, bytes: u64, inodes: u64) -> Result<(), CallError> {
    let mut entry = Entry { blocks_hard: bytes / BLOCK, inodes_hard: inodes, valid: LIMITS, ..Entry::default() };
    call(directory, SET_QUOTA, project, (&raw mut entry).cast())
        .context(|| format!("setting the limits of project {project}"))
}

/// Opens a directory for the calls above.
///
/// # Errors
///
/// ENOENT, ENOTDIR.
pub fn open(directory: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC).open(directory)
}

fn attributes(directory: &File) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel fills in the structure, which has its layout.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), GET_ATTRIBUTES, &raw mut attributes) };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

fn call(directory: &File, request: libc::c_uint, project: u32, data: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: what `data` points to is as large as the request says, in each of the callers, and the kernel keeps no
    // pointer to it.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, directory.as_raw_fd(), request, project, data) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_size() {
        assert_eq!((size_of::<Attributes>(), size_of::<Entry>()), (28, 72));
    }

    #[test]
    fn a_file_system_without_quotas_holds_nobody() {
        let directory = open(Path::new("/proc")).unwrap();
        assert!(!is_enforced(&directory).unwrap_or(false));
    }
}

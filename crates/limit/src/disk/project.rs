//! Quotas by project: which number a directory's project gets, and its limits.

use pando_kernel::filesystem::project_quota::{self as quota, Quota};
use pando_kernel::{CallError, Context};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where our projects begin: far from the small numbers that people give.
const FIRST: u32 = 0x5000_0000;
/// How many there may be.
const MOST: u32 = 0x1000_0000;
/// How many numbers are tried, of which another process may have taken one.
const TRIES: u32 = 1000;

pub(super) fn is_enforced(directory: &Path) -> bool {
    quota::open(directory).and_then(|opened| quota::is_enforced(&opened)).unwrap_or(false)
}

/// The project of ours that a directory belongs to.
pub(super) fn of(directory: &Path) -> Option<u32> {
    let project = quota::open(directory).and_then(|opened| quota::project(&opened)).ok()?;
    (FIRST..FIRST + MOST).contains(&project).then_some(project)
}

/// Gives an empty directory to a project of its own, with limits; 0 for no limit.
pub(super) fn begin(directory: &Path, bytes: u64, inodes: u64) -> Result<u32, CallError> {
    let opened = quota::open(directory).context(|| format!("opening {}", directory.display()))?;
    let project = free(&opened).context(|| "looking for a project that nobody uses".into())?;
    quota::limit(&opened, project, bytes, inodes)?;
    let joined = quota::join(&opened, project);
    if joined.is_err() {
        let _ = quota::limit(&opened, project, 0, 0);
    }
    joined.map(|()| project)
}

/// A project that has neither files nor limits. It goes by the directory's inode, so that a process that looks at the
/// same moment finds another.
fn free(directory: &File) -> io::Result<u32> {
    let inode = (directory.metadata()?.ino() % u64::from(MOST)) as u32;
    for number in 0..TRIES {
        let project = FIRST + (inode + number) % MOST;
        if quota::quota(directory, project)? == Quota::default() {
            return Ok(project);
        }
    }
    Err(io::Error::other("a thousand numbers are in use"))
}

pub(super) fn held(directory: &Path, project: u32) -> io::Result<Quota> {
    quota::quota(&quota::open(directory)?, project)
}

/// Sets other limits, in use or not.
pub(super) fn change(directory: &Path, project: u32, bytes: u64, inodes: u64) -> Result<(), CallError> {
    let what = || format!("changing the limits of {}", directory.display());
    let opened = quota::open(directory).context(what)?;
    let now = quota::quota(&opened, project).context(what)?;
    if bytes > 0 && bytes < now.bytes_used || inodes > 0 && inodes < now.inodes_used {
        let why = format!("{} bytes in {} files are there already", now.bytes_used, now.inodes_used);
        return Err(io::Error::other(why)).context(what);
    }
    quota::limit(&opened, project, bytes, inodes)
}

pub(super) fn end(directory: &Path, project: u32) {
    if let Ok(opened) = quota::open(directory) {
        let _ = quota::limit(&opened, project, 0, 0);
    }
}

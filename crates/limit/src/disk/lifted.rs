//! A bound on a directory's room, lifted a little for as long as something has to be done in it that may be full.

use super::project;
use pando_kernel::filesystem::btrfs;
use pando_kernel::filesystem::project_quota::{self, Quota};
use std::path::{Path, PathBuf};

/// Room enough for an overlay's directories. Nothing smaller can be put by on btrfs, where what is removed counts until
/// it is committed, nor on xfs, which takes removed files off the count when it gets to it.
const SLACK: u64 = 4 << 20;

/// So many more files.
const SLACK_FILES: u64 = 64;

/// Holds a bound lifted; dropped, it is as before.
#[derive(Debug)]
pub struct Lifted {
    files: PathBuf,
    bound: Bound,
}

#[derive(Debug)]
enum Bound {
    Subvolume(u64),
    Project(u32, Quota),
}

impl Lifted {
    /// Lifts the bound of so many bytes; nothing is done where `files` is neither a subvolume of its own nor in a
    /// project of ours.
    pub fn over(files: &Path, bytes: u64) -> Option<Self> {
        let bound = if btrfs::is_subvolume(files) {
            btrfs::limit(files, bytes + SLACK).ok()?;
            Bound::Subvolume(bytes)
        } else {
            let number = project::of(files)?;
            let now = project::held(files, number).ok()?;
            let more = |limit: u64, slack: u64| if limit == 0 { 0 } else { limit + slack };
            limit(files, number, more(now.bytes, SLACK), more(now.inodes, SLACK_FILES))?;
            Bound::Project(number, now)
        };
        Some(Self { files: files.to_owned(), bound })
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        // It fails where quotas were turned off meanwhile: then nobody is bounded any more.
        let _ = match &self.bound {
            Bound::Subvolume(bytes) => btrfs::limit(&self.files, *bytes).ok(),
            Bound::Project(number, before) => limit(&self.files, *number, before.bytes, before.inodes),
        };
    }
}

fn limit(files: &Path, project: u32, bytes: u64, inodes: u64) -> Option<()> {
    let opened = project_quota::open(files).ok()?;
    project_quota::limit(&opened, project, bytes, inodes).ok()
}

//! Commits that need no barrier before their end, because the file system keeps the order of changes to its names.
//!
//! A loss of power undoes such changes from the last one back (the log of xfs, the journal of ext4, which is one for
//! all that is on them). Where a commit consists of nothing else, the journal's appearing under its name, the changes
//! that it tells of and its closing reach the disk in that order without being waited for one by one: what is found is
//! before, after, or a journal to finish. Only the content of new files is no such change: it is written out before the
//! journal gets its name. The one barrier is at the commit's end, behind the journal's closing, and waits for the file
//! system's own journal alone: a sync would wait for all that others have written.
//!
//! Content that is written in place is not ordered, so that a commit with any has its journal on the disk before.

use crate::change::{Op, Sign};
use crate::validate::change_set::PartChanges;
use pando_kernel::{filesystem::ext4, memory::page_cache};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// From so many new files on, to sync all of the file system takes less time than to write out one by one.
const MOST: usize = 64;

/// The new files of a commit that can rely on the order; none if it cannot.
pub(crate) fn new_files(directory: &Path, parts: &[PartChanges]) -> Option<Vec<PathBuf>> {
    let device = std::fs::metadata(directory).ok()?.dev();
    let is_beside = |part: &PartChanges| std::fs::metadata(&part.part.base).is_ok_and(|base| base.dev() == device);
    let is_ordered = parts.iter().all(|part| part.part.target.is_none() && is_beside(part) && consists_of_names(part));
    if !is_ordered || !keeps_order(directory, device) {
        return None;
    }
    let content = |part: &PartChanges| {
        let changes = part.changes.iter().filter(|change| change.content && change.sign != Sign::Removed);
        changes.map(|change| part.part.upper().join(change.path.as_path())).collect::<Vec<_>>()
    };
    let files: Vec<_> = parts.iter().flat_map(content).collect();
    (files.len() <= MOST).then_some(files)
}

/// Whether nothing is written in place, and nothing comes but directories and files whose content is known: a long
/// symbolic link has some too, on older kernels.
fn consists_of_names(part: &PartChanges) -> bool {
    let steps = &part.steps;
    let mut ops = steps.stage.iter().chain(&steps.change).chain(&steps.finish);
    let is_known = |change: &crate::change::Change| change.directory || change.content || change.sign == Sign::Removed;
    !ops.any(|op| matches!(op, Op::Update { .. })) && part.changes.iter().all(is_known)
}

/// Whether the file system of a directory, which is on this device, keeps the order.
fn keeps_order(directory: &Path, device: u64) -> bool {
    match rustix::fs::statfs(directory).map(|found| found.f_type) {
        Ok(libc::XFS_SUPER_MAGIC) => true,
        // It can do without a journal, and then keeps none.
        Ok(libc::EXT4_SUPER_MAGIC) => ext4::keeps_order(device).unwrap_or(false),
        _ => false,
    }
}

/// Whether a loss of power leaves of the changes to names, on the file system of a path, those up to some moment: those
/// that keep the order, and one that brings whole states to the disk.
pub(crate) fn keeps_names(path: &Path) -> bool {
    let is_whole = || rustix::fs::statfs(path).is_ok_and(|found| found.f_type == libc::BTRFS_SUPER_MAGIC);
    std::fs::metadata(path).is_ok_and(|found| keeps_order(path, found.dev())) || is_whole()
}

/// Brings the content of files, and the journal that is written, to the disk, or on its way there before anything that
/// is done to names from now on.
pub(crate) fn write_out(files: &[PathBuf], written: File) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |path: &PathBuf| rustix::fs::open(path, flags, Mode::empty()).map(File::from);
    let files = files.iter().map(open).chain([Ok(written)]).collect::<Result<Vec<_>, _>>()?;
    // All are under way before the first is waited for.
    files.iter().try_for_each(|file| page_cache::write_back(file.as_fd()))?;
    files.iter().try_for_each(|file| page_cache::write_out(file.as_fd()))
}

//! Changes that are kept in memory until they are committed, as TxOS keeps them: while a command makes and changes
//! files the disk has nothing to do, and its file system's journal neither. An abort has nothing to delete.
//!
//! ```text
//!   a tmpfs that is attached nowhere: NUMBER/{upper,work}       of the part of that number, while the command runs
//!                                         │ carry, once it has ended well
//!                                         ▼
//!   the part's own directory:         {upper,work/index}        from where a commit goes on like any other
//! ```
//!
//! The tmpfs belongs to the process that runs the command, and is gone with it. What outgrows it has to be begun anew,
//! on the disk.

use crate::crash::step;
use crate::journal::commit_error::CommitError;
use crate::state::directory::StateDirectory;
use crate::state::overlay_part::OverlayPart;
use crate::tree::attributes::Attributes;
use crate::tree::confined::Tree;
use crate::tree::copying::{Copying, Original, whatever};
use crate::tree::path::TreePath;
use pando_kernel::mount::{Attributes as MountAttributes, Tree as MountTree};
use pando_kernel::{CallError, Context};
use rustix::fs::AtFlags;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

/// What the kernel keeps of a file beside its content, about.
const INODE: u64 = 1 << 10;

/// File systems whose files lose nothing by being copied to memory. Others have attributes of their own (compression,
/// for example), which a commit would take for removed.
const FIT: [i64; 4] = [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::TMPFS_MAGIC, libc::OVERLAYFS_SUPER_MAGIC];

/// Memory for a transaction's changes.
#[derive(Debug)]
pub struct Memory {
    files: MountTree,
    /// In bytes.
    most: u64,
}

impl Memory {
    /// As much as that, in bytes; none of it is taken yet. A command never meets the end of it, which is for its
    /// [transaction](crate::Transaction::outgrows_memory) to look for: it finds as much room as there is on the disk,
    /// for the changes of transactions at `home`.
    pub fn new(most: u64, home: &StateDirectory) -> Result<Self, CallError> {
        home.prepare()?;
        let disk = rustix::fs::statvfs(home.directory());
        let disk = disk.context(|| format!("looking for room in {}", home.directory().display()))?;
        // Some file systems do not count files; none of none would be as many as one likes, uncounted.
        let (room, files) = (disk.f_bavail.saturating_mul(disk.f_frsize).max(1), u64::MAX >> 11);
        let files = if disk.f_files == 0 { files } else { disk.f_favail.max(1) };
        let (room, files) = (room.to_string(), files.to_string());
        let options = [("size", room.as_str()), ("nr_inodes", files.as_str()), ("mode", "0700")];
        Ok(Self { files: MountTree::new("tmpfs", &options, MountAttributes::empty())?, most })
    }

    /// As much as that, and so many files, which the kernel sees to: a command that meets the end is told that there is
    /// no room.
    pub fn bounded(bytes: u64, files: u64, home: &StateDirectory) -> Result<Self, CallError> {
        home.prepare()?;
        let (bytes, files) = (bytes.max(1 << 20).to_string(), files.max(64).to_string());
        let options = [("size", bytes.as_str()), ("nr_inodes", files.as_str()), ("mode", "0700")];
        Ok(Self { files: MountTree::new("tmpfs", &options, MountAttributes::empty())?, most: u64::MAX })
    }

    /// Whether more is in it than there is to be.
    pub(crate) fn is_outgrown(&self) -> bool {
        // It cannot fail on a file system that is there.
        rustix::fs::fstatvfs(&self.files).is_ok_and(|found| {
            let content = (found.f_blocks - found.f_bfree) * found.f_frsize;
            let inodes = (found.f_files - found.f_ffree) * INODE;
            content + inodes > self.most
        })
    }

    /// Has a part keep its changes here, if it can; its number tells it from the others. Others who look into the
    /// transaction reach them by this process.
    pub(crate) fn keep(&self, part: &mut OverlayPart, number: usize) {
        if !rustix::fs::statfs(&part.live).is_ok_and(|found| FIT.contains(&found.f_type)) {
            return;
        }
        let files = format!("/proc/{}/fd/{}/{number}", std::process::id(), self.files.as_fd().as_raw_fd());
        part.memory = Some(PathBuf::from(files));
    }

    /// One more descriptor: whoever lets go of the last waits for the kernel to let go of the file system.
    pub(crate) fn share(&self) -> Result<MountTree, CallError> {
        let copy = self.files.as_fd().try_clone_to_owned();
        Ok(copy.context(|| "keeping the memory for changes".into())?.into())
    }
}

/// Carries what a part keeps in memory to its own directory. Nobody may be writing to it any more.
pub(crate) fn carry(part: &mut OverlayPart) -> Result<(), CommitError> {
    let own = part.on_disk();
    let carried = copy(part, &own);
    carried.map_err(|source| CommitError::Prepare {
        what: format!("writing what was kept in memory of {}", part.live.display()),
        source,
    })?;
    *part = own;
    Ok(())
}

fn copy(kept: &OverlayPart, own: &OverlayPart) -> io::Result<()> {
    for directory in [own.upper(), own.work()] {
        std::fs::create_dir(directory)?;
    }
    let (from, to) = (Tree::open(kept.files())?, Tree::open(&own.base)?);
    let copied = RefCell::new(HashMap::new());
    let several = |copying: &Copying<'_>, from: &TreePath, original: &Original, to: &TreePath| {
        one_of_several(&copied, copying, (from, original), to)
    };
    let unchanged = |_: &mut Attributes| step();
    let (attributes, several, admits) = (&unchanged, &several, &whatever);
    let copying = Copying { from: &from, to: &to, attributes, with_marks: true, several, admits };
    let upper = TreePath::ROOT.join("upper".as_ref());
    let original = Original::open(&from, &upper)?;
    copying.names(&upper, &original, &upper)?;
    let index = TreePath::ROOT.join("work".as_ref()).join("index".as_ref());
    if from.look(&index)?.is_some() {
        copying.copy(&index, &Original::open(&from, &index)?, &index)?;
    }
    // Last: what comes into it changes its time.
    copying.attributes(&original, &upper)
}

/// Copies a file that has several names once. Those that have gone are not among them.
fn one_of_several(
    copied: &RefCell<HashMap<u64, TreePath>>,
    copying: &Copying<'_>,
    (from, original): (&TreePath, &Original),
    to: &TreePath,
) -> io::Result<()> {
    let first = copied.borrow().get(&original.stat.st_ino).cloned();
    match first {
        Some(first) => {
            let ((old_parent, old), (parent, new)) = (copying.to.place(&first)?, copying.to.place(to)?);
            Ok(rustix::fs::linkat(&*old_parent, old, &*parent, new, AtFlags::empty())?)
        }
        None => {
            copied.borrow_mut().insert(original.stat.st_ino, to.clone());
            copying.file(from, original, to)
        }
    }
}

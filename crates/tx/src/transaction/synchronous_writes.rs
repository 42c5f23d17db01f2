//! Changes that are on the disk as soon as they are made, for a transaction that writes more than there is memory for.
//!
//! In a memory group of cgroup version 1 nobody who writes waits for the disk until the group is full. Then nothing in
//! it can be given back at once, the kernel looks ever harder, and takes the names that tell what was
//! [read](crate::validate::read_set). Of a file with the flag `S` (chattr(1)) each write waits for the disk, so that
//! what fills the memory can always be given back. What is new takes that flag from its directory (ext4, xfs; where it
//! does not, nothing is gained). It is for a run after one of which something was forgotten: each write takes as long
//! as the disk.
//!
//! Before it is committed what is new loses the flag again, which is not told from one that the command itself has set.

use crate::change::upper::{DirectorySource, Node, What};
use crate::journal::commit_error::CommitError;
use crate::state::overlay_part::OverlayPart;
use crate::tree::confined::Tree;
use crate::tree::inode_flags::change_flags;
use rustix::fs::{IFlags, Mode, OFlags};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Has each write to what is new on a part wait for the disk from now on, where its file system does that.
pub(crate) fn begin(part: &OverlayPart) {
    // The overlay makes in the last what is a copy, or has to be complete before it is seen.
    for directory in [part.upper(), part.work(), part.work().join("work")] {
        // A run without may succeed as well.
        let _ = set(&directory);
    }
}

fn set(directory: &Path) -> io::Result<()> {
    let place = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    change_flags(place.as_fd(), |flags| flags.insert(IFlags::SYNC))
}

/// Takes that from what a commit is about to bring to the live tree.
pub(crate) fn end(part: &OverlayPart, root: &Node) -> Result<(), CommitError> {
    let taken = Tree::open(&part.upper()).and_then(|upper| clear(&upper, root));
    let what = || format!("having what is new on {} written as usual again", part.live.display());
    taken.map_err(|source| CommitError::Prepare { what: what(), source })
}

fn clear(upper: &Tree, node: &Node) -> io::Result<()> {
    let is_new = match &node.what {
        What::Gone => false,
        What::File(file) => file.origin.is_none(),
        What::Directory(directory) => {
            directory.children.iter().try_for_each(|child| clear(upper, child))?;
            matches!(directory.source, DirectorySource::New)
        }
    };
    if is_new { change_flags(upper.object(&node.path)?.as_fd(), |flags| flags.remove(IFlags::SYNC)) } else { Ok(()) }
}

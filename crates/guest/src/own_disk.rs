//! A guest's own files on a disk of their own.
//!
//! A guest may fill its disk to the last file. An overlay needs a few files and blocks to be mounted again, so some are put by while the guest runs,
//! where it cannot reach them, and given back before.

use crate::root::{Owner, prepare};
use pando_kernel::CallError;
use pando_kernel::mount::Tree;
use pando_limit::disk::Image;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

/// How many directories are put by: each is a file and a block.
const SPARE: u32 = 8;

/// Opens the disk, ready for an overlay.
pub(crate) fn open(image: &Image, owner: Option<Owner<'_>>) -> Result<Tree, CallError> {
    let tree = image.mount()?;
    for number in 0..SPARE {
        // The first time there are none.
        let _ = std::fs::remove_dir(spare(&tree, number));
    }
    prepare(&top(&tree))?;
    if let Some(owner) = owner {
        tree.map_ids(owner.namespace)?;
    }
    Ok(tree)
}

/// Puts by what the next start will need. Where the guest has left too little, some of it is still there.
pub(crate) fn put_by(tree: &Tree) {
    for number in 0..SPARE {
        let _ = std::fs::create_dir(spare(tree, number));
    }
}

fn top(tree: &Tree) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", tree.as_fd().as_raw_fd()))
}

fn spare(tree: &Tree, number: u32) -> PathBuf {
    top(tree).join(format!("spare-{number}"))
}

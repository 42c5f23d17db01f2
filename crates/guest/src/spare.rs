//! What is put by of the room of a guest's own files.
//!
//! A guest may fill its room to the last file. An overlay needs a few files and blocks to be mounted again, so some are
//! put by while the guest runs, where it cannot reach them, and given back before.

use pando_kernel::mount::Tree;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

/// How many directories are put by: each is a file and a block.
const SPARE: u32 = 8;

/// Gives back what was put by; the first time there is nothing.
pub(crate) fn give_back(files: &Tree) {
    for number in 0..SPARE {
        let _ = std::fs::remove_dir(spare(files, number));
    }
}

/// Puts by what the next start will need. Where the guest has left too little, some of it is still there.
pub(crate) fn put_by(files: &Tree) {
    for number in 0..SPARE {
        let _ = std::fs::create_dir(spare(files, number));
    }
}

/// The directory of the guest's own files.
pub(crate) fn top(files: &Tree) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", files.as_fd().as_raw_fd()))
}

fn spare(files: &Tree, number: u32) -> PathBuf {
    top(files).join(format!("spare-{number}"))
}

//! A bound of btrfs, lifted a little for as long as something has to be done in a subvolume that may be full.

use pando_kernel::btrfs;
use std::path::{Path, PathBuf};

/// Room enough for an overlay's directories. Nothing smaller can be put by on btrfs: what is removed there counts until it is committed.
const SLACK: u64 = 4 << 20;

/// Holds a subvolume's bound lifted; dropped, it is as before.
#[derive(Debug)]
pub struct Lifted {
    subvolume: PathBuf,
    bytes: u64,
}

impl Lifted {
    /// Lifts the bound of so many bytes; nothing is done where `files` is no subvolume of its own.
    pub fn over(files: &Path, bytes: u64) -> Option<Self> {
        if !btrfs::is_subvolume(files) {
            return None;
        }
        btrfs::limit(files, bytes + SLACK).ok()?;
        Some(Self { subvolume: files.to_owned(), bytes })
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        // It fails where quotas were turned off meanwhile: then nobody is bounded any more.
        let _ = btrfs::limit(&self.subvolume, self.bytes);
    }
}

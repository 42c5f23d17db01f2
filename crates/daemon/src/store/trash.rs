//! What is thrown away: set aside by one rename, and deleted in the background.

use pando_guest::Places;
use pando_kernel::file::tree_removal::{RemovalError, remove_tree};
use std::path::Path;

/// A number that no other layer or directory of this machine was named by.
pub(crate) fn unique() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{:x}", since.map_or(0, |since| since.as_nanos()))
}

/// Puts a directory where it is deleted later: gone by one rename.
pub(crate) fn set_aside(places: &Places, path: &Path) -> std::io::Result<()> {
    std::fs::rename(path, places.trash().join(unique()))
}

/// The same, for what nobody waits for.
pub(crate) fn discard(places: &Places, path: &Path) {
    if let Err(error) = set_aside(places, path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "throwing it away failed");
    }
}

/// Deletes what was set aside, in the background.
pub(crate) fn empty_trash(places: Places) {
    tokio::task::spawn_blocking(move || {
        let Ok(entries) = std::fs::read_dir(places.trash()) else { return };
        for entry in entries.flatten() {
            // What cannot be deleted, or what another thread deletes at the same time, is found next time.
            if let Err(error @ RemovalError::Mounted { .. }) = remove_tree(&entry.path()) {
                tracing::warn!("what was thrown away is kept: {error}");
            }
        }
    });
}

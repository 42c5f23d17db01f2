//! What a large transaction has written, on its way to the disk while its changes are still being read and validated.

use std::fs::File;
use std::path::Path;

/// From so many files on it is worth a thread.
pub(crate) const MANY: usize = 1000;

/// Begins to bring everything of a part's file system to the disk. Nobody waits for it: the commit syncs by itself, and
/// what is on the disk early does no harm.
pub(crate) fn begin(base: &Path) {
    let Ok(base) = File::open(base) else { return };
    let sync = move || rustix::fs::syncfs(base);
    // Without it the commit takes longer, no more.
    let _ = std::thread::Builder::new().name("pando-sync".into()).spawn(sync);
}

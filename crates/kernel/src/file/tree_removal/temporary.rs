//! Directories that go when nobody needs them any more.

use super::{RemovalError, remove_tree};
use std::path::{Path, PathBuf};

/// A directory that is removed, with everything in it, when this is dropped. Unlike others of this kind it is removed
/// as everything here is: what is mounted in it stays.
#[derive(Debug)]
pub struct TemporaryDirectory(Option<PathBuf>);

impl TemporaryDirectory {
    /// The directory at a path, which was made already.
    pub fn of(path: PathBuf) -> Self {
        Self(Some(path))
    }

    /// The path of the directory; empty once it was kept.
    pub fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    /// Lets it stay; this leads nowhere from then on.
    pub fn keep(&mut self) -> PathBuf {
        self.0.take().unwrap_or_default()
    }

    /// Removes it now, and says how that went.
    ///
    /// # Errors
    ///
    /// As [`remove_tree`].
    pub fn close(mut self) -> Result<(), RemovalError> {
        remove_tree(&self.keep())
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // What cannot be removed lies where the next process removes what is half made.
            let _ = remove_tree(&path);
        }
    }
}

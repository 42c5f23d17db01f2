//! A directory for trials, on the file system that guests' files lie on.

use crate::file::trusted_directory::TrustedDirectory;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that goes away with all that is in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one at `state` or, if that does not exist, in the nearest directory above that does: it is on the same
    /// file system then.
    ///
    /// # Errors
    ///
    /// A directory on the way that others could put something else in the place of; what the file system says.
    pub fn near(state: &Path) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let at = state.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
        // A user who could put something in its place would have trials of root's made elsewhere.
        TrustedDirectory::open(at)?;
        let path = at.join(format!(".pando-doctor-{}-{number}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// The path of the scratch directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A new directory in it.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::DirBuilder::new().mode(0o755).recursive(true).create(&path)?;
        Ok(path)
    }

    /// A new file in it.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn file(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, content)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed has a name that tells whose it was.
        let _ = crate::file::tree_removal::remove_tree(&self.0);
    }
}

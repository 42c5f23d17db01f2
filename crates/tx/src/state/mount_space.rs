//! The mount namespace that a view is in.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A mount namespace. The kernel gives its number to another one once it has gone, which it does not as long as this is
/// there.
#[derive(Debug)]
pub(crate) struct MountSpace {
    file: File,
    ino: u64,
}

impl MountSpace {
    /// The one that a path below /proc leads to.
    ///
    /// # Errors
    ///
    /// ENOENT and ESRCH where the process has gone.
    pub(crate) fn of(path: &str) -> io::Result<Self> {
        let file = File::open(path)?;
        let ino = file.metadata()?.ino();
        Ok(Self { file, ino })
    }

    /// Another descriptor of the same.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Ok(Self { file: self.file.try_clone()?, ino: self.ino })
    }

    /// Whether the calling thread is in it.
    pub(crate) fn is_own(&self) -> bool {
        std::fs::metadata("/proc/thread-self/ns/mnt").is_ok_and(|found| found.ino() == self.ino)
    }

    /// Whether a link in /proc names it.
    pub(crate) fn is(&self, link: &Path) -> bool {
        link.to_str() == Some(&format!("mnt:[{}]", self.ino))
    }

    /// Whether a process is in it.
    pub(crate) fn has(&self, pid: i32) -> bool {
        std::fs::metadata(format!("/proc/{pid}/ns/mnt")).is_ok_and(|found| found.ino() == self.ino)
    }
}

impl AsFd for MountSpace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

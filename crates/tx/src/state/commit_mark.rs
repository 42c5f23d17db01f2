//! The mark of a commit that is under way on a transaction which another process holds.
//!
//! Who commits such a transaction can be killed, and it is still there. But what the kernel told of its reads has been
//! read and is not told again, and its processes stand still: the mark says so to whoever comes next.

use pando_kernel::file::lock::FileLock;
use std::io;
use std::path::{Path, PathBuf};

/// The mark, and the lock on it that says that whoever set it lives.
#[derive(Debug)]
pub(crate) struct CommitMark {
    path: PathBuf,
    _lock: FileLock,
}

fn path(directory: &Path) -> PathBuf {
    directory.join("committing")
}

impl CommitMark {
    /// Sets it in a transaction's directory; `None` where it is set.
    pub(crate) fn begin(directory: &Path) -> io::Result<Option<Self>> {
        let path = path(directory);
        if path.exists() {
            return Ok(None);
        }
        let lock = FileLock::try_take(&path)?;
        Ok(lock.map(|_lock| Self { path, _lock }))
    }

    /// Takes it away: what has become of the commit is noted elsewhere.
    pub(crate) fn take_away(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    /// Whether it was set by somebody who was killed.
    pub(crate) fn was_interrupted(directory: &Path) -> io::Result<bool> {
        let path = path(directory);
        Ok(path.exists() && FileLock::try_take(&path)?.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_outlives_who_set_it_until_it_is_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        assert!(!CommitMark::was_interrupted(at).unwrap());
        let underway = CommitMark::begin(at).unwrap().expect("nobody else is at it");
        assert!(CommitMark::begin(at).unwrap().is_none() && !CommitMark::was_interrupted(at).unwrap());
        drop(underway);
        assert!(CommitMark::begin(at).unwrap().is_none() && CommitMark::was_interrupted(at).unwrap());
        std::fs::remove_file(path(at)).unwrap();
        CommitMark::begin(at).unwrap().expect("it was taken away").take_away().unwrap();
        assert!(!CommitMark::was_interrupted(at).unwrap());
    }
}

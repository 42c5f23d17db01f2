//! Why a tree was not copied, or not all of it.

use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// A tree could not be copied whole. The paths are relative to its top.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeCopyError {
    /// Something could not be read, or was moved away meanwhile.
    #[error("reading '{at}' failed: {source}", at = .at.display())]
    Read {
        /// The path of what could not be copied.
        at: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// There are more names than are kept in memory.
    #[error("there are more names up to '{at}' than are kept in memory at a time ({} MiB): remove some of them", super::MOST_KEPT >> 20, at = .at.display())]
    Names {
        /// The path at which that was found.
        at: PathBuf,
    },
    /// Something could not be made.
    #[error("could not {action} the copy of '{at}': {source}", at = .at.display())]
    Write {
        /// What was tried, as a verb.
        action: &'static str,
        /// The path of what could not be copied.
        at: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

impl TreeCopyError {
    pub(super) fn read(at: &Path, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        if source.raw_os_error() == Some(Errno::TOOBIG.raw_os_error()) {
            return Self::Names { at: named(at) };
        }
        Self::Read { at: named(at), source }
    }

    pub(super) fn write(action: &'static str, at: &Path, source: impl Into<io::Error>) -> Self {
        Self::Write { action, at: named(at), source: source.into() }
    }
}

fn named(at: &Path) -> PathBuf {
    if at.as_os_str().is_empty() { PathBuf::from(".") } else { at.to_owned() }
}

impl From<TreeCopyError> for io::Error {
    /// A system call's error keeps its kind.
    fn from(error: TreeCopyError) -> Self {
        let kind = match &error {
            TreeCopyError::Read { source, .. } | TreeCopyError::Write { source, .. } => source.kind(),
            TreeCopyError::Names { .. } => io::ErrorKind::OutOfMemory,
        };
        Self::new(kind, error)
    }
}

//! What tells a file from every other that ever was on its file system, whatever its names are: its handle, which is
//! the number of its inode and a generation. A number alone tells little: whoever deletes a file and makes another
//! mostly gets the same one.

use crate::tree::confined::Tree;
use pando_kernel::file_handle::FileHandle;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// It.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Identity {
    kind: i32,
    bytes: Vec<u8>,
}

impl Identity {
    /// That of an open object.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP where the file system has no handles.
    pub(crate) fn of(object: impl AsFd) -> io::Result<Self> {
        FileHandle::of(object).map(Self::from)
    }

    /// Opens the object as a mere place, by a tree on its mount.
    ///
    /// # Errors
    ///
    /// ESTALE if it is gone.
    pub(crate) fn open(&self, tree: &Tree) -> io::Result<OwnedFd> {
        FileHandle { kind: self.kind, bytes: self.bytes.clone() }.open(tree.root())
    }
}

impl From<FileHandle> for Identity {
    fn from(handle: FileHandle) -> Self {
        let FileHandle { kind, bytes } = handle;
        Self { kind, bytes }
    }
}

/// Whether an error says that what was to be opened by its identity is gone.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error())
}

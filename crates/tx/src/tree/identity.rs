//! What tells a file from every other that ever was on its file system, whatever its names are: its handle, which is
//! the number of its inode and a generation. A number alone tells little: whoever deletes a file and makes another
//! mostly gets the same one.

use crate::tree::confined::Tree;
use pando_kernel::file::handle::FileHandle;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// It.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Identity {
    kind: i32,
    bytes: Vec<u8>,
}

/// Directories by the numbers of their inodes, each with what tells it from those that get its number later.
pub(crate) type Directories = BTreeMap<u64, Identity>;

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

    /// The same as an overlay notes the origin of what it has copied up (`struct ovl_fb`). It says of no file system:
    /// only Pando reads it, and knows by the part which one is meant.
    pub(crate) fn as_origin(&self) -> Vec<u8> {
        const MAGIC: u8 = 0xfb;
        const HEAD: usize = 21;
        let length = u8::try_from(HEAD + self.bytes.len()).unwrap_or(u8::MAX);
        let kind = u8::try_from(self.kind).unwrap_or(u8::MAX);
        let mut origin = vec![0, MAGIC, length, 0, kind];
        origin.resize(HEAD, 0);
        origin.extend_from_slice(&self.bytes);
        origin
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

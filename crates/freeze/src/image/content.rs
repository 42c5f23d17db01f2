//! Files of an image that have no name: shared memory, deleted files.

use serde::{Deserialize, Serialize};

/// A file that has no name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// What kind of file it is.
    pub kind: ContentKind,
    /// The file's length in bytes.
    pub length: u64,
    /// Where there is something in it: runs of offset and length.
    pub runs: Vec<(u64, u64)>,
    /// The file's mode, with the kind of file.
    pub mode: u32,
    /// The file's owner and group, as ids inside.
    pub owner: (u32, u32),
    /// Which process has it; −1 for one that is in flight.
    pub holder: i32,
    /// Its path below that process's directory in /proc.
    pub path: String,
    /// When it was read last, and when it was written to: each in seconds and nanoseconds.
    pub times: [i64; 4],
}

impl ContentKind {
    /// Whether it has bytes, which a holder keeps.
    pub(crate) fn has_bytes(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::Deleted { .. } | Self::Placed { .. })
    }

    /// Whether whoever has it open has it without a name.
    pub(crate) fn is_nameless(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::Deleted { .. } | Self::DeletedDirectory { .. })
    }
}

/// What kind of file it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContentKind {
    /// Memory: of memfd_create(2), or of mmap(2) with `MAP_SHARED` and `MAP_ANONYMOUS`.
    Memory {
        /// Its name.
        name: String,
        /// Seals of the file: `F_SEAL_*`, or'ed.
        seals: u32,
    },
    /// A file that was deleted.
    Deleted {
        /// The directory that it was in, if that is still there; else the root.
        directory: String,
    },
    /// A directory that was deleted.
    DeletedDirectory {
        /// The directory that it was in, if that is still there; else nothing.
        directory: String,
    },
    /// A file with a name in a file system that is memory, which no copy of the files has.
    Placed {
        /// Its path.
        path: String,
    },
    /// A directory of such a file system.
    Directory {
        /// Its path.
        path: String,
    },
    /// A named pipe of such a file system.
    Fifo {
        /// Its path.
        path: String,
    },
    /// A symbolic link of such a file system.
    Link {
        /// Its path.
        path: String,
        /// The path that the link leads to.
        target: String,
    },
    /// Another name of a file of such a file system (link(2)).
    Name {
        /// Its path.
        path: String,
        /// The path of the file's first name.
        first: String,
    },
    /// A file of such a file system that is there to have something mounted on it, whatever is in it.
    Point {
        /// Its path.
        path: String,
    },
}

//! The one way in which every source fails alike: the destination takes no more.

use pando_kernel::filesystem::spare_room::{NoRoom, Refusal};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// Something could not be written into the destination.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The file system of the destination is full.
    #[error(
        "cannot write '{path}' into '{into}': no space left on the file system that holds it (`df {into}`, and `df -i {into}` \
         for the number of files, show how full it is); free some, or use a larger one with --root"
    )]
    NoSpace {
        /// What was being written, relative to the destination.
        path: PathBuf,
        /// The directory that is written into.
        into: PathBuf,
    },
    /// The disk would become full.
    #[error(
        "cannot write '{path}' into '{into}': no space left for it there: {room}; free some (`df {into}` and `df -i {into}` show what \
         is used), or use a larger file system with --root"
    )]
    NoRoom {
        /// What was being written, relative to the destination.
        path: PathBuf,
        /// The directory that is written into.
        into: PathBuf,
        /// What it takes, and what there is.
        room: NoRoom,
    },
    /// The quota is used up.
    #[error(
        "cannot write '{path}' into '{into}': the disk quota there is used up; raise it, or use another place with --root"
    )]
    Quota {
        /// What was being written, relative to the destination.
        path: PathBuf,
        /// The directory that is written into.
        into: PathBuf,
    },
    /// Any other error of the kernel's.
    #[error("cannot {action} '{path}' in '{into}': {source}; check the file system that holds '{into}'")]
    Other {
        /// What was tried, as a verb.
        action: &'static str,
        /// What was being written, relative to the destination.
        path: PathBuf,
        /// The directory that is written into.
        into: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl WriteError {
    /// Doing `action` on `path`, relative to `into`, failed with `source`.
    pub(crate) fn new(action: &'static str, path: &Path, into: &Path, source: impl Into<io::Error>) -> Self {
        let (path, into, source) = (path.to_owned(), into.to_owned(), source.into());
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC) => Self::NoSpace { path, into },
            Some(Errno::DQUOT) => Self::Quota { path, into },
            _ => Self::Other { action, path, into, source },
        }
    }

    /// Room for `path`, relative to `into`, was not granted.
    pub(crate) fn refused(path: &Path, into: &Path, refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoRoom(room) => Self::NoRoom { path: path.to_owned(), into: into.to_owned(), room },
            Refusal::Look(error) => Self::new("look for room for", path, into, error),
        }
    }
}

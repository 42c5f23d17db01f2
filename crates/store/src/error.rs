//! What can fail, by operation.

use crate::LayerId;
use pando_kernel::CallError;
use std::path::PathBuf;

/// An operation on a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The kernel refused a system call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The repository is not as it has to be.
    #[error("{what}: {source}")]
    Repository {
        /// What was tried with the table.
        what: String,
        /// What the repository's library said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is no such layer.
    #[error("the store has no layer {0}; 'pando store verify' tells which guests miss one")]
    NoLayer(LayerId),
    /// A guest's own files were written over its layer mounted in a way that this host's kernel has not.
    #[error(
        "the own files of '{0}' were written over its layer as an image, which this kernel cannot lay below them (Linux 6.16 can); on a kernel that can, \
         'pando unify' and one more start make it fit both"
    )]
    WrittenOverImage(String),
    /// Another process works with the store.
    #[error("the store is in use by another process or by a guest that is being created; try again when that is done")]
    Busy,
}

impl StoreError {
    /// The error as one of a call, for callers that know no others.
    pub fn into_call(self) -> CallError {
        match self {
            Self::Call(error) => error,
            other => CallError { what: "using the store".to_owned(), source: std::io::Error::other(other.to_string()) },
        }
    }

    /// Wraps what the repository's library said.
    pub(crate) fn repository<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Repository { what, source: source.into() }
    }
}

/// A tree did not become a layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Something in the tree could not be read.
    #[error("reading '{path}' in the tree: {source}")]
    Read {
        /// The path in the tree.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The tree has something that an image cannot hold.
    #[error("'{path}' cannot be kept in a layer: {reason}")]
    Unfit {
        /// The path in the tree.
        path: PathBuf,
        /// Why that cannot be in a layer.
        reason: String,
    },
    /// The store took it not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<CallError> for ImportError {
    fn from(error: CallError) -> Self {
        Self::Store(error.into())
    }
}

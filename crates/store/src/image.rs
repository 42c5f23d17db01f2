//! Images: the metadata of a layer, written and read by the repository's library.

use crate::{ImportError, LayerId, Store, StoreError};
use composefs::erofs::format::FormatVersion;
use composefs::erofs::reader::erofs_to_filesystem;
use composefs::erofs::writer::{ValidatedFileSystem, mkfs_erofs_versioned};
use composefs::fsverity::Sha256HashValue;
use composefs::tree::FileSystem;
use std::path::PathBuf;

/// The version with nanoseconds, and with short inodes for files of the oldest time: equal trees give equal bytes.
const VERSION: FormatVersion = FormatVersion::V1;

/// The image of a tree.
pub(crate) fn write(tree: FileSystem<Sha256HashValue>) -> Result<Box<[u8]>, ImportError> {
    let valid = ValidatedFileSystem::new(tree)
        .map_err(|error| ImportError::Unfit { path: PathBuf::new(), reason: format!("{error:#}") })?;
    Ok(mkfs_erofs_versioned(&valid, VERSION))
}

/// The tree of a layer's image. Recurses as deep as the tree: to be called on a deep stack.
pub(crate) fn read(store: &Store, layer: &LayerId) -> Result<FileSystem<Sha256HashValue>, StoreError> {
    let bytes = match std::fs::read(store.image(layer)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(StoreError::NoLayer(*layer)),
        read => read.map_err(StoreError::repository(format!("reading the image of layer {layer}")))?,
    };
    erofs_to_filesystem(&bytes)
        .map_err(|error| StoreError::repository(format!("understanding the image of layer {layer}"))(error))
}

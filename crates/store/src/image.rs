//! Images: the metadata of a layer, written and read by the repository's library.

use crate::{ImportError, LayerId, Store, StoreError};
use composefs::erofs::format::FormatVersion;
use composefs::erofs::reader::erofs_to_filesystem;
use composefs::erofs::writer::{ValidatedFileSystem, mkfs_erofs_versioned};
use composefs::fsverity::{Sha256HashValue, compute_verity};
use composefs::tree::FileSystem;
use std::path::PathBuf;
use zerocopy::IntoBytes;

/// The version with nanoseconds, and with short inodes for files of the oldest time: equal trees give equal bytes.
const VERSION: FormatVersion = FormatVersion::V1;

/// The image of a tree.
pub(crate) fn write(tree: FileSystem<Sha256HashValue>) -> Result<Box<[u8]>, ImportError> {
    let valid = ValidatedFileSystem::new(tree)
        .map_err(|error| ImportError::Unfit { path: PathBuf::new(), reason: format!("{error:#}") })?;
    let mut image = mkfs_erofs_versioned(&valid, VERSION);
    name_file_system(&mut image);
    Ok(image)
}

/// Where an image has the UUID of its file system: 48 bytes into the superblock, which begins at 1,024
/// (fs/erofs/erofs_fs.h).
const UUID: std::ops::Range<usize> = 1_072..1_088;

/// Gives an image's file system a UUID, which the library leaves at zero: one made of its content, so that equal trees
/// still give equal bytes. Of two lower file systems that have the same UUID, zero too, an overlay can decode no
/// handles, and falls back to `index=off,nfs_export=off`: then no transaction can be about a guest that stands on both.
fn name_file_system(image: &mut [u8]) {
    let digest: Sha256HashValue = compute_verity(image);
    if let Some(uuid) = image.get_mut(UUID) {
        uuid.copy_from_slice(&digest.as_bytes()[..UUID.len()]);
        // Version 8, of the variant that everybody uses: made in a way of one's own (RFC 9562).
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use composefs::tree::{Directory, Stat};

    fn image(mode: u32) -> Box<[u8]> {
        let stat = Stat { st_mode: mode, ..Stat::uninitialized() };
        write(FileSystem { root: Directory::new(stat), leaves: Vec::new() }).unwrap()
    }

    #[test]
    fn images_have_a_uuid_that_their_content_makes() {
        let uuid = |image: &[u8]| image[UUID].to_vec();
        let (one, same, other) = (image(0o755), image(0o755), image(0o700));
        assert_eq!(one, same, "equal trees give equal bytes");
        assert_ne!(uuid(&one), uuid(&other));
        assert_eq!((uuid(&one)[6] >> 4, uuid(&one)[8] >> 6), (8, 2));
        let found = erofs_to_filesystem::<Sha256HashValue>(&one).unwrap();
        assert_eq!(found.root.stat.st_mode, 0o755, "it is an image still");
    }
}

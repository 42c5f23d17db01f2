//! What a fuzzer calls. Each takes any bytes, and panics where what is promised of them is broken.

use crate::known::{Extras, Fingerprint, Known};
use crate::layer::LayerId;
use crate::{hot, image};
use composefs::erofs::reader::erofs_to_filesystem;
use composefs::fsverity::{FsVerityHasher, Sha256HashValue};
use composefs::tree::{Directory, FileSystem, Inode, Stat};
use std::ffi::OsStr;
use zerocopy::IntoBytes;

/// A table of known files with a right checksum before it: it is refused, or says the same when it is written again.
pub fn known_files(data: &[u8]) {
    let _ = Known::from_bytes(data);
    let sum = FsVerityHasher::<Sha256HashValue>::hash(data);
    let Some(known) = Known::from_bytes(&[data, sum.as_bytes()].concat()) else { return };
    let again = Known::from_bytes(&known.to_bytes()).expect("it was written just now");
    assert_eq!(again.files(), known.files());
    for file in known.files() {
        let _ = (known.content(file.content), file.fingerprint.is_fresh());
        assert!(known.get(&file.fingerprint).is_some());
    }
}

/// Inputs that fuzzing of [`known_files`] begins with.
pub fn tables() -> Vec<Vec<u8>> {
    let mut known = Known::default();
    for number in 0..5 {
        let extras = if number % 2 == 0 { Extras::None } else { Extras::Perhaps };
        let content = FsVerityHasher::<Sha256HashValue>::hash(&[u8::try_from(number / 2).unwrap_or(0)]);
        known.add(Fingerprint::from_numbers([1, number, 3, 4, 5]), &content, extras);
    }
    let mut bytes = known.to_bytes();
    bytes.truncate(bytes.len() - 32);
    vec![bytes]
}

/// Notes of what a layer's guests read, and names of layers.
pub fn notes(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        let _ = hot::parse(line);
        if let Ok(layer) = line.parse::<LayerId>() {
            assert_eq!(layer.to_string(), line);
        }
    }
}

/// The image of a layer, as it is read from a store: it is refused, or is a tree.
pub fn layer_image(data: &[u8]) {
    let _ = erofs_to_filesystem::<Sha256HashValue>(data);
}

/// Inputs that fuzzing of [`layer_image`] begins with.
pub fn layer_images() -> Vec<Vec<u8>> {
    let directory = || Directory::new(Stat { st_mode: 0o755, ..Stat::uninitialized() });
    let mut root = directory();
    root.insert(OsStr::new("inner"), Inode::Directory(Box::new(directory())));
    let written = image::write(FileSystem { root, leaves: Vec::new() });
    vec![written.expect("an image of two directories").into()]
}

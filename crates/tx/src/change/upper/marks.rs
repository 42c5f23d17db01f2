//! The extended attributes by which an overlay tells what an object of its upper directory is
//! (Documentation/filesystems/overlayfs.rst).

use crate::tree::protection::Protection;
use pando_kernel::file::handle::FileHandle;
use std::collections::BTreeMap;

/// Bytes of `struct ovl_fb` before the handle: version, magic, length, flags, kind, and 16 of the file system's UUID.
const ORIGIN_HEAD: usize = 21;

/// Where in it the kind of the handle stands.
const ORIGIN_KIND: usize = 4;

/// What an overlay says of an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// The object of the lower tree that it was copied from.
    pub(super) origin: Option<FileHandle>,
    /// A directory that hides the lower one.
    pub(super) opaque: bool,
    /// Only attributes were copied; the content is the origin's.
    pub(super) metadata_only: bool,
    /// Where it is in the lower tree: from the root if it begins with a slash, else a name in the same directory.
    pub(super) redirect: Option<Vec<u8>>,
    /// How it is protected.
    pub(super) protection: Protection,
}

impl Marks {
    /// Reads them from attributes whose common beginning was taken off.
    pub(super) fn of(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        let value = |name: &str| xattrs.get(name.as_bytes());
        Self {
            origin: value("origin").and_then(|bytes| origin(bytes)),
            opaque: value("opaque").is_some_and(|value| value == b"y"),
            metadata_only: value("metacopy").is_some(),
            redirect: value("redirect").cloned(),
            protection: value("protattr").map(|letters| Protection::marked(letters)).unwrap_or_default(),
        }
    }
}

/// The handle in an origin; `None` for an empty one, which says that the lower file system has no handles.
fn origin(bytes: &[u8]) -> Option<FileHandle> {
    let handle = bytes.get(ORIGIN_HEAD..)?;
    (!handle.is_empty()).then(|| FileHandle { kind: i32::from(bytes[ORIGIN_KIND]), bytes: handle.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read() {
        let mut bytes = vec![0, 0xfb, 29, 0, 1];
        bytes.extend([7; 16]);
        bytes.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        let xattrs = BTreeMap::from([
            (b"origin".to_vec(), bytes),
            (b"opaque".to_vec(), b"y".to_vec()),
            (b"redirect".to_vec(), b"/a".to_vec()),
        ]);
        let marks = Marks::of(&xattrs);
        assert_eq!(marks.origin, Some(FileHandle { kind: 1, bytes: vec![1, 2, 3, 4, 5, 6, 7, 8] }));
        assert!(marks.opaque && !marks.metadata_only);
        assert_eq!(marks.redirect.as_deref(), Some(b"/a".as_slice()));
    }

    #[test]
    fn an_empty_origin_is_none() {
        let xattrs = BTreeMap::from([(b"origin".to_vec(), Vec::new())]);
        assert_eq!(Marks::of(&xattrs), Marks::default());
    }
}

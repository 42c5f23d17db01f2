//! An entry of an archive, as a file that can be made of it.

use crate::source::copy::{Attributes, is_carried};
use pando_reader::Kind;
use std::ffi::CString;

/// What a reader told of one.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) attributes: Attributes,
    /// Bytes of content in the archive.
    pub(crate) size: u64,
    /// Where its first header begins, in the unpacked archive.
    pub(crate) offset: u64,
    /// Where its content begins.
    pub(crate) content_offset: u64,
    /// Extended attributes that a guest must not have.
    pub(crate) dropped: u64,
}

impl From<pando_reader::Entry> for Entry {
    fn from(told: pando_reader::Entry) -> Self {
        let (mut xattrs, mut dropped) = (Vec::new(), told.dropped);
        for (name, value) in told.xattrs {
            // `trusted.` is for the host's root alone.
            match CString::new(name) {
                Ok(name) if is_carried(name.as_bytes()) && !name.as_bytes().starts_with(b"trusted.") => {
                    xattrs.push((name, value));
                }
                _ => dropped = dropped.saturating_add(1),
            }
        }
        let (uid, gid, mode) = (told.uid, told.gid, told.mode);
        Self {
            path: told.path,
            kind: told.kind,
            attributes: Attributes { uid, gid, mode, accessed: told.accessed, modified: told.modified, xattrs },
            size: told.size,
            offset: told.offset,
            content_offset: told.content_offset,
            dropped,
        }
    }
}

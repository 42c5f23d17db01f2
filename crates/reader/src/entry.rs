//! An entry of a tar archive, as plain data that is checked on both sides.

use serde::{Deserialize, Serialize};

/// The longest value and name of an extended attribute (XATTR_SIZE_MAX, XATTR_NAME_MAX), and the most of them that one
/// entry may bring.
const LONGEST_ATTRIBUTE: usize = 64 << 10;
const LONGEST_ATTRIBUTE_NAME: usize = 255;
const MOST_ATTRIBUTES: usize = 1 << 20;

/// What an attribute takes in memory besides its name and value: two pointers with lengths, and what the heap adds to
/// each. Without it a small archive of empty attributes would take many times what is counted.
pub const ATTRIBUTE_EACH: usize = 96;

/// What kind of file an entry of an archive is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File,
    /// Runs of data as (offset, length) and the size of the whole.
    Sparse(Vec<(u64, u64)>, u64),
    /// A directory.
    Directory,
    /// A symbolic link, and its target.
    Symlink(Vec<u8>),
    /// Another name of the entry with this path.
    HardLink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A device node.
    Device,
    /// A type that means nothing to a tree of files: a volume label and the like.
    Unknown,
}

/// An entry of an archive, as its headers describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// As the archive has it: it may lead anywhere.
    pub path: Vec<u8>,
    /// The kind of file that the entry is.
    pub kind: Kind,
    /// The id of the owner, as the archive has it.
    pub uid: u32,
    /// The id of the group, as the archive has it.
    pub gid: u32,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Seconds and nanoseconds since 1970.
    pub accessed: (i64, u32),
    /// Seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Extended attributes, whatever their names.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of content that follow, or would follow.
    pub size: u64,
    /// Where its first header begins, in the unpacked archive.
    pub offset: u64,
    /// Where its content begins, in the unpacked archive.
    pub content_offset: u64,
    /// Attributes of other kinds, which nobody carries.
    pub dropped: u64,
}

/// What no entry may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Impossible {
    #[error("its owner {0} is not a user or group id")]
    Owner(u64),
    #[error("it has an extended attribute whose value is longer than 64 KiB, which no file system keeps")]
    AttributeTooLong,
    #[error("it has an extended attribute whose name is longer than 255 bytes, which no file system keeps")]
    AttributeNameTooLong,
    #[error("it has more than 1 MiB of extended attributes")]
    TooManyAttributes,
    #[error("its map of data runs is not in order, or does not match its size")]
    SparseMap,
    #[error("its times or its mode are none")]
    Numbers,
}

impl Entry {
    /// Whether it can be an entry at all. Its paths are looked at by the code that resolves them.
    pub(crate) fn check(&self) -> Result<(), Impossible> {
        for id in [self.uid, self.gid] {
            owner(id.into())?;
        }
        let mut attributes = 0;
        for (name, value) in &self.xattrs {
            check_attribute(name, value, &mut attributes)?;
        }
        let moments = [self.accessed.1, self.modified.1];
        if moments.iter().any(|nanoseconds| *nanoseconds >= 1_000_000_000) || self.mode & !0o7777 != 0 {
            return Err(Impossible::Numbers);
        }
        match &self.kind {
            Kind::Sparse(map, whole) if !is_sparse_map(map, *whole, self.size) => Err(Impossible::SparseMap),
            Kind::File | Kind::Sparse(..) | Kind::Unknown => Ok(()),
            // Links, directories and the like have no content.
            _ if self.size == 0 => Ok(()),
            _ => Err(Impossible::Numbers),
        }
    }

    /// Whether content follows, where content is wanted.
    pub(crate) fn has_content(&self) -> bool {
        matches!(self.kind, Kind::File | Kind::Sparse(..))
    }
}

/// A user or group id. The all-ones id means "leave as it is" to chown(2).
pub(crate) fn owner(id: u64) -> Result<u32, Impossible> {
    u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or(Impossible::Owner(id))
}

/// Refuses attributes that an archive may hold and no file system can: they are kept in memory until their file is
/// made.
pub(crate) fn check_attribute(name: &[u8], value: &[u8], so_far: &mut usize) -> Result<(), Impossible> {
    if name.len() > LONGEST_ATTRIBUTE_NAME {
        return Err(Impossible::AttributeNameTooLong);
    }
    if value.len() > LONGEST_ATTRIBUTE {
        return Err(Impossible::AttributeTooLong);
    }
    *so_far += name.len() + value.len() + ATTRIBUTE_EACH;
    if *so_far > MOST_ATTRIBUTES { Err(Impossible::TooManyAttributes) } else { Ok(()) }
}

/// Whether the runs are in order, lie in the file, and add up to the content.
fn is_sparse_map(map: &[(u64, u64)], real_size: u64, content: u64) -> bool {
    let (mut end, mut sum) = (0_u64, 0_u64);
    for (offset, length) in map {
        let (Some(next), Some(total)) = (offset.checked_add(*length), sum.checked_add(*length)) else { return false };
        if *offset < end {
            return false;
        }
        (end, sum) = (next, total);
    }
    end <= real_size && sum == content && i64::try_from(real_size).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_maps_are_checked() {
        assert!(is_sparse_map(&[(0, 2), (4, 2), (9, 0)], 9, 4));
        assert!(!is_sparse_map(&[(4, 2), (0, 2)], 9, 4), "out of order");
        assert!(!is_sparse_map(&[(0, 4), (2, 4)], 9, 8), "overlapping");
        assert!(!is_sparse_map(&[(8, 2)], 9, 2), "past the end");
        assert!(!is_sparse_map(&[(u64::MAX, 2)], u64::MAX, 2), "overflowing");
        assert!(!is_sparse_map(&[(0, 1)], u64::MAX, 1), "larger than any file");
    }

    #[test]
    fn attributes_that_no_file_system_keeps_are_refused() {
        let checked = |name: usize, value: usize, so_far: usize| {
            let mut so_far = so_far;
            check_attribute(&vec![b'a'; name], &vec![0; value], &mut so_far)
        };
        assert!(checked(255, 64 << 10, 0).is_ok());
        assert!(matches!(checked(10, (64 << 10) + 1, 0), Err(Impossible::AttributeTooLong)));
        assert!(matches!(checked(256, 1, 0), Err(Impossible::AttributeNameTooLong)));
        assert!(matches!(checked(10, 1000, 1 << 20), Err(Impossible::TooManyAttributes)));
        let mut so_far = 0;
        let empty = (0..90_000).find(|_| check_attribute(b"user.", b"", &mut so_far).is_err());
        assert!(empty.is_some_and(|count| count < 12_000), "empty ones take memory too: {empty:?}");
    }

    #[test]
    fn what_no_archive_can_say_is_refused() {
        let entry = Entry {
            path: b"a".to_vec(),
            kind: Kind::File,
            uid: 0,
            gid: 0,
            mode: 0o644,
            accessed: (0, 0),
            modified: (0, 0),
            xattrs: Vec::new(),
            size: 1,
            offset: 0,
            content_offset: 512,
            dropped: 0,
        };
        assert_eq!(entry.check(), Ok(()));
        assert_eq!(Entry { uid: u32::MAX, ..entry.clone() }.check(), Err(Impossible::Owner(u32::MAX.into())));
        assert_eq!(Entry { mode: 0o100_644, ..entry.clone() }.check(), Err(Impossible::Numbers));
        assert_eq!(Entry { modified: (0, 1_000_000_000), ..entry.clone() }.check(), Err(Impossible::Numbers));
        assert_eq!(Entry { kind: Kind::Directory, ..entry.clone() }.check(), Err(Impossible::Numbers));
        assert_eq!(Entry { kind: Kind::Sparse(vec![(0, 2)], 9), ..entry }.check(), Err(Impossible::SparseMap));
    }
}

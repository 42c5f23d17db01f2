//! What an object is like, beside its content.

use crate::state::target::Target;
use crate::tree::attributes::Moment;
use crate::tree::confined::CallPath;
use crate::tree::inner_ids;
use crate::tree::protection::Protection;
use crate::tree::xattr;
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

/// How many ids a target has.
const RANGE: u32 = 1 << 16;

/// What an object is like: all that a commit can give it but its content. In a target the ids are those that it has
/// inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The kind of the object, such as a directory.
    #[serde(with = "kind_as_number")]
    pub kind: FileType,
    /// Permissions, with set-user-id, set-group-id and sticky: the lower twelve bits.
    pub mode: u32,
    /// The user that it belongs to.
    pub uid: u32,
    /// The id of its group.
    pub gid: u32,
    /// The size of its content in bytes.
    pub size: u64,
    /// When its content last changed.
    pub modified: Moment,
    /// How many names it has.
    pub names: u64,
    /// Where a symbolic link leads.
    pub target: Option<Vec<u8>>,
    /// The major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Extended attributes, by name: access lists, capabilities, labels, users' own.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// How it is protected.
    protection: Protection,
}

impl Look {
    /// That of an object, opened as a mere place. `protection` is what is known of that already.
    pub(crate) fn of(object: OwnedFd, protection: Option<Protection>, ids: Ids) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&object)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let target = match kind {
            FileType::Symlink => Some(rustix::fs::readlinkat(&object, "", Vec::new())?.into_bytes()),
            _ => None,
        };
        let device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice)
            .then(|| (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)));
        let call = CallPath::of(object)?;
        let mut xattrs = BTreeMap::new();
        for (name, mut value) in xattr::read(&call)?.own {
            inner_ids::translate(&name, &mut value, |id| ids.inside(id));
            xattrs.insert(name.into_bytes(), value);
        }
        let protection = match protection {
            Some(protection) => protection,
            None => Protection::of(&call)?,
        };
        Ok(Self {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: ids.inside(stat.st_uid),
            gid: ids.inside(stat.st_gid),
            size: stat.st_size.cast_unsigned(),
            modified: Moment::modified(&stat),
            names: stat.st_nlink as u64,
            target,
            device,
            xattrs,
            protection,
        })
    }

    /// How chattr(1) protects it: `i`, `a`, both or neither.
    pub fn protection(&self) -> &'static str {
        self.protection.letters()
    }

    /// The same, to be given to an object.
    pub(crate) fn protected(&self) -> Protection {
        self.protection
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Whether it differs from another in what is not content, names or time.
    pub(crate) fn is_other(&self, other: &Self) -> bool {
        let all = |one: &Self| (one.kind, one.mode, one.uid, one.gid, one.device, one.protection);
        all(self) != all(other) || self.target != other.target || self.xattrs != other.xattrs
    }
}

/// How ids are to be told: as they are, or as those inside of a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids(Option<u32>);

impl Ids {
    /// As a part's.
    pub(crate) fn of(target: Option<&Target>) -> Self {
        Self(target.map(|target| target.first_id))
    }

    fn inside(self, id: u32) -> u32 {
        let inside = self.0.and_then(|first| id.checked_sub(first)).filter(|inside| *inside < RANGE);
        inside.unwrap_or(id)
    }
}

/// A kind of object, written as the bits of a mode that say it.
mod kind_as_number {
    use rustix::fs::FileType;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(kind: &FileType, serializer: S) -> Result<S::Ok, S::Error> {
        kind.as_raw_mode().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FileType, D::Error> {
        u32::deserialize(deserializer).map(FileType::from_raw_mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_target_are_told_as_it_knows_them() {
        let ids = Ids(Some(65_536));
        assert_eq!((ids.inside(65_536), ids.inside(66_536), ids.inside(7)), (0, 1000, 7));
        assert_eq!((Ids(None).inside(65_536), ids.inside(131_072)), (65_536, 131_072));
    }
}

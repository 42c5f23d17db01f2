//! What chattr(1) protects files and directories by: `i`, which nobody may change, and `a`, which may only grow.
//!
//! An overlay keeps neither on the objects of its upper directory, where they would be in its own way: it marks them. A
//! commit brings the marks to the live tree, last of all; where an object of that is protected which the transaction
//! has changed, who could do so, its protection is lifted until then.

use crate::tree::confined::CallPath;
use crate::tree::inode_flags::{change_flags, open_with_flags};
use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// How an object is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Protection {
    immutable: bool,
    append_only: bool,
}

impl Protection {
    /// Whether it is not at all.
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }

    /// This one, if there is anything to be done where there was the other before.
    pub(crate) fn or(self, before: Self) -> Option<Self> {
        (!self.is_none() || !before.is_none()).then_some(self)
    }

    /// That of what is at a path, as its file system tells it. File systems that cannot be written to (erofs) say of
    /// all that it is immutable, and so do overlays over such a one, of what is protected by nothing: those have no
    /// flags, and are asked for them only where they say so.
    pub(crate) fn of(path: &CallPath) -> io::Result<Self> {
        let follow = if path.follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let flags = follow | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(CWD, path.text.as_c_str(), flags, StatxFlags::empty())?.stx_attributes;
        if !found.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND) {
            return Ok(Self::default());
        }
        let nofollow = if path.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let place = rustix::fs::open(path.text.as_c_str(), OFlags::PATH | OFlags::CLOEXEC | nofollow, Mode::empty())?;
        Ok(open_with_flags(place.as_fd())?.map_or_else(Self::default, |(_, flags)| Self {
            immutable: flags.contains(IFlags::IMMUTABLE),
            append_only: flags.contains(IFlags::APPEND),
        }))
    }

    /// That of an object in an upper directory, as the overlay has marked it: a letter each.
    pub(crate) fn marked(letters: &[u8]) -> Self {
        Self { immutable: letters.contains(&b'i'), append_only: letters.contains(&b'a') }
    }

    /// The letters of chattr(1) for it.
    pub(crate) fn letters(self) -> &'static str {
        match (self.immutable, self.append_only) {
            (true, true) => "ia",
            (true, false) => "i",
            (false, true) => "a",
            (false, false) => "",
        }
    }

    /// Gives it to an object that is open as a mere place. What cannot be protected is not: only files and directories
    /// can, and not on every file system.
    pub(crate) fn give(self, object: BorrowedFd<'_>) -> io::Result<()> {
        change_flags(object, |flags| {
            flags.set(IFlags::IMMUTABLE, self.immutable);
            flags.set(IFlags::APPEND, self.append_only);
        })
    }
}

/// Whether this thread may lift any.
pub(crate) fn may_be_lifted() -> bool {
    let held = rustix::thread::capabilities(None);
    held.is_ok_and(|sets| sets.effective.contains(CapabilitySet::LINUX_IMMUTABLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlays_letters_are_read() {
        assert!(Protection::marked(b"").is_none());
        assert_eq!(Protection::marked(b"i"), Protection { immutable: true, append_only: false });
        assert_eq!(Protection::marked(b"ia"), Protection { immutable: true, append_only: true });
    }

    #[test]
    fn what_is_no_file_needs_none() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let place = rustix::fs::open(&link, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap();
        Protection { immutable: true, append_only: true }.give(place.as_fd()).unwrap();
    }
}

//! Everything about a file but its content and its name: owner, mode, times, extended attributes.

use rustix::fs::{AtFlags, FileType, Gid, Mode, Statx, StatxTimestamp, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};

/// More than the kernel lets one file have: XATTR_LIST_MAX and XATTR_SIZE_MAX are both this.
const MAX_XATTR: usize = 65_536;

/// How often a list that grows while it is read is read again.
const MAX_TRIES: u32 = 8;

/// Extended attributes by name.
pub(crate) type Xattrs = Vec<(CString, Vec<u8>)>;

/// What a file has beside content and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Permission bits with setuid, setgid and sticky.
    pub(crate) mode: u32,
    pub(crate) accessed: (i64, u32),
    pub(crate) modified: (i64, u32),
    pub(crate) xattrs: Xattrs,
}

/// An attribute could not be set: what was tried, and what the kernel said.
pub(crate) type NotSet = (&'static str, Errno);

impl Attributes {
    /// The attributes of an object that `stat` describes. Also says how many extended attributes are not for a guest.
    pub(crate) fn read(object: BorrowedFd<'_>, stat: &Statx) -> Result<(Self, u64), Errno> {
        let (xattrs, dropped) = read_xattrs(object)?;
        let attributes = Self {
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            mode: u32::from(stat.stx_mode) & 0o7777,
            accessed: moment(stat.stx_atime),
            modified: moment(stat.stx_mtime),
            xattrs,
        };
        Ok((attributes, dropped))
    }

    /// Gives them to an object of type `kind`. Returns how many could not be kept: the file system has no place for
    /// such an extended attribute, or only root could set it.
    ///
    /// The order is forced: changing the owner clears setuid bits and file capabilities, setting anything changes the
    /// times.
    pub(crate) fn apply(&self, object: BorrowedFd<'_>, kind: FileType) -> Result<u64, NotSet> {
        let mut dropped = 0;
        let owner = (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)));
        match rustix::fs::chownat(object, "", owner.0, owner.1, AtFlags::EMPTY_PATH) {
            Ok(()) => {}
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => dropped += 1,
            Err(error) => return Err(("set the owner of", error)),
        }
        let path = by_descriptor(object);
        for (name, value) in &self.xattrs {
            match rustix::fs::setxattr(path.as_str(), name.as_c_str(), value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::INVAL) => {
                    dropped += 1
                }
                Err(error) => return Err(("set the extended attributes of", error)),
            }
        }
        if kind != FileType::Symlink {
            rustix::fs::chmod(path.as_str(), Mode::from_raw_mode(self.mode))
                .map_err(|error| ("set the mode of", error))?;
        }
        let times = Timestamps { last_access: timespec(self.accessed), last_modification: timespec(self.modified) };
        rustix::fs::utimensat(object, "", &times, AtFlags::EMPTY_PATH).map_err(|error| ("set the times of", error))?;
        Ok(dropped)
    }
}

/// Whether a guest gets this extended attribute.
///
/// `trusted.overlay.*` and `user.overlay.*` steer an overlay that has the tree as a layer: they could redirect a name
/// to any file of the lower layers. SELinux labels, IMA and EVM belong to the host's policy.
pub(crate) fn is_carried(name: &[u8]) -> bool {
    let carried: [&[u8]; 5] =
        [b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default", b"user.", b"trusted."];
    let overlay: [&[u8]; 2] = [b"user.overlay.", b"trusted.overlay."];
    carried.iter().any(|start| if start.ends_with(b".") { name.starts_with(start) } else { name == *start })
        && !overlay.iter().any(|start| name.starts_with(start))
}

/// A path for the calls that take no O_PATH descriptor. It leads to the object itself, be it a symbolic link.
pub(super) fn by_descriptor(object: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", object.as_raw_fd())
}

/// Those that are carried, and the number of the others.
fn read_xattrs(object: BorrowedFd<'_>) -> Result<(Xattrs, u64), Errno> {
    let path = by_descriptor(object);
    let names = match grown(
        || rustix::fs::listxattr_query(path.as_str()),
        |buffer| rustix::fs::listxattr(path.as_str(), buffer),
    ) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let (mut xattrs, mut dropped) = (Vec::new(), 0);
    for name in names.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        if !is_carried(name.to_bytes()) {
            dropped += 1;
            continue;
        }
        let value = grown(
            || rustix::fs::getxattr_query(path.as_str(), name),
            |buffer| rustix::fs::getxattr(path.as_str(), name, buffer),
        );
        match value {
            Ok(value) => xattrs.push((name.to_owned(), value)),
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((xattrs, dropped))
}

/// Reads a value whose `size` has to be asked for first.
fn grown(
    size: impl Fn() -> Result<usize, Errno>,
    read: impl Fn(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    for _ in 0..MAX_TRIES {
        let mut buffer = vec![0; size()?.min(MAX_XATTR)];
        if buffer.is_empty() {
            return Ok(buffer);
        }
        match read(&mut buffer) {
            Ok(filled) => {
                buffer.truncate(filled);
                return Ok(buffer);
            }
            // It grew since.
            Err(Errno::RANGE) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::RANGE)
}

fn moment(stamp: StatxTimestamp) -> (i64, u32) {
    (stamp.tv_sec, stamp.tv_nsec)
}

fn timespec((seconds, nanoseconds): (i64, u32)) -> Timespec {
    Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_steer_an_overlay_or_the_hosts_policy_are_not_carried() {
        for name in ["security.capability", "system.posix_acl_access", "user.x", "user.overlayish", "trusted.x"] {
            assert!(is_carried(name.as_bytes()), "{name}");
        }
        let refused = [
            "trusted.overlay.redirect",
            "user.overlay.metacopy",
            "security.selinux",
            "security.ima",
            "system.x",
            "",
            "securit",
        ];
        for name in refused {
            assert!(!is_carried(name.as_bytes()), "{name}");
        }
    }
}

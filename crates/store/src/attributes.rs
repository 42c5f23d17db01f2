//! Everything about a file but its content and its name.

use composefs::tree::Stat;
use rustix::fs::{AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// XATTR_LIST_MAX and XATTR_SIZE_MAX are both this.
const MOST: usize = 65_536;

/// A path for the calls that take no O_PATH descriptor. It leads to the object itself, be it a symbolic link.
pub(crate) fn by_descriptor(object: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", object.as_raw_fd())
}

/// Whether a layer keeps this extended attribute.
///
/// `trusted.overlay.*` steers overlays, as a farm is a layer of one; SELinux labels, IMA and EVM belong to the host's
/// policy. `user.overlay.*` is for overlays that guests make themselves, and means nothing to ours.
fn is_kept(name: &[u8]) -> bool {
    let steers = name.starts_with(b"trusted.overlay.");
    let whole: [&[u8]; 3] = [b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default"];
    !steers && (name.starts_with(b"user.") || name.starts_with(b"trusted.") || whole.contains(&name))
}

/// The attributes of an open object that `stat` describes.
pub(crate) fn read(object: BorrowedFd<'_>, stat: &rustix::fs::Stat) -> Result<Stat, Errno> {
    Ok(Stat { xattrs: read_xattrs(object)?, ..plain(stat) })
}

/// Those of an object that has no extended attributes.
pub(crate) fn plain(stat: &rustix::fs::Stat) -> Stat {
    Stat {
        st_mode: stat.st_mode & 0o7777,
        st_uid: stat.st_uid,
        st_gid: stat.st_gid,
        st_mtim_sec: stat.st_mtime,
        st_mtim_nsec: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        xattrs: BTreeMap::new(),
    }
}

fn read_xattrs(object: BorrowedFd<'_>) -> Result<BTreeMap<Box<OsStr>, Box<[u8]>>, Errno> {
    let path = by_descriptor(object);
    // Most files have none: the short question first, without a path where the descriptor is one for reading.
    let length = match rustix::fs::flistxattr_query(object) {
        Err(Errno::BADF) => rustix::fs::listxattr_query(path.as_str()),
        told => told,
    };
    let names = match length {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        Ok(_) => {
            let mut names = vec![0; MOST];
            let length = rustix::fs::listxattr(path.as_str(), &mut names)?;
            names.truncate(length);
            names
        }
        Err(error) => return Err(error),
    };
    let mut xattrs = BTreeMap::new();
    let names = names.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    for name in names.filter(|name| is_kept(name.to_bytes())) {
        let mut value = vec![0; MOST];
        let length = rustix::fs::getxattr(path.as_str(), name, &mut value)?;
        value.truncate(length);
        xattrs.insert(Box::from(OsStr::from_bytes(name.to_bytes())), value.into_boxed_slice());
    }
    Ok(xattrs)
}

/// Gives one open directory the mode, owner, times and extended attributes of another.
pub fn dress_like(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> std::io::Result<()> {
    let stat = read(from, &rustix::fs::fstat(from)?)?;
    Ok(apply(&stat, to, FileType::Directory)?)
}

/// Gives attributes to an open object of type `kind`.
///
/// The order is forced: changing the owner clears setuid bits and file capabilities, setting anything changes the
/// times.
pub(crate) fn apply(stat: &Stat, object: BorrowedFd<'_>, kind: FileType) -> Result<(), Errno> {
    let path = by_descriptor(object);
    let owner = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
    match rustix::fs::chownat(object, "", owner.0, owner.1, AtFlags::EMPTY_PATH) {
        // A user who tries the store without root keeps what is theirs.
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
        done => done?,
    }
    for (name, value) in &stat.xattrs {
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        rustix::fs::setxattr(path.as_str(), name.as_c_str(), value, XattrFlags::empty())?;
    }
    if kind != FileType::Symlink {
        let mode = Mode::from_raw_mode(stat.st_mode);
        match rustix::fs::fchmod(object, mode) {
            Err(Errno::BADF) => rustix::fs::chmod(path.as_str(), mode)?,
            done => done?,
        }
    }
    let time = Timespec { tv_sec: stat.st_mtim_sec, tv_nsec: stat.st_mtim_nsec.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(object, "", &times, AtFlags::EMPTY_PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_an_overlay_or_the_hosts_policy_is_not_kept() {
        for name in ["security.capability", "system.posix_acl_access", "user.x", "user.overlay.opaque", "trusted.x"] {
            assert!(is_kept(name.as_bytes()), "{name}");
        }
        for name in ["trusted.overlay.redirect", "trusted.overlay.metacopy", "security.selinux", "security.ima", ""] {
            assert!(!is_kept(name.as_bytes()), "{name}");
        }
    }
}

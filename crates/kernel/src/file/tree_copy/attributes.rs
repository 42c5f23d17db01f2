//! Everything about a file but its content and its name.

use crate::file::confined::by_descriptor;
use crate::file::directory_chain::look_at;
use rustix::fs::{AtFlags, FileType, Gid, Mode, StatxTimestamp, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::BorrowedFd;

/// As much as the kernel lets one file have: XATTR_LIST_MAX and XATTR_SIZE_MAX are both this.
const LONGEST: usize = 64 << 10;

/// Owner, mode, times and extended attributes of an object.
#[derive(Clone, Debug)]
pub struct Attributes {
    owner: (u32, u32),
    mode: u32,
    times: Timestamps,
    extended: BTreeMap<CString, Vec<u8>>,
}

impl Attributes {
    /// Those of an object, which may be open as a mere place (O_PATH).
    ///
    /// # Errors
    ///
    /// Those of statx(2), listxattr(2) and getxattr(2).
    pub fn of(object: BorrowedFd<'_>) -> Result<Self, Errno> {
        let about = look_at(object)?;
        let time = |stamp: StatxTimestamp| Timespec { tv_sec: stamp.tv_sec, tv_nsec: stamp.tv_nsec.into() };
        Ok(Self {
            owner: (about.stx_uid, about.stx_gid),
            mode: about.stx_mode.into(),
            times: Timestamps { last_access: time(about.stx_atime), last_modification: time(about.stx_mtime) },
            extended: extended(object)?,
        })
    }

    /// Whether another object has the same extended attributes.
    pub fn has_the_same_extended(&self, other: &Self) -> bool {
        self.extended == other.extended
    }

    /// Gives them to another object of the same kind. The order is forced: a new owner takes file capabilities away,
    /// and whatever is set changes times. What belongs to the host's policy (SELinux labels and their like) is left out
    /// where the kernel refuses it.
    ///
    /// # Errors
    ///
    /// Those of fchownat(2), setxattr(2), fchmod(2) and utimensat(2).
    pub fn give(&self, object: BorrowedFd<'_>) -> Result<(), Errno> {
        self.give_some(object, &self.extended)
    }

    /// Gives all but the extended attributes.
    ///
    /// # Errors
    ///
    /// Those of fchownat(2), fchmod(2) and utimensat(2).
    pub fn give_all_but_extended(&self, object: BorrowedFd<'_>) -> Result<(), Errno> {
        self.give_some(object, &BTreeMap::new())
    }

    fn give_some(&self, object: BorrowedFd<'_>, extended: &BTreeMap<CString, Vec<u8>>) -> Result<(), Errno> {
        let (user, group) = self.owner;
        rustix::fs::chownat(object, "", Some(Uid::from_raw(user)), Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
        let path = by_descriptor(object);
        for (name, value) in extended {
            match rustix::fs::setxattr(path.as_str(), name.as_c_str(), value, XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL) if is_policy(name.to_bytes()) => {}
                set => set?,
            }
        }
        if FileType::from_raw_mode(self.mode) != FileType::Symlink {
            rustix::fs::chmod(path.as_str(), Mode::from_raw_mode(self.mode & 0o7777))?;
        }
        rustix::fs::utimensat(object, "", &self.times, AtFlags::EMPTY_PATH)
    }
}

fn is_policy(name: &[u8]) -> bool {
    name.starts_with(b"security.") && name != b"security.capability"
}

fn extended(object: BorrowedFd<'_>) -> Result<BTreeMap<CString, Vec<u8>>, Errno> {
    let path = by_descriptor(object);
    let length = match rustix::fs::listxattr_query(path.as_str()) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        length => length?,
    };
    // It may grow meanwhile.
    let mut names = vec![0; if length > 0 { LONGEST } else { 0 }];
    let length = rustix::fs::listxattr(path.as_str(), &mut names[..])?;
    let mut value = vec![0; LONGEST];
    let mut all = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let Ok(name) = CString::new(name) else { continue };
        match rustix::fs::getxattr(path.as_str(), name.as_c_str(), &mut value[..]) {
            Ok(length) => drop(all.insert(name, value[..length].to_vec())),
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(all)
}

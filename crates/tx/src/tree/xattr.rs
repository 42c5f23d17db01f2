//! Extended attributes of files, and those among them by which an overlay keeps its own accounts.

use crate::tree::confined::CallPath;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;

/// How an overlay's own attributes begin.
const OVERLAY: &[u8] = b"trusted.overlay.";

/// How xfs shows an access list once more to the administrator, which is there already as `system.posix_acl_…`.
const XFS_ALIAS: &[u8] = b"trusted.SGI_ACL_";

/// How often something that grows while it is read is read again.
const MAX_TRIES: u32 = 8;

/// Attributes by name.
pub(crate) type Xattrs = BTreeMap<CString, Vec<u8>>;

/// The attributes of a file, its overlay's apart.
pub(crate) struct Both {
    /// Everybody's: ACLs, capabilities, labels, users' own.
    pub(crate) own: Xattrs,
    /// The overlay's, without [`OVERLAY`] in front.
    pub(crate) overlay: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Reads all attributes of the object at a path.
pub(crate) fn read(path: &CallPath) -> io::Result<Both> {
    let mut both = Both { own: Xattrs::new(), overlay: BTreeMap::new() };
    for name in names(path)? {
        let value = match get(path, &name) {
            // Removed since it was listed.
            Err(Errno::NODATA) => continue,
            value => value?,
        };
        match name.to_bytes().strip_prefix(OVERLAY) {
            Some(rest) => both.overlay.insert(rest.to_vec(), value),
            None => both.own.insert(name, value),
        };
    }
    Ok(both)
}

/// Makes the own attributes of the object at `path` be `wanted`, changing only what differs.
pub(crate) fn write(path: &CallPath, wanted: &Xattrs) -> io::Result<()> {
    let now = read(path)?.own;
    for name in now.keys().filter(|name| !wanted.contains_key(*name)) {
        remove(path, name)?;
    }
    for (name, value) in wanted.iter().filter(|(name, value)| now.get(*name) != Some(value)) {
        let set = if path.follow { rustix::fs::setxattr } else { rustix::fs::lsetxattr };
        set(path.text.as_c_str(), name.as_c_str(), value, rustix::fs::XattrFlags::empty())?;
    }
    Ok(())
}

/// Gives the object at `path` the overlay's attributes of another.
pub(crate) fn mark(path: &CallPath, overlay: &BTreeMap<Vec<u8>, Vec<u8>>) -> io::Result<()> {
    for (rest, value) in overlay {
        let name = CString::new([OVERLAY, rest].concat())?;
        let set = if path.follow { rustix::fs::setxattr } else { rustix::fs::lsetxattr };
        set(path.text.as_c_str(), name.as_c_str(), value, rustix::fs::XattrFlags::empty())?;
    }
    Ok(())
}

/// Removes the overlay's attributes: the object leaves the overlay.
pub(crate) fn strip(path: &CallPath) -> io::Result<()> {
    for name in names(path)?.iter().filter(|name| name.to_bytes().starts_with(OVERLAY)) {
        match remove(path, name) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Whether an object has an attribute of this name.
pub(crate) fn has(path: &CallPath, name: &CStr) -> io::Result<bool> {
    match get(path, name) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes an attribute away; one that is not there need not be.
pub(crate) fn take(path: &CallPath, name: &CStr) -> io::Result<()> {
    match remove(path, name) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        removed => Ok(removed?),
    }
}

fn remove(path: &CallPath, name: &CStr) -> Result<(), Errno> {
    let remove = if path.follow { rustix::fs::removexattr } else { rustix::fs::lremovexattr };
    remove(path.text.as_c_str(), name)
}

fn names(path: &CallPath) -> io::Result<Vec<CString>> {
    let at = path.text.as_c_str();
    let listed = match path.follow {
        true => whole(|| rustix::fs::listxattr_query(at), |buffer| rustix::fs::listxattr(at, buffer)),
        false => whole(|| rustix::fs::llistxattr_query(at), |buffer| rustix::fs::llistxattr(at, buffer)),
    };
    let list = match listed {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        list => list?,
    };
    let parts = list.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    Ok(parts.filter(|name| !name.to_bytes().starts_with(XFS_ALIAS)).map(CStr::to_owned).collect())
}

fn get(path: &CallPath, name: &CStr) -> Result<Vec<u8>, Errno> {
    let at = path.text.as_c_str();
    match path.follow {
        true => whole(|| rustix::fs::getxattr_query(at, name), |buffer| rustix::fs::getxattr(at, name, buffer)),
        false => whole(|| rustix::fs::lgetxattr_query(at, name), |buffer| rustix::fs::lgetxattr(at, name, buffer)),
    }
}

/// Reads something whose size is not known: into a small buffer, which nearly always does, then into one of the `size`
/// that the kernel names. An empty buffer would not do to ask for the size: rustix answers 0 for it without a look at
/// what the kernel says.
fn whole(
    size: impl Fn() -> Result<usize, Errno>,
    read: impl Fn(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 512];
    for _ in 0..MAX_TRIES {
        match read(&mut buffer) {
            Ok(filled) => {
                buffer.truncate(filled);
                return Ok(buffer);
            }
            Err(Errno::RANGE) => buffer.resize(size()?.max(1), 0),
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::RANGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::confined::Tree;
    use crate::tree::path::TreePath;

    /// Attributes of a size, given to one file, read, and given to another.
    #[track_caller]
    fn carried(given: &Xattrs) {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: these attributes are root's to give");
        }
        let temporary = tempfile::tempdir_in("/dev/shm").unwrap();
        let tree = Tree::open(temporary.path()).unwrap();
        let file = |name: &str| {
            std::fs::write(temporary.path().join(name), "").unwrap();
            let path = TreePath::new(name.as_bytes()).unwrap();
            (tree.call_path(&path).unwrap(), CallPath::of(tree.object(&path).unwrap()).unwrap())
        };
        let ((by_name, by_object), (other, other_object)) = (file("a"), file("b"));
        match write(&by_name, given) {
            Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                return eprintln!("skipped: this file system keeps no extended attributes of users");
            }
            written => written.unwrap(),
        }
        assert_eq!(read(&by_name).unwrap().own, *given);
        assert_eq!(read(&by_object).unwrap().own, *given);
        write(&other_object, given).unwrap();
        assert_eq!(read(&other).unwrap().own, *given);
    }

    fn name(text: &str) -> CString {
        CString::new(text).unwrap()
    }

    #[test]
    fn values_of_every_size_up_to_the_largest_are_read() {
        for size in [0, 1, 511, 512, 513, 4096, 65_536] {
            carried(&Xattrs::from([(name("trusted.large"), vec![7; size])]));
        }
    }

    #[test]
    fn lists_of_names_up_to_the_longest_are_read() {
        for count in [2, 3, 200] {
            let names = (0..count).map(|at| (name(&format!("trusted.{at:0>240}")), vec![1]));
            carried(&names.collect());
        }
    }
}

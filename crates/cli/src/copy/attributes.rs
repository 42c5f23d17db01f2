//! Which extended attributes go with a file, and into whose hands.

use super::Owners;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// What a file has besides its content: names and values.
pub(super) type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// What its owner noted about it, which gives nobody any right.
const NOTES: &[u8] = b"user.";

/// What a program may do whoever executes it.
const CAPABILITIES: &[u8] = b"security.capability";

/// Access control lists name users by their numbers.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Whether an attribute is sent along with a file whose owner is sent like this.
pub(super) fn is_sent(name: &[u8], owners: Owners) -> bool {
    name.starts_with(NOTES) || name == CAPABILITIES || (owners == Owners::Kept && LISTS.contains(&name))
}

/// Whether one is taken from a stream that a guest wrote. Capabilities would be a guest's gift to whoever executes the
/// file, and its lists name others' numbers.
pub(super) fn is_taken_from_guests(name: &[u8]) -> bool {
    name.starts_with(NOTES)
}

/// Those of an open file that are sent along. One without any, or on a file system without any, has none.
pub(super) fn of(file: impl AsFd, owners: Owners) -> Result<Attributes, Errno> {
    let file = file.as_fd();
    let mut found = Vec::new();
    for name in names(file)?.split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_sent(name, owners)) {
        match value(file, name) {
            Ok(value) => found.push((name.to_vec(), value)),
            // It went away meanwhile.
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}

/// Gives an open file an attribute.
pub(super) fn set(file: impl AsFd, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    fsetxattr(file, name, value, XattrFlags::empty())
}

fn names(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    match grown(|buffer| flistxattr(file, buffer)) {
        Err(Errno::OPNOTSUPP) => Ok(Vec::new()),
        names => names,
    }
}

fn value(file: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    grown(|buffer| fgetxattr(file, name, buffer))
}

/// What a call writes into a buffer that is large enough: the kernel's bound of both lists and values.
fn grown(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    const MOST: usize = 64 << 10;
    let mut buffer = vec![0; 256];
    let length = match call(&mut buffer) {
        Err(Errno::RANGE) => {
            buffer.resize(MOST, 0);
            call(&mut buffer)?
        }
        length => length?,
    };
    buffer.truncate(length);
    Ok(buffer)
}

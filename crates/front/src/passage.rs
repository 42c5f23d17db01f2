//! Which of the caller's descriptors a guest may have.

use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs, major, minor};
use rustix::io::Errno;

/// The file system of namespace handles, which look like plain files.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// The file system of pipes without a name (linux/magic.h).
const PIPEFS_MAGIC: u64 = 0x5049_5045;

/// What is done with one of the caller's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// The guest gets it.
    Pass,
    /// It is more than bytes: a terminal, a socket, a file, a device. The guest gets a pipe, and the command carries
    /// the bytes.
    Carry,
    /// It is not passed, for this reason.
    Refuse(&'static str),
}

/// What is to be done with a descriptor.
pub fn passage(descriptor: BorrowedFd<'_>) -> Result<Passage, Errno> {
    let flags = fcntl_getfl(descriptor)?;
    if flags.contains(OFlags::PATH) {
        return Ok(Passage::Refuse("an open path (O_PATH)"));
    }
    let lies_on = |magic: u64| Ok::<_, Errno>(u64::try_from(fstatfs(descriptor)?.f_type) == Ok(magic));
    let stat = fstat(descriptor)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        // fchdir(2) through it would lead out of the guest's root.
        FileType::Directory => Passage::Refuse("a directory"),
        // Sockets and pipes have no file system to ask; only plain files can be a namespace in disguise.
        FileType::RegularFile if lies_on(NSFS_MAGIC)? => Passage::Refuse("a namespace"),
        // A guest opens its standard descriptors by name (/dev/stdout). Its output it either may not open, or empties
        // with all that was printed before. What it should only read it may lock, and write to with the host's ids.
        FileType::RegularFile | FileType::BlockDevice => Passage::Carry,
        FileType::Fifo if !lies_on(PIPEFS_MAGIC)? => Passage::Carry,
        FileType::CharacterDevice if !is_harmless(stat.st_rdev) => Passage::Carry,
        // It belongs to the host's network, and can be disconnected there and connected to somebody else; a local one
        // brings descriptors in and out.
        FileType::Socket => Passage::Carry,
        FileType::CharacterDevice | FileType::Fifo => Passage::Pass,
        // Anonymous inodes: a pidfd, a BPF object, a mount. Each is a handle on the host.
        _ => Passage::Refuse("a handle of the kernel's"),
    })
}

/// Whether a character device is one that every guest has: null, zero, full, random and urandom of drivers/char/mem.c.
fn is_harmless(device: u64) -> bool {
    major(device) == 1 && matches!(minor(device), 3 | 5 | 7 | 8 | 9)
}

//! Which of the caller's descriptors a guest may have.

use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};
use rustix::io::Errno;
use rustix::termios::tcgetattr;

/// The file system of namespace handles, which look like plain files.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// The file system of pipes without a name (linux/magic.h).
const PIPEFS_MAGIC: u64 = 0x5049_5045;

/// What is done with one of the caller's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// The guest gets it.
    Pass,
    /// It is a terminal, or a file of the host's to write to: the guest gets a pipe, and the command carries the bytes.
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
    let is_written = flags & OFlags::ACCMODE == OFlags::WRONLY;
    let lies_on = |magic: u64| Ok::<_, Errno>(u64::try_from(fstatfs(descriptor)?.f_type) == Ok(magic));
    Ok(match FileType::from_raw_mode(fstat(descriptor)?.st_mode) {
        // fchdir(2) through it would lead out of the guest's root.
        FileType::Directory => Passage::Refuse("a directory"),
        // Sockets and pipes have no file system to ask; only plain files can be a namespace in disguise.
        FileType::RegularFile if lies_on(NSFS_MAGIC)? => Passage::Refuse("a namespace"),
        // A guest opens its output by name (/dev/stdout). Of a file it either may not, or empties it with all that was
        // printed before.
        FileType::RegularFile if is_written => Passage::Carry,
        FileType::Fifo if is_written && !lies_on(PIPEFS_MAGIC)? => Passage::Carry,
        FileType::CharacterDevice if tcgetattr(descriptor).is_ok() => Passage::Carry,
        FileType::RegularFile
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Fifo
        | FileType::Socket => Passage::Pass,
        // Anonymous inodes: a pidfd, a BPF object, a mount. Each is a handle on the host.
        _ => Passage::Refuse("a handle of the kernel's"),
    })
}

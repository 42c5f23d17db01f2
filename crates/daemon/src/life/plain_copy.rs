//! A few small files, copied at once: while a guest stands still, starting a program for it would take longer than the copying.

use super::files_ahead::{Seen, extended};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// More files than this, or a larger one, is worth a program.
const MOST: usize = 64;
const LARGEST: u64 = 4 << 20;

/// From so many bytes on blocks are shared, where the file system can: the kernel then waits first until what was written is on the disk.
const SHARED_FROM: u64 = 256 << 10;

/// Bytes of a block, as file systems count them.
const BLOCK: u64 = 512;

/// Whether these files are so few and small; what has holes or is no regular file is not.
pub(super) fn suits<'a>(top: &Path, files: impl ExactSizeIterator<Item = (&'a Path, &'a Seen)>) -> bool {
    let plain = |path: &Path, seen: &Seen| {
        seen.mode & libc::S_IFMT == libc::S_IFREG
            && seen.length <= LARGEST
            && top.join(path).symlink_metadata().is_ok_and(|about| about.blocks() * BLOCK >= about.len())
    };
    files.len() <= MOST && files.into_iter().all(|(path, seen)| plain(path, seen))
}

/// Copies one, in the place of what is there.
pub(super) fn copy(from: &Path, to: &Path, seen: &Seen) -> io::Result<()> {
    match std::fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut source = File::from(rustix::fs::openat(CWD, from, flags, Mode::empty())?);
    let about = source.metadata()?;
    let mut target = File::create_new(to)?;
    if seen.length < SHARED_FROM {
        let mut content = Vec::with_capacity(seen.length as usize + 1);
        source.read_to_end(&mut content)?;
        target.write_all(&content)?;
    } else if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
        io::copy(&mut source, &mut target)?;
    }
    let (user, group) = seen.owner;
    rustix::fs::fchown(&target, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    rustix::fs::fchmod(&target, Mode::from_raw_mode(seen.mode & 0o7777))?;
    // Behind the owner: a change of that takes file capabilities away.
    for (name, value) in extended(from)? {
        rustix::fs::fsetxattr(&target, name, &value, XattrFlags::empty())?;
    }
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(about.atime(), about.atime_nsec()),
        last_modification: time(seen.written.0, seen.written.1),
    };
    Ok(rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

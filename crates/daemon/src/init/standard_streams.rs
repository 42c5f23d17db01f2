//! Standard input, output and error that a caller gave to a process in a guest.
//!
//! Programs open them by name as well (`/dev/stdin`, `/dev/stdout`, `/dev/stderr`, `/proc/self/fd/1`), and the kernel
//! then asks who may open the object, not who has it. A pipe belongs to whoever made it, outside of the guest's ids,
//! and is nobody else's: nginx, and everything else that logs to `/dev/stderr`, would not start. Files and terminals of
//! the caller's never come here: the command carries those through pipes of its own.

use rustix::fs::{FileType, Mode, OFlags, fchmod, fcntl_getfl, fstat, fstatfs};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// The file system of pipes without a name (linux/magic.h).
const PIPEFS_MAGIC: i64 = 0x5049_5045;

/// What may be done with a pipe by name: the same as with the descriptor, by everybody. Only those who have a
/// descriptor of such a pipe find its name. The bits for execution mean nothing to a pipe; with them none looks like
/// the one that a guest's log comes out of (`logs::pipe`).
const READ: u32 = 0o444;
const WRITE: u32 = 0o233;

/// Lets whoever has pipes among his standard descriptors open them by name too. What cannot be changed stays as it is:
/// the descriptors themselves work.
pub(crate) fn open_by_name(descriptors: &[OwnedFd]) {
    for descriptor in descriptors {
        if let Err(error) = open_one(descriptor) {
            tracing::debug!(%error, "a standard descriptor cannot be opened by name in the guest");
        }
    }
}

fn open_one(descriptor: impl AsFd) -> Result<(), Errno> {
    let mode = fstat(&descriptor)?.st_mode;
    // One with a name is a file of the host's, whose mode is not ours to change.
    let nameless = || Ok(fstatfs(&descriptor)?.f_type == PIPEFS_MAGIC);
    if FileType::from_raw_mode(mode) != FileType::Fifo || !nameless()? {
        return Ok(());
    }
    let wanted = mode & 0o7777
        | match fcntl_getfl(&descriptor)? & OFlags::ACCMODE {
            OFlags::RDONLY => READ,
            OFlags::WRONLY => WRITE,
            _ => READ | WRITE,
        };
    if wanted == mode & 0o7777 { Ok(()) } else { fchmod(&descriptor, Mode::from_raw_mode(wanted)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(descriptor: impl AsFd) -> u32 {
        fstat(descriptor).unwrap().st_mode & 0o7777
    }

    #[test]
    fn a_pipe_opens_the_way_that_it_was_given() {
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        open_by_name(&[reads.try_clone().unwrap()]);
        assert_eq!(mode(&reads) & 0o066, 0o044);
        open_by_name(&[writes.try_clone().unwrap()]);
        assert_eq!(mode(&writes) & 0o066, 0o066, "both ends were given");
        let (_reads, writes) = rustix::pipe::pipe().unwrap();
        open_by_name(&[writes.try_clone().unwrap()]);
        assert_eq!(mode(&writes) & 0o066, 0o022, "nobody reads by the end that is written to");
    }

    #[test]
    fn what_has_a_name_on_the_host_stays_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let fifo = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let file = tempfile::tempfile().unwrap();
        let before = mode(&file);
        open_by_name(&[fifo.try_clone().unwrap(), file.try_clone().unwrap().into()]);
        assert_eq!((mode(&fifo), mode(&file)), (0o600, before));
    }
}

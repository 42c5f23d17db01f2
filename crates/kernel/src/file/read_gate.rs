//! Reads of chosen files, held up until they are let through (fanotify(7), FAN_ACCESS_PERM).
//!
//! What holds up is the kernel's queue, not a process of ours: when the last descriptor of the queue is closed, as the
//! kernel does when a process dies, all that wait go on, and nothing is held up any more (fanotify_release() in
//! fs/notify/fanotify/fanotify_user.c). A reader that waits can be killed.

use crate::{CallError, Context};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// How much is read at a time: a few hundred events.
const BUFFER: usize = 8 << 10;

/// A set of files whose reads are held up.
#[derive(Debug)]
pub struct ReadGate(OwnedFd);

/// A read that waits. Dropping it lets it go on.
#[derive(Debug)]
pub struct Reader<'a> {
    gate: &'a ReadGate,
    file: OwnedFd,
}

impl Reader<'_> {
    /// Which file is read, by the numbers of its device and its inode.
    ///
    /// # Errors
    ///
    /// EBADF alone, once its reader has been let through.
    pub fn file(&self) -> io::Result<(u64, u64)> {
        numbers(&self.file)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let answer = libc::fanotify_response { fd: self.file.as_raw_fd(), response: libc::FAN_ALLOW };
        // SAFETY: the structure is of plain numbers, and as large as said.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const answer).cast::<u8>(), size_of_val(&answer)) };
        // It fails only for a reader that was killed meanwhile.
        let _ = rustix::io::write(&self.gate.0, bytes);
    }
}

/// The numbers of a file's device and of its inode.
///
/// # Errors
///
/// EBADF alone.
pub fn numbers(file: impl AsFd) -> io::Result<(u64, u64)> {
    let found = rustix::fs::fstat(file)?;
    Ok((found.st_dev, found.st_ino))
}

impl ReadGate {
    /// A set without files (fanotify_init(2) with FAN_CLASS_CONTENT, since Linux 2.6.37). Needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    ///
    /// ENOSYS and EINVAL where the kernel was built without it.
    pub fn new() -> Result<Self, CallError> {
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_UNLIMITED_MARKS;
        let of_events = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC;
        // SAFETY: numbers only.
        let fd = unsafe { libc::fanotify_init(flags, of_events as libc::c_uint) };
        if fd < 0 {
            return Err(io::Error::last_os_error()).context(|| "listening to who reads files (fanotify)".into());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Holds up reads of a file from now on, through whatever mount.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP where the file's file system takes no marks; ENOSPC where there are too many.
    pub fn close(&self, file: &File) -> io::Result<()> {
        self.mark(file, libc::FAN_MARK_ADD)
    }

    /// Lets reads of the file through again.
    ///
    /// # Errors
    ///
    /// ENOENT where it was not held up.
    pub fn open(&self, file: &File) -> io::Result<()> {
        self.mark(file, libc::FAN_MARK_REMOVE)
    }

    fn mark(&self, file: &File, action: libc::c_uint) -> io::Result<()> {
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(io::Error::other)?;
        // SAFETY: the path is a C string, which the kernel only reads.
        let result = unsafe {
            libc::fanotify_mark(self.0.as_raw_fd(), action, libc::FAN_ACCESS_PERM, libc::AT_FDCWD, path.as_ptr())
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits until a process reads, for so long at most.
    ///
    /// # Errors
    ///
    /// EINTR where a signal came.
    pub fn wait(&self, longest: std::time::Duration) -> io::Result<()> {
        let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        match rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&longest)) {
            Err(rustix::io::Errno::INTR) => Ok(()),
            polled => Ok(polled.map(drop)?),
        }
    }

    /// Takes the readers that wait now.
    ///
    /// # Errors
    ///
    /// EMFILE where this process can open nothing more: each reader comes with a descriptor.
    pub fn readers(&self) -> io::Result<Vec<Reader<'_>>> {
        let mut buffer = [0; BUFFER];
        let length = match rustix::io::read(&self.0, &mut buffer) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            read => read?,
        };
        let (mut readers, mut rest) = (Vec::new(), &buffer[..length]);
        while let Some(head) = rest.first_chunk::<{ size_of::<libc::fanotify_event_metadata>() }>() {
            // SAFETY: the kernel wrote the structure, of plain numbers, which may stand at any address.
            let event = unsafe { head.as_ptr().cast::<libc::fanotify_event_metadata>().read_unaligned() };
            if event.fd >= 0 {
                // SAFETY: the kernel has made this descriptor for the reader of the event.
                readers.push(Reader { gate: self, file: unsafe { OwnedFd::from_raw_fd(event.fd) } });
            }
            rest = rest.get((event.event_len as usize).max(head.len())..).unwrap_or_default();
        }
        Ok(readers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    /// A gate over a file with some words; nothing where this process may have none.
    fn gated(words: &str) -> Option<(tempfile::NamedTempFile, ReadGate)> {
        let gate = ReadGate::new().ok()?;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(words.as_bytes()).unwrap();
        gate.close(file.as_file()).unwrap();
        Some((file, gate))
    }

    #[test]
    fn a_reader_sees_what_was_written_while_it_waited() {
        let Some((file, gate)) = gated("old") else { return };
        let path = file.path().to_owned();
        let reader = std::thread::spawn(move || std::fs::read_to_string(path).unwrap());
        while !reader.is_finished() {
            gate.wait(Duration::from_millis(20)).unwrap();
            for reader in gate.readers().unwrap() {
                assert_eq!(reader.file().unwrap(), numbers(file.as_file()).unwrap());
                file.as_file().write_all_at(b"new", 0).unwrap();
            }
        }
        assert_eq!(reader.join().unwrap(), "new");
        gate.open(file.as_file()).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "new", "nothing is held up any more");
    }

    #[test]
    fn nobody_waits_for_a_gate_that_is_gone() {
        let Some((file, gate)) = gated("old") else { return };
        let path = file.path().to_owned();
        let reader = std::thread::spawn(move || std::fs::read_to_string(path).unwrap());
        gate.wait(Duration::from_secs(5)).unwrap();
        assert!(!reader.is_finished());
        drop(gate);
        assert_eq!(reader.join().unwrap(), "old");
    }
}

//! Openings, reads, listings and executions of chosen objects, held up until they are let go (fanotify(7), permission
//! events).
//!
//! What holds up is the kernel's queue, not a process of ours: when the last descriptor of the queue is closed, as the
//! kernel does when a process dies, all that wait go on, and nothing is held up any more (fanotify_release() in
//! fs/notify/fanotify/fanotify_user.c). Whoever waits can be killed.
//!
//! From Linux 6.14 on a file or directory whose object was not marked when it was opened is read and listed without a
//! question (FMODE_NONOTIFY_PERM). Looking at names (stat, access, readlink) and changing them is never held up.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// What is held up.
const ACCESSES: u64 = libc::FAN_OPEN_PERM | libc::FAN_OPEN_EXEC_PERM | libc::FAN_ACCESS_PERM | libc::FAN_ONDIR;

/// So many accesses are taken at a time.
const AT_ONCE: usize = 64;

/// A set of objects, and the queue of those that wait for them.
#[derive(Debug)]
pub struct AccessGate(OwnedFd);

/// An access that waits. Dropping it lets it go on.
#[derive(Debug)]
pub struct Access<'a> {
    gate: &'a AccessGate,
    object: OwnedFd,
    /// The pid of the process that waits, as this process sees it; 0 where it is in no namespace of this one's.
    pub pid: i32,
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        let answer = libc::fanotify_response { fd: self.object.as_raw_fd(), response: libc::FAN_ALLOW };
        // SAFETY: the structure is of plain numbers, and as large as said.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const answer).cast::<u8>(), size_of_val(&answer)) };
        // It fails only for one that was killed meanwhile.
        let _ = rustix::io::write(&self.gate.0, bytes);
    }
}

impl Access<'_> {
    /// The file or directory that is accessed.
    pub fn object(&self) -> BorrowedFd<'_> {
        self.object.as_fd()
    }
}

impl AsFd for AccessGate {
    /// Readable when somebody waits who was not [taken](Self::waiting).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AccessGate {
    /// A set without objects (fanotify_init(2) with FAN_CLASS_CONTENT, since Linux 2.6.37). Needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    ///
    /// ENOSYS and EINVAL where the kernel was built without it; EPERM without CAP_SYS_ADMIN; EMFILE where there are too
    /// many groups (fanotify(7), max_user_groups).
    pub fn new() -> io::Result<Self> {
        let flags = libc::FAN_CLASS_CONTENT
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_UNLIMITED_QUEUE
            | libc::FAN_UNLIMITED_MARKS;
        // The kernel opens what is accessed once more, for whoever answers: never to wait for a fifo's other end.
        let of_events = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: numbers only.
        let fd = unsafe { libc::fanotify_init(flags, of_events as libc::c_uint) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Holds up accesses to a regular file or a directory, by a descriptor of it (O_PATH will do), through whatever
    /// mount and by whatever name; in a directory with `children` those to what lies directly in it too
    /// (FAN_EVENT_ON_CHILD). Anything else is not held up: the kernel would open it for whoever answers.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP and EINVAL where its file system takes no marks.
    pub fn hold(&self, object: impl AsFd, children: bool) -> io::Result<()> {
        use rustix::fs::FileType;
        let object = object.as_fd();
        match FileType::from_raw_mode(rustix::fs::fstat(object)?.st_mode) {
            FileType::RegularFile => self.mark(0, ACCESSES & !libc::FAN_ONDIR, object),
            FileType::Directory => self.mark(0, ACCESSES | if children { libc::FAN_EVENT_ON_CHILD } else { 0 }, object),
            _ => Ok(()),
        }
    }

    /// Holds up every access to the file system of an object (FAN_MARK_FILESYSTEM, since Linux 4.20).
    ///
    /// # Errors
    ///
    /// EINVAL where the kernel cannot mark a whole file system.
    pub fn hold_file_system(&self, object: impl AsFd) -> io::Result<()> {
        self.mark(libc::FAN_MARK_FILESYSTEM, ACCESSES, object.as_fd())
    }

    /// Has nobody else wait. Those who do are still to be let go.
    ///
    /// # Errors
    ///
    /// None is known.
    pub fn hold_no_more(&self) -> io::Result<()> {
        for flags in [0, libc::FAN_MARK_FILESYSTEM] {
            // SAFETY: the path is a C string. It is not looked at.
            let flushed = unsafe {
                libc::fanotify_mark(self.0.as_raw_fd(), libc::FAN_MARK_FLUSH | flags, 0, libc::AT_FDCWD, c"/".as_ptr())
            };
            if flushed != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    fn mark(&self, flags: libc::c_uint, mask: u64, object: BorrowedFd<'_>) -> io::Result<()> {
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", object.as_raw_fd())).map_err(io::Error::other)?;
        let flags = libc::FAN_MARK_ADD | flags;
        // SAFETY: the path is a C string, which the kernel only reads.
        let result = unsafe { libc::fanotify_mark(self.0.as_raw_fd(), flags, mask, libc::AT_FDCWD, path.as_ptr()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits until somebody waits or `word` is readable, for so long at most; no bound is none.
    ///
    /// # Errors
    ///
    /// What poll(2) says but for EINTR.
    pub fn wait(&self, word: impl AsFd, longest: Option<Duration>) -> io::Result<()> {
        let longest = longest.map(|longest| Timespec {
            tv_sec: longest.as_secs().cast_signed(),
            tv_nsec: i64::from(longest.subsec_nanos()),
        });
        let mut both = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&word, PollFlags::IN)];
        match poll(&mut both, longest.as_ref()) {
            Err(rustix::io::Errno::INTR) => Ok(()),
            polled => Ok(polled.map(drop)?),
        }
    }

    /// Takes some of those that wait and were not taken, `most` of them; none if there are none. Opens nothing by a
    /// path, so that this never waits for itself.
    ///
    /// # Errors
    ///
    /// EMFILE where this process can open nothing more: each comes with a descriptor, and the kernel has refused the
    /// access of the one for which there was none. So `most` is to leave room.
    pub fn waiting(&self, most: usize) -> io::Result<Vec<Access<'_>>> {
        const ONE: usize = size_of::<libc::fanotify_event_metadata>();
        let mut buffer = [0; AT_ONCE * ONE];
        let room = most.min(AT_ONCE) * ONE;
        if room == 0 {
            return Ok(Vec::new());
        }
        let length = match rustix::io::read(&self.0, &mut buffer[..room]) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            read => read?,
        };
        let (mut all, mut rest) = (Vec::new(), &buffer[..length]);
        while let Some(head) = rest.first_chunk::<ONE>() {
            // SAFETY: the kernel wrote the structure, of plain numbers, which may stand at any address.
            let event = unsafe { head.as_ptr().cast::<libc::fanotify_event_metadata>().read_unaligned() };
            if event.fd >= 0 {
                // SAFETY: the kernel has made this descriptor for the reader of the event.
                let object = unsafe { OwnedFd::from_raw_fd(event.fd) };
                all.push(Access { gate: self, object, pid: event.pid });
            }
            rest = rest.get((event.event_len as usize).max(ONE)..).unwrap_or_default();
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::process::{Child, Command, Stdio};

    /// A directory with a file in it, and a gate without objects; nothing where this process may have none.
    fn scene() -> Option<(tempfile::TempDir, AccessGate)> {
        let gate = AccessGate::new().ok()?;
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "words").unwrap();
        Some((directory, gate))
    }

    fn runs(script: &str, at: &std::path::Path) -> Child {
        Command::new("sh").args(["-c", script]).current_dir(at).stdout(Stdio::null()).spawn().unwrap()
    }

    /// Whoever waits next.
    fn next(gate: &AccessGate) -> Access<'_> {
        loop {
            let (never, _held) = rustix::pipe::pipe().unwrap();
            gate.wait(&never, Some(Duration::from_secs(20))).unwrap();
            if let Some(access) = gate.waiting(1).unwrap().pop() {
                return access;
            }
        }
    }

    #[test]
    fn an_access_waits_until_it_is_let_go() {
        let Some((directory, gate)) = scene() else { return };
        gate.hold(File::open(directory.path().join("file")).unwrap(), false).unwrap();
        let mut other = runs("exec cat file", directory.path());
        let access = next(&gate);
        assert_eq!(access.pid, other.id().cast_signed());
        assert!(other.try_wait().unwrap().is_none(), "it waits");
        gate.hold_no_more().unwrap();
        drop(access);
        assert!(other.wait().unwrap().success());
        assert!(runs("exec cat file", directory.path()).wait().unwrap().success(), "nobody waits any more");
    }

    #[test]
    fn who_waits_goes_on_when_the_gate_goes_and_can_be_killed_before() {
        let Some((directory, gate)) = scene() else { return };
        gate.hold(File::open(directory.path()).unwrap(), true).unwrap();
        let mut killed = runs("exec cat file", directory.path());
        let access = next(&gate);
        killed.kill().unwrap();
        assert!(!killed.wait().unwrap().success());
        drop(access);
        let mut other = runs("exec ls .", directory.path());
        drop(next(&gate));
        // It lists the directory now.
        std::mem::forget(next(&gate));
        drop(gate);
        assert!(other.wait().unwrap().success());
    }
}

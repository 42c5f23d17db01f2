//! Who opens what on a file system (fanotify(7)), as far as it is needed: opened files and directories, told by descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// How much is read at a time: many events.
const BUFFER: usize = 64 << 10;

/// A group of marks, and the queue of their events.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// Something was opened.
#[derive(Debug)]
pub struct Opened {
    /// It, opened once more, for reading.
    pub object: OwnedFd,
    /// Whether it is a directory.
    pub directory: bool,
}

impl From<OwnedFd> for Listener {
    /// The group behind a descriptor of another process.
    fn from(group: OwnedFd) -> Self {
        Self(group)
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> Self {
        listener.0
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    /// A group without a bound on its queue, which nobody waits for (fanotify_init(2), since Linux 2.6.37). Needs CAP_SYS_ADMIN.
    pub fn new() -> io::Result<Self> {
        let flags = libc::FAN_CLASS_NOTIF
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_UNLIMITED_QUEUE
            | libc::FAN_UNLIMITED_MARKS;
        let of_events = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NOATIME;
        // SAFETY: numbers only.
        let fd = unsafe { libc::fanotify_init(flags, of_events as libc::c_uint) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Tells of every directory that is opened on the file system of `directory` from now on (FAN_MARK_FILESYSTEM, since Linux 4.20); before Linux 6.0,
    /// of files too.
    pub fn listen_to_file_system(&self, directory: impl AsFd) -> io::Result<()> {
        let directory = directory.as_fd();
        // That of files nothing is to be told must be known first. Without it, each opening of a file makes an event with a descriptor: half of what
        // opening one costs.
        let ignored = libc::FAN_MARK_IGNORE | libc::FAN_MARK_IGNORED_SURV_MODIFY;
        match self.mark(ignored, libc::FAN_OPEN, directory) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            marked => marked?,
        }
        self.mark(0, libc::FAN_OPEN | libc::FAN_ONDIR, directory)
    }

    fn mark(&self, flags: libc::c_uint, mask: u64, directory: BorrowedFd<'_>) -> io::Result<()> {
        let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM | flags;
        let (group, directory) = (self.0.as_raw_fd(), directory.as_raw_fd());
        // SAFETY: the path is a C string.
        let result = unsafe { libc::fanotify_mark(group, flags, mask, directory, c".".as_ptr()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Some of what has been opened; nothing if the queue is empty.
    ///
    /// # Errors
    ///
    /// EMFILE where this process has no room for a descriptor; EOVERFLOW if the kernel dropped events for the lack of memory.
    pub fn read(&self) -> io::Result<Vec<Opened>> {
        let mut buffer = vec![0; BUFFER];
        let length = match rustix::io::read(&self.0, &mut buffer) {
            Err(rustix::io::Errno::AGAIN) => 0,
            read => read?,
        };
        let (mut events, mut rest) = (Vec::new(), &buffer[..length]);
        while let Some(head) = rest.first_chunk::<{ size_of::<libc::fanotify_event_metadata>() }>() {
            // SAFETY: the kernel wrote the structure, of plain numbers, which may stand at any address.
            let event = unsafe { head.as_ptr().cast::<libc::fanotify_event_metadata>().read_unaligned() };
            if event.mask & libc::FAN_Q_OVERFLOW != 0 {
                return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
            }
            if event.fd >= 0 {
                // SAFETY: the kernel has made this descriptor for the reader of the event.
                let object = unsafe { OwnedFd::from_raw_fd(event.fd) };
                // Events that carry descriptors say of no object that it is a directory.
                let mode = rustix::fs::fstat(&object)?.st_mode;
                let directory = rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Directory;
                events.push(Opened { object, directory });
            }
            rest = rest.get((event.event_len as usize).max(head.len())..).unwrap_or_default();
        }
        Ok(events)
    }
}

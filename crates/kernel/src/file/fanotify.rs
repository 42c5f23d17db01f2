//! Openings of files (fanotify(7)), as far as they are needed: files and directories of a file system, reported by
//! descriptors, and chosen objects of any kind, reported by what the kernel tells them apart by.

use crate::file::handle::{FileHandle, MAX_BYTES};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// How much is read at a time: many events.
const BUFFER: usize = 8 << 10;

/// A group of marks, and the queue of their events.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// An object that was opened, as fanotify(7) reported it.
#[derive(Debug)]
pub struct Opened {
    /// The object, opened once more, for reading.
    pub object: OwnedFd,
    /// Whether it is a directory.
    pub directory: bool,
}

impl From<OwnedFd> for Listener {
    /// The group of a descriptor that another process has handed over.
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
    /// A group without a bound on its queue, which nobody waits for (fanotify_init(2), since Linux 2.6.37). Needs
    /// CAP_SYS_ADMIN.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN; EMFILE where the user has as many groups as `fs.fanotify.max_user_groups` allows.
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

    /// Tells of every directory that is opened on the file system of `directory` from now on (FAN_MARK_FILESYSTEM,
    /// since Linux 4.20); before Linux 6.0, of files too.
    ///
    /// # Errors
    ///
    /// EINVAL where the kernel cannot mark a whole file system; ENOSPC where there are too many marks already.
    pub fn listen_to_file_system(&self, directory: impl AsFd) -> io::Result<()> {
        let directory = directory.as_fd();
        // That of files nothing is to be told must be known first. Without it, each opening of a file makes an event
        // with a descriptor: half of what opening one costs.
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
    /// EMFILE where this process has no room for a descriptor; EOVERFLOW if the kernel dropped events for the lack of
    /// memory.
    pub fn read(&self) -> io::Result<Vec<Opened>> {
        /// So many at a time are more than enough.
        const MOST: u64 = 256;
        // Each takes a descriptor, of which this process has others.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = (limit / 4).clamp(1, MOST) as usize;
        let mut events = Vec::new();
        while events.len() < most
            && let Some(event) = next_with_descriptor(self.as_fd())?
        {
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
        }
        Ok(events)
    }
}

/// The next event of a group that reports by descriptors; nothing if the queue is empty.
///
/// Never more than one is read at a time. Where there is no descriptor for an event behind others, the kernel drops it
/// and says nothing (only since Linux 6.13 can it be asked to, by FAN_REPORT_FD_ERROR).
///
/// # Errors
///
/// EMFILE where this process has no room for a descriptor, and whatever the file says that cannot be opened. The event
/// is gone then.
fn next_with_descriptor(group: BorrowedFd<'_>) -> io::Result<Option<libc::fanotify_event_metadata>> {
    let mut buffer = [0; size_of::<libc::fanotify_event_metadata>()];
    match rustix::io::read(group, &mut buffer) {
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno.into()),
        Ok(length) if length < buffer.len() => Ok(None),
        // SAFETY: the kernel wrote the structure, of plain numbers, which may stand at any address.
        Ok(_) => Ok(Some(unsafe { buffer.as_ptr().cast::<libc::fanotify_event_metadata>().read_unaligned() })),
    }
}

/// A group of marks on mounts, and the queue of what is written by way of those.
#[derive(Debug)]
pub struct Writes(OwnedFd);

/// A file that was written to, as fanotify(7) reported it.
#[derive(Debug)]
pub struct Written {
    /// The pid of the process that wrote to it.
    pub pid: i32,
    /// The file, opened once more, for reading. Nothing where it cannot be read.
    pub object: Option<OwnedFd>,
}

impl From<Writes> for OwnedFd {
    fn from(writes: Writes) -> Self {
        writes.0
    }
}

impl Writes {
    /// A group that nobody waits for (fanotify_init(2)). What is more than its queue holds, 16,384 by default, is not
    /// told. Needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN; ENOSYS where the kernel lacks it; EMFILE where there are too many groups
    /// (fanotify(7), max_user_groups).
    pub fn new() -> io::Result<Self> {
        let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        let of_events = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: numbers only.
        let fd = unsafe { libc::fanotify_init(flags, of_events as libc::c_uint) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Tells from now on of every write by way of the mount that a directory is on, by a descriptor of it (O_PATH will
    /// do).
    ///
    /// # Errors
    ///
    /// What fanotify_mark(2) says.
    pub fn watch(&self, directory: impl AsFd) -> io::Result<()> {
        let (flags, directory) = (libc::FAN_MARK_ADD | libc::FAN_MARK_MOUNT, directory.as_fd().as_raw_fd());
        // SAFETY: the path is a C string.
        let result =
            unsafe { libc::fanotify_mark(self.0.as_raw_fd(), flags, libc::FAN_MODIFY, directory, c".".as_ptr()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// All that was written to since.
    ///
    /// # Errors
    ///
    /// EMFILE where this process has no room for a descriptor.
    pub fn read(&self) -> io::Result<Vec<Written>> {
        /// Files that can only be written to each make an error of their own.
        const MOST: usize = 1 << 16;
        let mut all = Vec::new();
        for _ in 0..MOST {
            match next_with_descriptor(self.0.as_fd()) {
                Ok(None) => break,
                Ok(Some(event)) => {
                    // SAFETY: the kernel has made this descriptor for the reader of the event.
                    let object = (event.fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(event.fd) });
                    all.push(Written { pid: event.pid, object });
                }
                // The kernel has dropped the event whose file it could not open.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES | libc::EPERM | libc::EIO)) =>
                {
                    all.push(Written { pid: 0, object: None });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

/// A group of marks on chosen objects, of whatever kind: a descriptor could not be had of a fifo without being at one
/// of its ends.
#[derive(Debug)]
pub struct Openings(OwnedFd);

/// One of them was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The pid of the process that opened it.
    pub pid: i32,
    /// Which, as [`FileHandle::identifier`] tells it.
    pub object: FileHandle,
}

impl AsFd for Openings {
    /// Readable when there is something to [`read`](Self::read).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Openings {
    /// A group that nobody waits for (fanotify_init(2) with FAN_REPORT_FID, since Linux 5.1). Needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN; ENOSYS where the kernel lacks it; EMFILE where there are too many groups
    /// (fanotify(7), max_user_groups).
    pub fn new() -> io::Result<Self> {
        let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
        // SAFETY: numbers only.
        let fd = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as libc::c_uint) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Reports from now on which processes open an object, by a descriptor of it (O_PATH will do).
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP, ENODEV or EXDEV where its file system does not tell its objects apart: an overlay before Linux 6.8.
    pub fn watch(&self, object: impl AsFd) -> io::Result<()> {
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", object.as_fd().as_raw_fd()))?;
        let (group, add) = (self.0.as_raw_fd(), libc::FAN_MARK_ADD);
        // SAFETY: the path is a C string.
        let result = unsafe { libc::fanotify_mark(group, add, libc::FAN_OPEN, libc::AT_FDCWD, path.as_ptr()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Some of what was opened; nothing if there is no more.
    ///
    /// # Errors
    ///
    /// EMFILE where this process can open nothing more: each opening comes with a descriptor.
    pub fn read(&self) -> io::Result<Vec<Opening>> {
        let mut buffer = vec![0; BUFFER];
        let length = match rustix::io::read(&self.0, &mut buffer) {
            Err(rustix::io::Errno::AGAIN) => 0,
            read => read?,
        };
        let (mut openings, mut rest) = (Vec::new(), &buffer[..length]);
        while let Some(event) = next_event(&mut rest) {
            openings.extend(opening(event));
        }
        Ok(openings)
    }
}

/// The bytes of the event that comes next.
pub(crate) fn next_event<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let event = rest.get(..length).filter(|event| !event.is_empty())?;
    *rest = &rest[length..];
    Some(event)
}

/// `struct fanotify_event_metadata`, followed by `struct fanotify_event_info_fid`.
pub(crate) fn opening(event: &[u8]) -> Option<Opening> {
    const PID: usize = 20;
    const HEAD: usize = 6;
    /// Of the file system: two numbers.
    const FSID: usize = 8;
    let half = |at: usize| Some(usize::from(u16::from_ne_bytes(event.get(at..at + 2)?.try_into().ok()?)));
    let word = |at: usize| Some(i32::from_ne_bytes(event.get(at..at + 4)?.try_into().ok()?));
    let info = half(HEAD)?;
    (*event.get(info)? == libc::FAN_EVENT_INFO_TYPE_FID).then_some(())?;
    let handle = info + 4 + FSID;
    let length = usize::try_from(word(handle)?).ok().filter(|length| *length <= MAX_BYTES)?;
    let bytes = event.get(handle + 8..handle + 8 + length)?.to_vec();
    Some(Opening { pid: word(PID)?, object: FileHandle { kind: word(handle + 4)?, bytes } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_within_its_bounds() {
        let mut event = vec![48, 0, 0, 0, 3, 0, 24, 0];
        event.extend(0x20_u64.to_ne_bytes());
        event.extend((-1_i32).to_ne_bytes());
        event.extend(7_i32.to_ne_bytes());
        event.extend([1, 0, 24, 0]);
        event.extend([0; 8]);
        event.extend(4_i32.to_ne_bytes());
        event.extend(1_i32.to_ne_bytes());
        event.extend(*b"abcd");
        let expected = Opening { pid: 7, object: FileHandle { kind: 1, bytes: b"abcd".to_vec() } };
        assert_eq!(opening(&event), Some(expected));
        for length in 0..event.len() {
            assert_eq!(opening(&event[..length]), None, "{length}");
        }
        let twice = [event.clone(), event.clone(), vec![0; 9]].concat();
        let mut rest = &twice[..];
        assert_eq!(
            [next_event(&mut rest), next_event(&mut rest), next_event(&mut rest)].map(|one| one.is_some()),
            [true, true, false]
        );
    }

    /// In a process of its own, which has few descriptors.
    #[test]
    fn each_opening_is_told_however_few_descriptors_there_are() {
        const FEW: &str = "PANDO_TEST_FEW_DESCRIPTORS";
        const NAME: &str = "file::fanotify::tests::each_opening_is_told_however_few_descriptors_there_are";
        if std::env::var_os(FEW).is_none() {
            let mut again = std::process::Command::new("prlimit");
            again.arg("--nofile=64").arg(std::env::current_exe().unwrap()).args(["--exact", NAME]).env(FEW, "1");
            match again.output() {
                Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
                Err(error) => eprintln!("skipped: prlimit (util-linux): {error}"),
            }
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let Ok(listener) = Listener::new() else {
            eprintln!("skipped: it needs root");
            return;
        };
        listener.listen_to_file_system(std::fs::File::open(directory.path()).unwrap()).unwrap();
        let mut opened = std::collections::BTreeSet::new();
        for number in 0..300 {
            let path = directory.path().join(number.to_string());
            std::fs::create_dir(&path).unwrap();
            opened.insert(rustix::fs::fstat(std::fs::File::open(path).unwrap()).unwrap().st_ino);
        }
        loop {
            let some = listener.read().unwrap();
            if some.is_empty() {
                break;
            }
            for one in some {
                opened.remove(&rustix::fs::fstat(&one.object).unwrap().st_ino);
            }
        }
        assert_eq!(opened.len(), 0, "openings that nobody was told of");
        // Where there is no room at all, that is said.
        let _last = std::fs::File::open(directory.path()).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        assert!(listener.read().is_err(), "with {} descriptors taken", taken.len());
    }

    #[test]
    fn who_opens_a_fifo_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let fifo = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let Ok(openings) = Openings::new() else {
            eprintln!("skipped: it needs root");
            return;
        };
        openings.watch(&fifo).unwrap();
        assert_eq!(openings.read().unwrap(), []);
        let _other = std::fs::File::options().write(true).open(&path).unwrap();
        let (object, _) = FileHandle::identifier(&fifo, "").unwrap();
        assert_eq!(openings.read().unwrap(), [Opening { pid: std::process::id().cast_signed(), object }]);
    }
}

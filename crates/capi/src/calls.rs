//! System calls for which there is no safe wrapper: those about descriptors by number, which are the program's own, and
//! about what the whole process has.
#![allow(unsafe_code, reason = "what belongs to the program is known to this library by numbers alone")]

use rustix::io::Errno;
use rustix::thread::UnshareFlags;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

fn checked(answer: libc::c_int) -> Result<libc::c_int, Errno> {
    if answer < 0 { Err(last()) } else { Ok(answer) }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A descriptor of the program's, for a call on it: the kernel says if there is none of that number.
pub(crate) fn numbered(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: it is used for single calls only; nothing relies on its being open, nor on what it leads to.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Has a number of the program's lead to what another descriptor leads to (dup3(2)).
pub(crate) fn lead(number: RawFd, to: &OwnedFd, close_on_exec: bool) -> Result<(), Errno> {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: no memory is passed. That the number leads elsewhere from now on is what is asked for: it is a descriptor
    // of the program's, which relies on the file that it names and not on the kernel's object.
    checked(unsafe { libc::dup3(to.as_raw_fd(), number, flags) }).map(drop)
}

/// Closes a number of the program's.
pub(crate) fn close(number: RawFd) {
    // SAFETY: no memory is passed; it was opened inside a transaction that is aborted, and so is to be gone.
    unsafe { libc::close(number) };
}

/// Whether two descriptors of this process share an open file, offset and all (kcmp(2)).
pub(crate) fn share(one: RawFd, other: RawFd) -> Result<bool, Errno> {
    const KCMP_FILE: libc::c_int = 0;
    let me = std::process::id();
    // SAFETY: no memory is passed.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, me, me, KCMP_FILE, one, other) };
    if answer < 0 { Err(last()) } else { Ok(answer == 0) }
}

/// Whether the program was executed with more rights than whoever executed it has (AT_SECURE): what that says in the
/// environment is not to be believed.
pub(crate) fn is_above_its_caller() -> bool {
    // SAFETY: no memory is passed.
    (unsafe { libc::getauxval(libc::AT_SECURE) }) != 0
}

/// unshare(2) of the calling thread.
pub(crate) fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: only the root and the working directory are unshared; descriptors stay those of all threads.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// All signals of this thread, held back until this is dropped: a handler is not to run halfway between outside and a
/// view.
pub(crate) struct Quiet(libc::sigset_t);

impl Quiet {
    /// Holds them back.
    pub(crate) fn begin() -> Self {
        // SAFETY: both sets live on this stack; zeros are a set without signals.
        unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the kernel gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// A signal's handler, as sigaction(2) tells it.
#[derive(Clone, Copy)]
pub(crate) struct Handler(libc::sigaction);

impl std::fmt::Debug for Handler {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Handler({:#x})", self.0.sa_sigaction)
    }
}

impl Handler {
    /// That of a signal; none where there is no such signal.
    pub(crate) fn of(signal: i32) -> Option<Self> {
        // SAFETY: the structure lives on this stack, and is filled in by the call; zeros are a valid one.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            checked(libc::sigaction(signal, std::ptr::null(), &raw mut action)).ok().map(|_| Self(action))
        }
    }

    /// Makes it that of a signal again.
    pub(crate) fn restore(&self, signal: i32) -> Result<(), Errno> {
        // SAFETY: it was the program's own handler of this signal a while ago, with the mask and flags that it had.
        checked(unsafe { libc::sigaction(signal, &raw const self.0, std::ptr::null_mut()) }).map(drop)
    }

    /// Whether it is the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.sa_sigaction == other.0.sa_sigaction && self.0.sa_flags == other.0.sa_flags
    }
}

/// A limit of this process, soft and hard (getrlimit(2)).
pub(crate) fn limit(resource: u32) -> Option<(u64, u64)> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives on this stack.
    let answer = unsafe { libc::getrlimit64(resource, &raw mut limit) };
    (answer == 0).then_some((limit.rlim_cur, limit.rlim_max))
}

/// Sets a limit of this process.
pub(crate) fn set_limit(resource: u32, (soft, hard): (u64, u64)) -> Result<(), Errno> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the structure lives on this stack.
    checked(unsafe { libc::setrlimit64(resource, &raw const limit) }).map(drop)
}

/// The users of this process: real, effective and saved.
pub(crate) fn users() -> [u32; 3] {
    let mut ids = [0; 3];
    let [real, effective, saved] = &mut ids;
    // SAFETY: all three live on this stack; it cannot fail.
    unsafe { libc::getresuid(real, effective, saved) };
    ids
}

/// The groups of this process: real, effective and saved.
pub(crate) fn groups() -> [u32; 3] {
    let mut ids = [0; 3];
    let [real, effective, saved] = &mut ids;
    // SAFETY: all three live on this stack; it cannot fail.
    unsafe { libc::getresgid(real, effective, saved) };
    ids
}

/// Makes these the users of every thread.
pub(crate) fn set_users([real, effective, saved]: [u32; 3]) -> Result<(), Errno> {
    // SAFETY: no memory is passed.
    checked(unsafe { libc::setresuid(real, effective, saved) }).map(drop)
}

/// Makes these the groups of every thread.
pub(crate) fn set_groups([real, effective, saved]: [u32; 3]) -> Result<(), Errno> {
    // SAFETY: no memory is passed.
    checked(unsafe { libc::setresgid(real, effective, saved) }).map(drop)
}

/// The groups that this process is in beside.
pub(crate) fn more_groups() -> Vec<u32> {
    // SAFETY: the first call writes nothing; the second no more than there is room for.
    unsafe {
        let count = libc::getgroups(0, std::ptr::null_mut());
        let mut found = vec![0; usize::try_from(count).unwrap_or(0)];
        let got = libc::getgroups(count, found.as_mut_ptr());
        found.truncate(usize::try_from(got).unwrap_or(0));
        found
    }
}

/// Makes these the groups that every thread is in beside.
pub(crate) fn set_more_groups(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many as the slice has.
    checked(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) }).map(drop)
}

/// The mask of modes of new files, which is set for a moment to be known.
pub(crate) fn mask() -> u32 {
    // SAFETY: it cannot fail.
    unsafe {
        let mask = libc::umask(0o077);
        libc::umask(mask);
        mask
    }
}

/// Sets the mask of modes of new files.
pub(crate) fn set_mask(mask: u32) {
    // SAFETY: it cannot fail.
    unsafe { libc::umask(mask) };
}

/// Whether this process has children, those that have ended and were not waited for among them.
pub(crate) fn has_children() -> bool {
    // SAFETY: zeros are a valid structure, which lives on this stack.
    let answer = unsafe {
        let mut found: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, &raw mut found, options)
    };
    answer == 0
}

/// Whether orphans below this process become its children (`PR_GET_CHILD_SUBREAPER`).
pub(crate) fn reaps_orphans() -> bool {
    let mut reaps: libc::c_int = 0;
    // SAFETY: the kernel writes an int, which lives on this stack.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut reaps) == 0 && reaps != 0 }
}

/// Says whether they are to.
pub(crate) fn set_reaps_orphans(reaps: bool) {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, libc::c_ulong::from(reaps)) };
}

/// `struct procmap_query` (linux/fs.h).
#[repr(C)]
struct MapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    mapping: u64,
    page: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// The first mapping from an address on that is written to and shared with a file: its end, and the file's name
/// (`PROCMAP_QUERY` on a descriptor of /proc/PID/maps, since Linux 6.11). ENOENT where there is none.
pub(crate) fn next_shared_mapping(maps: &OwnedFd, address: u64) -> Result<(u64, Vec<u8>), Errno> {
    const WRITABLE_SHARED_OF_FILE_FROM_HERE_ON: u64 = 0x02 | 0x08 | 0x10 | 0x20;
    let mut name = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: zeros are a valid question; the answer's name goes into a buffer of the size that is said.
    unsafe {
        let mut query: MapQuery = std::mem::zeroed();
        query.size = size_of::<MapQuery>() as u64;
        query.flags = WRITABLE_SHARED_OF_FILE_FROM_HERE_ON;
        query.address = address;
        query.name_size = libc::PATH_MAX as u32;
        query.name = name.as_mut_ptr() as u64;
        let number = libc::_IOWR::<MapQuery>(u32::from(b'f'), 17);
        checked(libc::ioctl(maps.as_raw_fd(), number, &raw mut query))?;
        name.truncate((query.name_size as usize).saturating_sub(1));
        Ok((query.end, name))
    }
}

//! POSIX message queues (mq_overview(7)), through the file system that they are files of.

use crate::trace::survivor::Undivided;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// What mq_getattr(3) tells of a message queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// How many messages it takes.
    pub capacity: u64,
    /// How many bytes each of them may have.
    pub longest: u64,
    /// How many messages wait in the queue.
    pub waiting: u64,
}

/// The file system of this thread's ipc namespace, mounted nowhere, and its root: each queue is a file in it. Needs
/// CAP_SYS_ADMIN there. To close the first waits for a grace period.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN over the ipc namespace.
pub fn all() -> io::Result<[OwnedFd; 2]> {
    let context = rustix::mount::fsopen("mqueue", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let mount = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    // What fsmount(2) gives is a mere place, which cannot be read.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(&mount, ".", flags, Mode::empty())?;
    Ok([mount, root])
}

/// The attributes of an open queue (mq_getsetattr(2)).
///
/// # Errors
///
/// EBADF where the descriptor is no queue.
pub fn attributes(queue: impl AsFd) -> io::Result<Attributes> {
    let mut words = [0_u64; 8];
    let none = std::ptr::null::<u64>();
    // SAFETY: the kernel writes a `struct mq_attr`, eight words.
    check(unsafe { libc::syscall(libc::SYS_mq_getsetattr, queue.as_fd().as_raw_fd(), none, words.as_mut_ptr()) })?;
    let [_, capacity, longest, waiting, ..] = words;
    Ok(Attributes { capacity, longest, waiting })
}

/// The messages that wait in a queue, with their priorities, in the order in which they will be taken. They are taken
/// out and put back, as a whole ([`Undivided`]): nobody else may take or put any meanwhile, and nobody wait for one.
/// `bytes` is how many there are at most in all of them; more is EMSGSIZE.
///
/// # Errors
///
/// EMSGSIZE where there are more bytes than `bytes`; EAGAIN where somebody else has taken one meanwhile.
pub fn messages(queue: impl AsFd, bytes: usize) -> io::Result<Vec<(u32, Vec<u8>)>> {
    let about = attributes(&queue)?;
    let [count, longest] = [about.waiting, about.longest].map(|number| usize::try_from(number).unwrap_or(0));
    let queue = queue.as_fd().as_raw_fd();
    let mut room = vec![0_u8; bytes.saturating_add(longest)];
    let mut taken: Vec<(u32, usize)> = Vec::with_capacity(count);
    let undivided = Undivided::begin();
    let outcome = take(queue, &mut room, longest, &mut taken).and(put(queue, &room, &taken));
    drop(undivided);
    outcome?;
    let mut at = 0;
    let message = |(priority, length): (u32, usize)| {
        at += length;
        (priority, room[at - length..at].to_vec())
    };
    Ok(taken.into_iter().map(message).collect())
}

/// Takes as many out as there is room to note, and leaves the rest.
fn take(queue: i32, room: &mut [u8], longest: usize, taken: &mut Vec<(u32, usize)>) -> io::Result<()> {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut at = 0;
    while taken.len() < taken.capacity() {
        let left = room.get_mut(at..at + longest).ok_or(io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let mut priority = 0_u32;
        // SAFETY: the kernel writes at most `longest` bytes and a priority, and reads a time.
        let length = unsafe {
            libc::syscall(
                libc::SYS_mq_timedreceive,
                queue,
                left.as_mut_ptr(),
                longest,
                &raw mut priority,
                &raw const now,
            )
        };
        check(length)?;
        at += length as usize;
        taken.push((priority, length as usize));
    }
    Ok(())
}

fn put(queue: i32, room: &[u8], taken: &[(u32, usize)]) -> io::Result<()> {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut at = 0;
    for (priority, length) in taken {
        let message = room[at..].as_ptr();
        // SAFETY: the kernel reads the message, which lies in the room, and a time.
        check(unsafe { libc::syscall(libc::SYS_mq_timedsend, queue, message, *length, *priority, &raw const now) })?;
        at += length;
    }
    Ok(())
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

//! What System V IPC keeps (sysvipc(7)): contents of segments, values of semaphores, messages, all of the ipc namespace
//! of this thread. Nothing is changed by looking.

use std::io;

/// Bytes of a shared memory segment, up to `length`. It is attached for reading meanwhile.
///
/// # Errors
///
/// EINVAL and EIDRM where the segment has gone; EACCES where it may not be read.
pub fn segment(id: i32, length: usize) -> io::Result<Vec<u8>> {
    // SAFETY: the kernel chooses a free range.
    let at = unsafe { libc::shmat(id, std::ptr::null(), libc::SHM_RDONLY) };
    if at.addr() == usize::MAX {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeroes is a valid `struct shmid_ds`, and the kernel fills it.
    let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let asked = unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut about) };
    let error = io::Error::last_os_error();
    let mut bytes = vec![0; length.min(about.shm_segsz)];
    // SAFETY: the segment is mapped for at least `shm_segsz` bytes. Others may write to it: the bytes are copied as
    // they are found.
    unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), bytes.as_mut_ptr(), bytes.len()) };
    // SAFETY: the range is the one attached above, and nothing refers to it any more.
    unsafe { libc::shmdt(at) };
    if asked == 0 { Ok(bytes) } else { Err(error) }
}

/// The values of a set of `count` semaphores (at most 32,000 are in one).
///
/// # Errors
///
/// EINVAL and EIDRM where the set has gone; EACCES where it may not be read.
pub fn semaphores(id: i32, count: usize) -> io::Result<Vec<u16>> {
    const MOST: usize = 32_000;
    const GETALL: i32 = 13;
    let mut values = vec![0_u16; MOST.max(count)];
    // SAFETY: no set has more than that many; the kernel writes two bytes for each.
    if unsafe { libc::semctl(id, 0, GETALL, values.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    values.truncate(count);
    Ok(values)
}

/// The messages of a queue that waits with `count`: type and bytes, the oldest first (MSG_COPY, since Linux 3.8).
///
/// # Errors
///
/// ENOMSG where fewer messages wait; EINVAL and EIDRM where the queue has gone; ENOSYS where the kernel has no
/// checkpoints (CONFIG_CHECKPOINT_RESTORE).
pub fn messages(id: i32, count: usize, longest: usize) -> io::Result<Vec<(i64, Vec<u8>)>> {
    const MSG_COPY: i32 = 0o40_000;
    let mut messages = Vec::new();
    for number in 0..count {
        let mut buffer = vec![0_u64; longest.div_ceil(8) + 1];
        // SAFETY: the kernel writes a type of eight bytes and at most `longest` bytes after it.
        let got = unsafe {
            libc::msgrcv(id, buffer.as_mut_ptr().cast(), longest, number as i64, MSG_COPY | libc::IPC_NOWAIT)
        };
        let Ok(got) = usize::try_from(got) else { return Err(io::Error::last_os_error()) };
        let bytes = buffer[1..].iter().flat_map(|word| word.to_le_bytes()).take(got).collect();
        messages.push((buffer[0] as i64, bytes));
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_an_error() {
        assert!(segment(-1, 10).is_err() && semaphores(-1, 1).is_err() && messages(-1, 1, 10).is_err());
        assert!(messages(-1, 0, 10).unwrap().is_empty());
    }
}

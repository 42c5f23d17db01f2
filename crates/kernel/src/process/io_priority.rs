//! How much the disk's time of a thread is worth (ioprio_set(2), ioprio_get(2)).

use std::io;

/// IOPRIO_WHO_PROCESS: one thread, by its number; 0 is the caller.
const WHO_PROCESS: libc::c_int = 1;
/// IOPRIO_CLASS_IDLE, shifted to where a priority holds its class.
const CLASS_IDLE: libc::c_int = 3 << 13;

/// Lets this thread have the disk only when nobody else wants it (since Linux 2.6.13; bfq and, for writes, mq-deadline
/// heed it).
///
/// # Errors
///
/// None that is known: everybody may step back.
pub fn idle() -> io::Result<()> {
    // SAFETY: three numbers; nothing is read or written through them.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the disk priority of a thread, by its number: its class (1 real-time, 2 best effort, 3 idle) and its level in
/// that, 0 the first and 7 the last (ioprio_set(2), since Linux 2.6.13).
///
/// # Errors
///
/// ESRCH where the thread has gone; EPERM for the real-time class without CAP_SYS_NICE; EINVAL for a level that is
/// none.
pub fn set(tid: i32, class: u32, level: u32) -> io::Result<()> {
    // SAFETY: three numbers; nothing is read or written through them.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, tid, class << 13 | level) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The disk priority that was set for a thread, by its number: class and priority; 0 if none was (ioprio_get(2), since
/// Linux 2.6.13).
///
/// # Errors
///
/// ESRCH where the thread has gone.
pub fn of(tid: i32) -> io::Result<u32> {
    // SAFETY: two numbers; nothing is read or written through them.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, tid) };
    u32::try_from(priority).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_step_back() {
        let told = std::thread::spawn(|| idle().and_then(|()| of(0))).join().unwrap();
        assert_eq!(told.unwrap(), CLASS_IDLE as u32);
        let told = std::thread::spawn(|| set(0, 2, 4).and_then(|()| of(0))).join().unwrap();
        assert_eq!(told.unwrap(), 2 << 13 | 4);
    }
}

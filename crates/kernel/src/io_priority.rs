//! How much the disk's time of a thread is worth (ioprio_set(2)).

use std::io;

/// IOPRIO_WHO_PROCESS: one thread, by its number; 0 is the caller.
const WHO_PROCESS: libc::c_int = 1;
/// IOPRIO_CLASS_IDLE, shifted to where a priority holds its class.
const CLASS_IDLE: libc::c_int = 3 << 13;

/// Lets this thread have the disk only when nobody else wants it (since Linux 2.6.13; bfq and, for writes, mq-deadline heed it).
pub fn idle() -> io::Result<()> {
    // SAFETY: three numbers; nothing is read or written through them.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_step_back() {
        std::thread::spawn(|| idle().unwrap()).join().unwrap();
    }
}

//! How a thread is scheduled (sched_getscheduler(2)).

use std::io;

/// The policy of a thread, by its number: `SCHED_*`, with SCHED_RESET_ON_FORK if what it makes does not inherit it
/// (since Linux 2.6.32).
///
/// # Errors
///
/// ESRCH where the thread has gone.
pub fn of(tid: i32) -> io::Result<u32> {
    // SAFETY: one number; nothing is read or written through it.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid) };
    u32::try_from(policy).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_scheduled_as_it_was_asked_for() {
        let own = std::thread::spawn(|| {
            let parameters = libc::sched_param { sched_priority: 0 };
            // SAFETY: the kernel reads the parameters; 0 is this thread.
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) }, 0);
            of(0).unwrap()
        });
        assert_eq!(own.join().unwrap(), libc::SCHED_BATCH as u32);
        assert_eq!(of(0x3fff_ffff).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}

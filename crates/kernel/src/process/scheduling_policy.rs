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

/// Has this thread run only where no other wants the processor (SCHED_IDLE, since Linux 2.6.23), and what it makes from
/// now on.
///
/// # Errors
///
/// EPERM where that is forbidden.
pub fn yield_to_all() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameters, which outlive the call; 0 is this thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How a thread is to be scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The policy's number, one of `SCHED_*`.
    pub policy: u32,
    /// Flags of the kernel's, of `SCHED_FLAG_*`.
    pub flags: u64,
    /// The niceness, of the usual policies.
    pub nice: i32,
    /// The priority, of the real-time ones.
    pub priority: u32,
    /// The processor time of each period, of deadlines, in nanoseconds.
    pub runtime: u64,
    /// When that must be had, of deadlines, in nanoseconds.
    pub deadline: u64,
    /// How often it is had, of deadlines, in nanoseconds.
    pub period: u64,
}

/// Has a thread be scheduled so (sched_setattr(2), since Linux 3.14).
///
/// # Errors
///
/// ESRCH where the thread has gone; EPERM for what it may not have; EINVAL for attributes that do not fit together;
/// EBUSY where there is no room for one more deadline.
pub fn set(tid: i32, attributes: &Attributes) -> io::Result<()> {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: all of it are numbers, for which 0 is a value.
    let mut wanted: libc::sched_attr = unsafe { std::mem::zeroed() };
    wanted.size = u32::try_from(size).unwrap_or(0);
    wanted.sched_policy = attributes.policy;
    wanted.sched_flags = attributes.flags;
    wanted.sched_nice = attributes.nice;
    wanted.sched_priority = attributes.priority;
    wanted.sched_runtime = attributes.runtime;
    wanted.sched_deadline = attributes.deadline;
    wanted.sched_period = attributes.period;
    // SAFETY: the kernel reads what the structure says is its size, and it outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const wanted, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
        let idle = std::thread::spawn(|| yield_to_all().and_then(|()| of(0)).unwrap());
        assert_eq!(idle.join().unwrap(), libc::SCHED_IDLE as u32);
        let wanted = Attributes { policy: libc::SCHED_IDLE as u32, ..Attributes::default() };
        let own = std::thread::spawn(move || set(0, &wanted).and_then(|()| of(0)));
        assert_eq!(own.join().unwrap().unwrap(), libc::SCHED_IDLE as u32);
        assert_eq!(of(0x3fff_ffff).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}

//! A thread that runs before all others as soon as it wants to (sched(7), SCHED_FIFO).

use std::io;
use std::marker::PhantomData;

/// The thread that made it comes before every thread of the usual kind for as long as this lives. What it starts
/// meanwhile, threads and processes, is of the usual kind (SCHED_RESET_ON_FORK, since Linux 2.6.32). It cannot be sent:
/// it is undone for the thread that drops it.
#[derive(Debug)]
pub struct RealTime(PhantomData<*const ()>);

impl RealTime {
    /// Makes the calling thread such a one, of the least priority of its kind.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_NICE, and in a control group of version 1 that was given no such time
    /// (`cpu.rt_runtime_us`).
    pub fn begin() -> io::Result<Self> {
        set(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1).map(|()| Self(PhantomData))
    }
}

/// Whether the calling thread is such a one. To yield the processor is nothing then: those of the usual kind get none.
pub fn is_on() -> bool {
    // SAFETY: 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_OTHER
}

/// Has the calling thread be of the usual kind, whatever it was started as.
///
/// # Errors
///
/// None that the kernel is known to give: to have less urgency is everybody's right.
pub fn leave() -> io::Result<()> {
    if is_on() { set(libc::SCHED_OTHER, 0) } else { Ok(()) }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        // Nothing can be done about a refusal, and a process that was granted the other gets none.
        let _ = set(libc::SCHED_OTHER, 0);
    }
}

fn set(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: 0 is the calling thread; `parameters` is read only, and outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy and flag of the calling thread, as the kernel shows them.
    fn policy() -> libc::c_int {
        // SAFETY: 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn it_holds_for_one_thread_and_while_it_lives() {
        std::thread::spawn(|| {
            let Ok(first) = RealTime::begin() else {
                assert_eq!(policy(), libc::SCHED_OTHER, "what was refused changed nothing");
                return;
            };
            assert_eq!(policy(), libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK);
            assert!(is_on() && std::thread::spawn(|| !is_on()).join().unwrap());
            assert_eq!(std::thread::spawn(policy).join().unwrap(), libc::SCHED_OTHER, "a thread that it starts");
            drop(first);
            assert_eq!(policy(), libc::SCHED_OTHER);
            set(libc::SCHED_FIFO, 1).unwrap();
            leave().unwrap();
            assert_eq!(policy(), libc::SCHED_OTHER, "whoever was started as one");
        })
        .join()
        .unwrap();
    }
}

//! A thread of an image.

use serde::{Deserialize, Serialize};

/// A thread of a process of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The thread's tid inside the pid namespace.
    pub tid: i32,
    /// The thread's name, without the ending 0.
    pub name: Vec<u8>,
    /// The signal frame that it resumes through: general registers, see [`crate::restore::signal_frame`].
    pub registers: Vec<u64>,
    /// Floating-point and vector state, as XSAVE lays it out.
    #[serde(with = "serde_bytes")]
    pub extended: Vec<u8>,
    /// The signals that it blocks, a bit each.
    pub mask: u64,
    /// Signals that wait for it.
    pub waiting: Vec<WaitingSignal>,
    /// The stack for signal handlers: address, flags, length.
    pub signal_stack: [u64; 3],
    /// Where the kernel writes 0 when it ends.
    pub clear: u64,
    /// Robust futexes: address and length.
    pub robust: (u64, u64),
    /// Restartable sequences: address, length, signature.
    pub rseq: (u64, u32, u32),
    /// The users, groups and capabilities that it has.
    pub credentials: Credentials,
    /// How the kernel schedules the thread.
    pub scheduling: Scheduling,
    /// System-call filters, oldest first: `struct sock_filter`s.
    pub filters: Vec<Vec<u8>>,
    /// The signal that it gets when its parent ends.
    pub parent_death: i32,
    /// Nanoseconds by which its sleeps may be late.
    pub slack: u64,
    /// Nanoseconds that it had yet to wait in the call that it makes first; none if it says itself when that ends, or
    /// waits for ever.
    pub left: Option<u64>,
    /// How the kernel treats it.
    pub settings: ThreadSettings,
}

/// A signal that was sent and not taken: the kernel's `siginfo_t` of 128 bytes.
pub type WaitingSignal = Vec<u8>;

/// User, groups and capabilities of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective, saved, file-system user.
    pub users: [u32; 4],
    /// Real, effective, saved, file-system group.
    pub groups: [u32; 4],
    /// Further groups, as getgroups(2) has them.
    pub further: Vec<u32>,
    /// Inheritable, permitted, effective, bounding, ambient capabilities.
    pub capabilities: [u64; 5],
    /// The thread's secure bits: `SECBIT_*`, or'ed.
    pub secure_bits: u64,
    /// Whether it can never gain privilege.
    pub no_new_privileges: bool,
}

/// How a thread is scheduled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// Niceness, from -20 to 19.
    pub nice: i32,
    /// The scheduling policy: `SCHED_*`, with SCHED_RESET_ON_FORK.
    pub policy: u32,
    /// Real-time priority; 0 for other policies.
    pub priority: u32,
    /// Class and priority of what it reads from disks and writes to them, as ioprio_get(2) has them; 0 if they follow
    /// the niceness.
    pub disk: u32,
    /// The processors that it may run on, a bit each; none if the same as the first process.
    pub processors: Vec<u8>,
}

/// A timer that timer_create(2) has made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// The number by which the process names the timer.
    pub id: i32,
    /// The clock that the timer counts by.
    pub clock: i32,
    /// How the process hears of it: `SIGEV_*`.
    pub notify: i32,
    /// The signal that is sent, if any.
    pub signal: i32,
    /// The value that comes with it.
    pub value: u64,
    /// The thread that gets it, with `SIGEV_THREAD_ID`.
    pub thread: i32,
    /// Interval and rest, each in seconds and nanoseconds.
    pub setting: [u64; 4],
}

/// How the kernel treats a thread, beyond its credentials and scheduling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadSettings {
    /// The thread's personality, as personality(2) has it.
    pub personality: u32,
    /// Whether it is ended as soon as memory that it has fails, rather than when it reads it; none if as the machine
    /// has it (PR_MCE_KILL).
    pub memory_failure: Option<bool>,
    /// What the processor must not guess for it (PR_SET_SPECULATION_CTRL): its number, and `PR_SPEC_*`.
    pub speculation: Vec<(u32, u32)>,
}

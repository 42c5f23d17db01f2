//! What the daemon gives up when it begins: calls and capabilities by which the machine is changed for everybody, and
//! none of which it needs.
//!
//! ```text
//!   serve ─▶ begin ─┬─ unfiltered thread ─▶ spawner, holders, and threads that freeze:
//!                   │                       what guests are made of, and tracers
//!                   └─ filter, capabilities ─▶ this thread, which reads what clients say,
//!                                              and all that it makes: readers, tar, tools
//! ```
//!
//! Both are handed on to every thread and process that is made afterwards; what must not have them is made by
//! [`pando_kernel::seccomp::unfiltered`].

use caps::{CapSet, Capability};
use pando_guest::policy::seccomp;
use pando_kernel::mistake::planted;
use pando_kernel::{CallError, Context, seccomp::unfiltered};
use std::io;

/// Calls that are refused, and what they answer: to tools that try them as if the kernel had no such call.
const REFUSED: [(i32, &[&str]); 2] = [
    (
        libc::EPERM,
        &[
            "acct",
            "adjtimex",
            "clock_adjtime",
            "clock_settime",
            "delete_module",
            "finit_module",
            "init_module",
            "ioperm",
            "iopl",
            "kexec_file_load",
            "kexec_load",
            "migrate_pages",
            "modify_ldt",
            "move_pages",
            "nfsservctl",
            "perf_event_open",
            "process_vm_writev",
            "ptrace",
            "reboot",
            "settimeofday",
            "stime",
            "swapoff",
            "swapon",
            "userfaultfd",
            "vhangup",
            "vm86",
            "vm86old",
        ],
    ),
    (
        libc::ENOSYS,
        &["add_key", "io_uring_enter", "io_uring_register", "io_uring_setup", "keyctl", "request_key", "uselib"],
    ),
];

/// Capabilities that are given up.
const GIVEN_UP: [Capability; 10] = [
    Capability::CAP_AUDIT_CONTROL,
    Capability::CAP_AUDIT_READ,
    Capability::CAP_BLOCK_SUSPEND,
    Capability::CAP_SYS_BOOT,
    Capability::CAP_SYS_MODULE,
    Capability::CAP_SYS_PACCT,
    Capability::CAP_SYS_RAWIO,
    Capability::CAP_SYS_TIME,
    Capability::CAP_SYS_TTY_CONFIG,
    Capability::CAP_WAKE_ALARM,
];

/// Gives them up. To be called before there are other threads.
pub(crate) fn begin() -> Result<(), CallError> {
    unfiltered::begin().context(|| "starting a thread".into())?;
    if planted("daemon.bare") {
        return Ok(());
    }
    for capability in GIVEN_UP {
        for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Bounding, CapSet::Effective, CapSet::Permitted] {
            give_up(set, capability).context(|| format!("giving up {capability}"))?;
        }
    }
    let filter: Vec<_> = seccomp::refusing(&REFUSED).chunks_exact(8).map(instruction).collect();
    // Nothing that this thread starts gains privileges any more, either.
    seccompiler::apply_filter(&filter).map_err(io::Error::other).context(|| "filtering the daemon's own calls".into())
}

/// Nothing where the kernel does not know it, or it is not there.
fn give_up(set: CapSet, capability: Capability) -> io::Result<()> {
    let other = |error: caps::errors::CapsError| io::Error::other(error.to_string());
    if !caps::has_cap(None, set, capability).unwrap_or(false) {
        return Ok(());
    }
    caps::drop(None, set, capability).map_err(other)?;
    if caps::has_cap(None, set, capability).map_err(other)? {
        Err(io::Error::other("it is still there"))
    } else {
        Ok(())
    }
}

/// `struct sock_filter`
fn instruction(bytes: &[u8]) -> seccompiler::sock_filter {
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    seccompiler::sock_filter { code: u16::from_ne_bytes([bytes[0], bytes[1]]), jt: bytes[2], jf: bytes[3], k: word(4) }
}

/// Tries what is refused, where a test plants that, and says what came of it.
pub(crate) async fn misbehave() {
    if planted("daemon.forbidden") || planted("daemon.bare") {
        say("main", &pando_kernel::seccomp::forbidden::tried());
        if let Ok(answers) = tokio::task::spawn_blocking(pando_kernel::seccomp::forbidden::tried).await {
            say("blocking", &answers);
        }
    }
}

fn say(thread: &str, answers: &[(&str, io::Error)]) {
    for (call, answer) in answers {
        tracing::info!("planted: {thread} {call} {}", answer.raw_os_error().unwrap_or(0));
    }
}

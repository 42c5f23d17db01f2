//! What a process may do by itself. The supervisor has all rights: what it does for a process has to be what the kernel
//! would have let that do.

use pando_kernel::{namespace, process};

/// `CAP_KILL`: any process of the user namespace, and of those below, may be sent signals.
const KILL: u32 = 5;

/// `CAP_SYS_PTRACE`: the same for what they have in memory and open.
const TRACE: u32 = 19;

/// Whether a thread, which waits meanwhile, holds a capability in its user namespace. Where that cannot be told it
/// does.
pub(super) fn holds(pid: i32, capability: u32) -> bool {
    process::read(pid, "status").map_or(true, |status| is_held(&status, capability))
}

/// Whether the kernel would let one process send another a signal; that of the supervisor, who has all rights, would
/// come through in any case.
pub(super) fn may_signal(caller: i32, receiver: i32, signal: i32) -> bool {
    let same_session =
        || process::session(caller).is_ok_and(|own| process::session(receiver).is_ok_and(|its| own == its));
    reaches(caller, receiver, KILL).unwrap_or(false) || signal == libc::SIGCONT && same_session()
}

/// Whether the kernel would, as far as ids and capabilities say so, let one process take what another has open. Where
/// that cannot be told it would.
pub(super) fn may_take_from(caller: i32, owner: i32) -> bool {
    reaches(caller, owner, TRACE).unwrap_or(true)
}

/// Whether a process has the ids of another, or a capability over it; `None` where that cannot be told.
fn reaches(caller: i32, other: i32, capability: u32) -> Option<bool> {
    let (from, to) = (process::read(caller, "status").ok()?, process::read(other, "status").ok()?);
    let ([real, effective, ..], [owner, _, saved, _]) = (ids(&from)?, ids(&to)?);
    if [real, effective].iter().any(|id| [owner, saved].contains(id)) {
        return Some(true);
    }
    if is_held(&from, capability) { namespace::user::lies_in(other, caller).ok() } else { Some(false) }
}

/// Real, effective, saved, and that of the file system.
fn ids(status: &str) -> Option<[u32; 4]> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let ids: Vec<u32> = line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    ids.try_into().ok()
}

fn is_held(status: &str, capability: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|held| u64::from_str_radix(held.trim(), 16).ok()).is_some_and(|held| held & 1 << capability != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_from_what_the_kernel_tells() {
        let status = "Name:\tx\nUid:\t1000\t0\t7\t1000\nCapEff:\t0000000000000020\n";
        assert_eq!((ids(status), is_held(status, KILL)), (Some([1000, 0, 7, 1000]), true));
        assert!(!is_held("CapEff:\t00000000000000df\n", KILL) && ids("Uid:\t1\n").is_none());
    }

    #[test]
    fn a_process_may_signal_itself_and_nobody_may_one_that_is_not_there() {
        let me = std::process::id().cast_signed();
        assert!(may_signal(me, me, libc::SIGTERM) && !may_signal(me, i32::MAX, libc::SIGTERM));
    }
}

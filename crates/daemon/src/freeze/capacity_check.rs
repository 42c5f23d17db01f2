//! Whether the limits of a guest leave room for processes that are moved into it. The kernel would find out in the
//! midst of that, and in want of memory it kills whom it likes: the guest's own, too.

use crate::failure;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::processes;
use pando_api::{Fault, ProcessEntry};
use pando_limit::machine::Free;
use pando_limit::quantity::show_size;
use pando_limit::usage::Usage;
use std::collections::HashSet;
use std::rc::Rc;

/// Processes of Pando's own that are in the guest while others are moved into it: the holder of their memory, and the
/// one that makes them.
const HELPERS: u64 = 2;

/// The guest's shim is counted with it, and not against it.
const SHIM: u64 = 1;

/// The memory and threads that processes take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Need {
    memory: u64,
    threads: u64,
}

/// Refuses what does not fit. Whoever has no limits has room.
pub(crate) fn check(daemon: &Daemon, source: &Rc<Guest>, pids: &[i32], target: &Guest) -> Result<(), Fault> {
    let found = daemon.resources.with(&target.name, |tenant| (tenant.limits.clone(), Usage::read(&tenant.groups)));
    let Some((limits, used)) = found.filter(|(limits, _)| limits.memory.limit.or(limits.pids).is_some()) else {
        return Ok(());
    };
    let all = processes::of_guest(&daemon.field, source);
    let need = below(&all, pids).iter().fold(Need::default(), |sum, pid| sum.and(Need::of(*pid)));
    let name = target.name.as_ref();
    let refused =
        |message: String| Err(failure::bad(name, format!("moving processes into guest '{name}' failed: {message}")));
    if let Some(limit) = limits.memory.limit {
        let swap = limits.memory.swap.unwrap_or_else(|| Free::look().swap);
        let room = (limit + swap).saturating_sub(used.memory.saturating_sub(used.cache) + used.swap);
        let wanted = need.with_tables();
        if wanted > room {
            return refused(format!(
                "they take {} of memory, and of its memory.limit of {} there is {} left; raise it with 'pando set {name} memory.limit=SIZE'",
                show_size(wanted),
                show_size(limit),
                show_size(room)
            ));
        }
    }
    if let Some(limit) = limits.pids {
        let room = (limit + SHIM).saturating_sub(used.pids);
        if need.threads + HELPERS > room {
            return refused(format!(
                "they are {} threads, and {HELPERS} more while they are moved, and of its limit of {limit} (pids) there are {room} left; \
                 raise it with 'pando set {name} pids=NUMBER'",
                need.threads
            ));
        }
    }
    Ok(())
}

/// Some processes and all below them, by their pids on the host.
fn below(all: &[ProcessEntry], pids: &[i32]) -> Vec<i32> {
    let mut inside: HashSet<i32> = HashSet::new();
    loop {
        let more = all.iter().filter(|one| pids.contains(&one.host_pid) || inside.contains(&one.ppid));
        let more: HashSet<i32> = more.map(|one| one.pid).collect();
        if more.len() == inside.len() {
            return all.iter().filter(|one| inside.contains(&one.pid)).map(|one| one.host_pid).collect();
        }
        inside = more;
    }
}

impl Need {
    /// Of a process; one that has ended meanwhile takes nothing.
    fn of(pid: i32) -> Self {
        let read = |file: &str| pando_kernel::file::proc_file::text(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let memory =
            ["Anonymous", "Pss_Shmem", "Swap"].iter().map(|key| field(&read("smaps_rollup"), key)).sum::<u64>();
        Self { memory: memory << 10, threads: field(&read("status"), "Threads") }
    }

    fn and(self, other: Self) -> Self {
        Self { memory: self.memory + other.memory, threads: self.threads + other.threads }
    }

    /// Bytes of memory, with what the kernel needs for it: page tables, stacks.
    fn with_tables(self) -> u64 {
        const OF_A_THREAD: u64 = 64 << 10;
        self.memory + self.memory / 256 + (self.threads + HELPERS) * OF_A_THREAD
    }
}

/// The number behind `KEY:`.
fn field(text: &str, key: &str) -> u64 {
    let of = |line: &str| line.strip_prefix(key)?.strip_prefix(':')?.split_ascii_whitespace().next()?.parse().ok();
    text.lines().find_map(of).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, ppid: i32) -> ProcessEntry {
        ProcessEntry {
            guest: "from".into(),
            host_pid: pid + 1000,
            pid,
            ppid,
            uid: 0,
            state: "S".into(),
            cpu_ms: 0,
            rss_kib: 0,
            command: String::new(),
        }
    }

    #[test]
    fn all_that_is_below_comes_along() {
        let all = [process(1, 0), process(5, 4), process(2, 1), process(4, 2), process(3, 1)];
        assert_eq!(below(&all, &[1002]), [1005, 1002, 1004]);
        assert_eq!(below(&all, &[1003, 1004]), [1005, 1004, 1003]);
        assert_eq!(below(&all, &[7]), [0; 0]);
    }

    #[test]
    fn what_a_process_takes_is_read_by_its_names() {
        let text = "00400000-7ffe000 ---p 00000000 00:00 0 [rollup]\nRss: 9 kB\nPss_Shmem:     4 kB\nAnonymous:  120 kB\nSwapPss: 3 kB\nSwap: 7 kB\n";
        assert_eq!(["Anonymous", "Pss_Shmem", "Swap", "none"].map(|key| field(text, key)), [120, 4, 7, 0]);
    }
}

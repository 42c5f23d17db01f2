//! Memory and swap as a group has them: /proc/meminfo and /proc/swaps.

use crate::groups::{Controller, Groups};
use crate::limits::Limits;
use crate::machine::meminfo as field_of;
use crate::usage::{Usage, field, text};

/// What a group holds, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    usage: Usage,
    stat: String,
}

impl Held {
    pub(super) fn look(groups: &Groups) -> Self {
        Self { usage: Usage::read(groups), stat: text(groups.file(Controller::Memory, "memory.stat")) }
    }

    /// A field of memory.stat: the sum over groups below is called `total_` in version 1, and is what there is in
    /// version 2.
    fn of(&self, old: &str, new: &str) -> u64 {
        field(&self.stat, &format!("total_{old}")).or_else(|| field(&self.stat, new)).unwrap_or(0)
    }

    fn files(&self) -> u64 {
        self.of("inactive_file", "inactive_file") + self.of("active_file", "active_file")
    }
}

/// The whole and what is in use of it: what is limited, or what the host has.
fn swap(host: &str, limits: &Limits, used: u64) -> (u64, u64) {
    let whole = field_of(host, "SwapTotal");
    let whole = limits.memory.swap_bound().map_or(whole, |most| most.min(whole));
    (whole, used.min(whole))
}

/// The host's text, with what is the group's own in place of what is the host's.
pub(super) fn meminfo(host: &str, limits: &Limits, held: &Held) -> String {
    let whole = field_of(host, "MemTotal");
    let total = limits.memory.limit.map_or(whole, |limit| limit.min(whole));
    let free = total.saturating_sub(held.usage.memory);
    // What is promised twice cannot be had twice.
    let available =
        (free + held.files() + held.of("", "slab_reclaimable")).min(total).min(field_of(host, "MemAvailable"));
    let (swap_total, swap_used) = swap(host, limits, held.usage.swap);
    let own = |key: &str| {
        Some(match key {
            "MemTotal" => total,
            "MemFree" => free.min(field_of(host, "MemFree")),
            "MemAvailable" => available,
            "Cached" => held.usage.cache,
            "Active" => held.of("active_anon", "active_anon") + held.of("active_file", "active_file"),
            "Inactive" => held.of("inactive_anon", "inactive_anon") + held.of("inactive_file", "inactive_file"),
            "Active(anon)" => held.of("active_anon", "active_anon"),
            "Inactive(anon)" => held.of("inactive_anon", "inactive_anon"),
            "Active(file)" => held.of("active_file", "active_file"),
            "Inactive(file)" => held.of("inactive_file", "inactive_file"),
            "Unevictable" => held.of("unevictable", "unevictable"),
            "SwapTotal" => swap_total,
            "SwapFree" => swap_total - swap_used,
            "Dirty" => held.of("dirty", "file_dirty"),
            "Writeback" => held.of("writeback", "file_writeback"),
            "AnonPages" => held.of("rss", "anon"),
            "Mapped" => held.of("mapped_file", "file_mapped"),
            "Shmem" => held.of("shmem", "shmem"),
            "KReclaimable" | "SReclaimable" => held.of("", "slab_reclaimable"),
            "Slab" => held.of("", "slab_reclaimable") + held.of("", "slab_unreclaimable"),
            "SUnreclaim" => held.of("", "slab_unreclaimable"),
            "KernelStack" => held.of("", "kernel_stack"),
            "PageTables" => held.of("", "pagetables"),
            // Of these no group is charged its part.
            "Buffers" | "SwapCached" | "Mlocked" | "Zswap" | "Zswapped" | "AnonHugePages" | "ShmemHugePages" => 0,
            _ => return None,
        })
    };
    let line = |line: &str| match line.split_once(':').and_then(|(key, _)| Some((key, own(key)?))) {
        Some((key, bytes)) => format!("{:<16}{:>8} kB\n", format!("{key}:"), bytes / 1024),
        None => format!("{line}\n"),
    };
    if limits.memory.limit.is_none() && limits.memory.swap.is_none() {
        host.to_owned()
    } else {
        host.lines().map(line).collect()
    }
}

/// One line for what may lie in swap; none where nothing may.
pub(super) fn swaps(host: &str, info: &str, limits: &Limits, usage: &Usage) -> String {
    if limits.memory.limit.is_none() && limits.memory.swap.is_none() {
        return host.to_owned();
    }
    let (total, used) = swap(info, limits, usage.swap);
    let header = host.lines().next().unwrap_or("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority");
    let line = if total == 0 {
        String::new()
    } else {
        format!("none\t\t\t\t\tvirtual\t\t{}\t\t{}\t\t0\n", total / 1024, used / 1024)
    };
    format!("{header}\n{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "MemTotal:       16000000 kB\nMemFree:         8000000 kB\nMemAvailable:   12000000 kB\nBuffers:          500000 kB\n\
        Cached:          3000000 kB\nSwapTotal:       2000000 kB\nSwapFree:        1500000 kB\nHugepagesize:       2048 kB\n";

    fn limits(pairs: &[(&str, &str)]) -> Limits {
        Limits::read(pairs.iter().copied()).unwrap()
    }

    fn held() -> Held {
        let usage = Usage { memory: 40 << 20, cache: 10 << 20, swap: 1 << 20, ..Usage::default() };
        Held { usage, stat: "total_inactive_file 4194304\ntotal_active_file 2097152\ntotal_rss 8192\n".into() }
    }

    #[test]
    fn a_group_has_what_it_may_have() {
        let text = meminfo(HOST, &limits(&[("memory.limit", "64M"), ("memory.swap", "8M")]), &held());
        let kilobytes = |key: &str| field_of(&text, key) / 1024;
        assert_eq!((kilobytes("MemTotal"), kilobytes("MemFree"), kilobytes("Buffers")), (65536, 24576, 0));
        assert_eq!((kilobytes("MemAvailable"), kilobytes("Cached")), (24576 + 6144, 10240));
        assert_eq!((kilobytes("SwapTotal"), kilobytes("SwapFree")), (8192, 7168));
        assert!(
            text.contains("Hugepagesize:       2048 kB\n") && text.starts_with("MemTotal:          65536 kB\n"),
            "{text}"
        );
        assert_eq!(text.lines().count(), HOST.lines().count());
    }

    #[test]
    fn a_limit_above_the_machine_shows_the_machine() {
        let text = meminfo(HOST, &limits(&[("memory.limit", "900G")]), &held());
        assert_eq!(field_of(&text, "MemTotal"), 16_000_000 * 1024);
        assert_eq!(meminfo(HOST, &limits(&[]), &held()), HOST, "no limit any more");
    }

    #[test]
    fn more_in_use_than_allowed_leaves_nothing_free() {
        let text = meminfo(HOST, &limits(&[("memory.limit", "16M"), ("memory.swap", "0")]), &held());
        assert_eq!((field_of(&text, "MemFree"), field_of(&text, "SwapFree")), (0, 0));
        assert_eq!(swaps("Filename x\n", HOST, &limits(&[("memory.swap", "0")]), &Usage::default()), "Filename x\n");
        let some = swaps("Filename x\n/dev/a y\n", HOST, &limits(&[("memory.swap", "4M")]), &held().usage);
        assert!(some.contains("virtual\t\t4096\t\t1024") && !some.contains("/dev/a"), "{some}");
    }
}

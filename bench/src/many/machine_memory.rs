//! The machine's memory that is in use and cannot be had back: what somebody with hundreds of guests has to buy.

use crate::interrupt;
use anyhow::Context;
use std::time::{Duration, Instant};

/// How often it is looked whether the kernel still frees what ended.
const LOOK: Duration = Duration::from_millis(500);

/// What the machine may give back from look to look and still count as settled: kilobytes.
const STEADY: f64 = 512.0;

/// How long is waited for that at most, as others may give memory back for as long as they like.
const PATIENCE: Duration = Duration::from_secs(20);

/// Kilobytes in use: all but what is free, and what the page cache and the reclaimable slabs would give back.
///
/// What each processor has put aside of what is free is not in use either, though `MemFree` leaves it out: it may be a
/// hundred megabytes, and comes and goes.
///
/// What others do on the machine meanwhile is in it too, so it takes repeats, and many guests.
pub(crate) fn used_kib() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let zones = std::fs::read_to_string("/proc/zoneinfo").context("cannot read /proc/zoneinfo")?;
    used(&text).map(|used| used - put_aside(&zones)).context("/proc/meminfo lacks a line")
}

/// Kilobytes of free pages in the lists of processors.
fn put_aside(zones: &str) -> f64 {
    const PAGE_KIB: f64 = 4.0;
    let counts = zones.lines().filter_map(|line| line.trim_start().strip_prefix("count:")?.trim().parse::<f64>().ok());
    counts.sum::<f64>() * PAGE_KIB
}

/// Waits until what ended before is freed, which the kernel does in its own time: hundreds of network namespaces take
/// it seconds. What it freed while guests are counted would be counted for them.
pub(crate) fn settle() -> anyhow::Result<()> {
    let begun = Instant::now();
    let (mut before, mut steady) = (used_kib()?, 0);
    while steady < 4 && begun.elapsed() < PATIENCE {
        interrupt::pause(LOOK)?;
        let now = used_kib()?;
        steady = if before - now < STEADY { steady + 1 } else { 0 };
        before = now;
    }
    Ok(())
}

fn used(text: &str) -> Option<f64> {
    let field = |name: &str| -> Option<f64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    };
    // Shared memory counts as page cache there, and cannot be had back.
    let reclaimable = field("Buffers")? + field("Cached")? - field("Shmem")? + field("SReclaimable")?;
    Some(field("MemTotal")? - field("MemFree")? - reclaimable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processors_put_aside_is_free() {
        let zones = "Node 0, zone DMA\n  pages free 9\n  pagesets\n    cpu: 0\n              count:    3\n              high:     9\n    cpu: 1\n              count: 4\n";
        assert_eq!(put_aside(zones), 28.0);
    }

    #[test]
    fn what_would_be_given_back_is_not_in_use() {
        let text =
            "MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 50 kB\nCached: 200 kB\nShmem: 20 kB\nSReclaimable: 70 kB\n";
        assert_eq!(used(text), Some(400.0));
        assert_eq!(used("MemTotal: 1 kB\n"), None);
    }
}

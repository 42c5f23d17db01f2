//! Paths of /proc and /sys that tell of, or act on, the whole machine.

use std::path::Path;
use std::sync::OnceLock;

/// Files hidden behind the null device. What the kernel lacks is passed over.
pub const MASKED_FILES: [&str; 7] = [
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/sysrq-trigger",
    "proc/timer_list",
    "proc/timer_stats",
];

/// Directories hidden behind an empty one, where the kernel has them.
pub const MASKED_DIRECTORIES: [&str; 4] = ["proc/acpi", "proc/asound", "proc/scsi", "sys/firmware"];

/// Those of [`MASKED_DIRECTORIES`] that this kernel has, with their numbers; they do not come and go. A mount that is made and closed unused holds a
/// start up for a grace period, so it is not made.
pub fn masked_directories() -> impl Iterator<Item = (usize, &'static str)> {
    static PRESENT: OnceLock<Vec<(usize, &'static str)>> = OnceLock::new();
    let look = || (0..).zip(MASKED_DIRECTORIES).filter(|(_, path)| Path::new("/").join(path).is_dir()).collect();
    PRESENT.get_or_init(look).iter().copied()
}

/// Made read-only where root inside is root outside. With a user namespace these files belong to nobody the guest can become.
pub const READ_ONLY: [&str; 4] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys"];

//! How many processes and threads a set may have that was given no number: numbers of processes are the machine's, and
//! one set that takes all leaves none to anybody else, the host's root among them.
//!
//! It is written when groups are made, before any process lives in them, so it costs no start anything.

use crate::apply::write;
use pando_kernel::cgroup::Seat;
use pando_kernel::{CallError, Context};

/// The part of the machine's numbers, and the most. Few programs have a thousand threads.
const PART: u64 = 4;
const MOST: u64 = 32_768;

/// Fewer than this no system boots with.
const LEAST: u64 = 1024;

const FILE: &str = "pids.max";

/// The bound on this machine.
pub fn usual() -> u64 {
    let numbers = std::fs::read_to_string("/proc/sys/kernel/pid_max").ok();
    of(numbers.and_then(|text| text.trim().parse().ok()).unwrap_or(MOST))
}

fn of(numbers: u64) -> u64 {
    (numbers / PART).clamp(LEAST, MOST)
}

/// Bounds a group, `uncounted` processes of which are not the set's.
///
/// # Errors
///
/// What the kernel says to the writing.
pub fn hold(seat: &Seat, uncounted: u64) -> Result<(), CallError> {
    let path = seat.group.join(FILE);
    write(&path, &(usual() + uncounted).to_string()).context(|| format!("bounding processes in {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_leaves_most_numbers_to_others() {
        assert_eq!(of(32_768), 8_192);
        assert_eq!(of(4_194_304), MOST);
        assert_eq!(of(300), LEAST);
    }
}

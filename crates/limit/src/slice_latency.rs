//! SliceLatency: what is reserved is of little use to a server that gets it milliseconds late. A group with a
//! reservation of processor time has short slices. So a neighbour's thread that is at work when one of its threads
//! wakes makes room at once, and does not first use up its own slice. What each gets in all stays as the weights say.

use crate::groups::{Controller, Groups};
use pando_kernel::process::time_slice;
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

/// A small part of what the scheduler gives to others: 1.4 ms with two processors, 2.8 with eight and more (EEVDF's
/// base slice).
pub const SLICE: Duration = Duration::from_micros(300);

/// How often to look again for threads that were started meanwhile by one whose turn had not come. A process that
/// starts them without end is not waited for.
const ROUNDS: u32 = 4;

/// Gives the threads in some groups short slices, or usual ones again; what they start has the same. Best effort:
/// kernels before 6.12 have one slice for all, and threads in groups that a guest made below its own keep theirs.
pub fn set(groups: &Groups, prompt: bool) {
    let files = threads(groups);
    let slice = prompt.then_some(SLICE);
    let mut done = HashSet::new();
    for _ in 0..ROUNDS {
        let listed: String = files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect();
        let threads = listed.lines().filter_map(|line| line.parse().ok());
        let new: Vec<i32> = threads.filter(|thread| done.insert(*thread)).collect();
        if new.is_empty() {
            return;
        }
        for thread in new {
            // It may have ended.
            let _ = time_slice::set(thread, slice);
        }
    }
}

/// The lists of threads. In version 2 no process is in a group that has groups below: they are in those right below.
fn threads(groups: &Groups) -> Vec<PathBuf> {
    let Some(seat) = groups.seat(Controller::Cpu) else { return Vec::new() };
    if !seat.unified {
        return vec![seat.group.join("tasks")];
    }
    let below = std::fs::read_dir(&seat.group).into_iter().flatten().flatten().map(|entry| entry.path());
    below.filter(|path| path.is_dir()).map(|path| path.join("cgroup.threads")).collect()
}

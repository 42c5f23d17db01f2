//! How many processes of a group wanted to run lately: /proc/loadavg, which the kernel has for the whole machine alone.
//!
//! As the kernel does it: every five seconds those that run or wait for a disk are counted, and three averages forget
//! with 1, 5 and 15 minutes.

use crate::groups::{Controller, Groups};
use crate::usage::text;
use pando_kernel::cgroup::tree::{self, Bounds};
use std::path::Path;
use std::time::Duration;

/// How often the tasks that run are counted.
pub const EVERY: Duration = Duration::from_secs(5);

/// Seconds in which an average forgets all but a part in e.
const MEMORIES: [f64; 3] = [60.0, 300.0, 900.0];

/// The most groups that are looked into, and the most tasks that are looked at: a guest may have made thousands.
const BOUNDS: Bounds = Bounds { groups: 64, ids: 1024 };

/// The load averages of a set of processes, of one, five and fifteen minutes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    averages: [f64; 3],
    running: u64,
    used: u64,
}

impl Load {
    /// Takes in what a group has used of processors in all, in nanoseconds; called once [`EVERY`] five seconds. A group
    /// that has used nothing is not looked at.
    pub fn sample(&mut self, used: u64, groups: &Groups) {
        /// What a process that only sleeps and wakes uses in that time, in nanoseconds.
        const IDLE: u64 = 5_000_000;
        let idle = used.saturating_sub(self.used) < IDLE;
        self.used = used;
        self.take_in(if idle { 0 } else { count(groups) });
    }

    fn take_in(&mut self, running: u64) {
        self.running = running;
        for (average, memory) in self.averages.iter_mut().zip(MEMORIES) {
            let kept = (-EVERY.as_secs_f64() / memory).exp();
            *average = *average * kept + running as f64 * (1.0 - kept);
        }
    }

    /// How many wanted to run when last counted.
    pub(super) fn running(&self) -> u64 {
        self.running
    }

    /// The line of /proc/loadavg. The reader itself runs.
    pub(super) fn text(&self, tasks: u64) -> String {
        let [one, five, fifteen] = self.averages;
        format!("{one:.2} {five:.2} {fifteen:.2} {}/{tasks} {tasks}\n", self.running.clamp(1, tasks.max(1)))
    }
}

/// How many tasks of the groups run, or wait for a disk.
fn count(groups: &Groups) -> u64 {
    let unified = groups.inner().cloned();
    let (top, file) = match unified {
        Some(inner) => (Some(inner), "cgroup.threads"),
        None => (groups.seat(Controller::Pids).map(|seat| seat.group.clone()), "tasks"),
    };
    let tasks = top.map(|top| tree::members(&top, file, BOUNDS).ids).unwrap_or_default();
    tasks.into_iter().filter(|task| wants_to_run(*task)).count() as u64
}

/// Running, or in a sleep that nothing interrupts (proc_pid_stat(5)).
fn wants_to_run(task: i32) -> bool {
    let stat = text(Some(Path::new("/proc").join(task.to_string()).join("stat")));
    // The name before it may hold anything, brackets too.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('R' | 'D'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_forget_as_the_kernels_do() {
        let mut load = Load::default();
        for _ in 0..12 {
            load.take_in(2);
        }
        // A minute of two: all but a part in e of it.
        assert!((load.averages[0] - 2.0 * (1.0 - (-1.0_f64).exp())).abs() < 1e-9, "{load:?}");
        assert!(load.averages[1] < load.averages[0] && load.averages[2] < load.averages[1]);
        assert!(load.text(7).ends_with(" 2/7 7\n"), "{}", load.text(7));
        for _ in 0..1000 {
            load.take_in(0);
        }
        assert!(load.text(1).starts_with("0.00 "), "{}", load.text(1));
    }

    #[test]
    fn who_runs_is_told_from_who_sleeps() {
        let own = std::process::id().cast_signed();
        assert!(tree::members(Path::new("/no/such/group"), "tasks", BOUNDS).ids.is_empty());
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(wants_to_run(thread) && !wants_to_run(i32::MAX));
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("below/tasks"), own.to_string()).unwrap();
        assert_eq!(tree::members(directory.path(), "tasks", BOUNDS).ids, [own]);
    }
}

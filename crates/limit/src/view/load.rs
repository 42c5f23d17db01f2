//! How many processes of a group wanted to run lately: /proc/loadavg, which the kernel has for the whole machine alone.
//!
//! As the kernel does it: every five seconds those that run or wait for a disk are counted, and three averages forget
//! with 1, 5 and 15 minutes.

use crate::groups::{Controller, Groups};
use crate::usage::text;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the tasks that run are counted.
pub const EVERY: Duration = Duration::from_secs(5);

/// Seconds in which an average forgets all but a part in e.
const MEMORIES: [f64; 3] = [60.0, 300.0, 900.0];

/// The most tasks that are looked at, and the most groups below: a guest may have made thousands.
const MOST_TASKS: usize = 1024;
const MOST_GROUPS: usize = 64;

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
    let tasks = top.map(|top| tasks(&top, file)).unwrap_or_default();
    tasks.iter().filter(|task| wants_to_run(task)).count() as u64
}

fn tasks(top: &Path, file: &str) -> Vec<String> {
    let (mut tasks, mut groups, mut seen) = (Vec::new(), vec![PathBuf::from(top)], 0);
    while let Some(group) = groups.pop() {
        seen += 1;
        tasks.extend(text(Some(group.join(file))).lines().map(str::to_owned));
        if tasks.len() >= MOST_TASKS || seen >= MOST_GROUPS {
            break;
        }
        let below = std::fs::read_dir(&group).into_iter().flatten().flatten();
        groups
            .extend(below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
    }
    tasks.truncate(MOST_TASKS);
    tasks
}

/// Running, or in a sleep that nothing interrupts (proc_pid_stat(5)).
fn wants_to_run(task: &str) -> bool {
    let stat = text(Some(Path::new("/proc").join(task).join("stat")));
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
        let own = std::process::id().to_string();
        assert!(tasks(Path::new("/no/such/group"), "tasks").is_empty());
        assert!(wants_to_run("thread-self") && !wants_to_run("no-such-task"));
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("below/tasks"), &own).unwrap();
        assert_eq!(tasks(directory.path(), "tasks"), [own]);
    }
}

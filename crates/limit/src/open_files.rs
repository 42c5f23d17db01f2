//! The files that a set of processes has open, all together: what no group counts.
//!
//! The directory /proc/PID/fd has as its size the number of its entries (since Linux 6.2), so counting costs
//! microseconds a process. A group that has reached what it may have gets no more: each of its processes is bounded to
//! what it has open (RLIMIT_NOFILE, soft), until there is room again. Where the kernel does not let this process bound
//! others, or processes were faster, the one that holds the most is ended. The hard bound that needs no looking is
//! `pids` × `files`.

use crate::groups::{Controller, Groups};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How often open files are counted.
pub const EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// Of the most, in percent, what may be open when bounds are lifted again.
const RELIEF: u64 = 90;

/// Beyond this, in percent of the most, bounds were of no avail.
const TOO_MUCH: u64 = 110;

/// The most processes that are looked at.
const MOST: usize = 65_536;

/// What was done about open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Nothing had to be done.
    Nothing,
    /// Every process was bounded to what it has.
    Bounded {
        /// How many files were open.
        open: u64,
    },
    /// The bounds of all processes were lifted.
    Lifted,
    /// The process that held the most was ended.
    Ended {
        /// The pid of the process.
        pid: i32,
        /// How many it had open.
        held: u64,
        /// How many files were open.
        open: u64,
    },
}

/// Looks after one set of processes.
#[derive(Debug, Default)]
pub struct OpenFiles {
    /// What those that are bounded might have had before.
    before: BTreeMap<i32, Option<u64>>,
}

impl OpenFiles {
    /// Counts, and does what has to be done for at most `most` to be open.
    pub fn look(&mut self, groups: &Groups, most: u64) -> Deed {
        let held: Vec<(i32, u64)> = processes(groups).into_iter().map(|pid| (pid, count(pid))).collect();
        let open: u64 = held.iter().map(|(_, held)| held).sum();
        let decision = decide(open, most, !self.before.is_empty());
        match decision {
            Decision::Nothing => Deed::Nothing,
            Decision::Lift => {
                self.lift();
                Deed::Lifted
            }
            Decision::Bound => {
                let first = self.before.is_empty();
                let all = held.iter().all(|(pid, held)| self.bound(*pid, *held));
                match (all, first) {
                    (true, true) => Deed::Bounded { open },
                    (true, false) => Deed::Nothing,
                    (false, _) => end(&held, open),
                }
            }
            Decision::End => end(&held, open),
        }
    }

    /// Lifts the bounds that were set.
    pub fn lift(&mut self) {
        for (pid, current) in std::mem::take(&mut self.before) {
            if let Some(pid) = Pid::from_raw(pid)
                && let Ok(now) = limits(pid)
            {
                let _ = prlimit(Some(pid), Resource::Nofile, Rlimit { current, ..now });
            }
        }
    }

    /// Whether it could be bounded, or has gone.
    fn bound(&mut self, raw: i32, held: u64) -> bool {
        let Some(pid) = Pid::from_raw(raw) else { return true };
        let Ok(now) = limits(pid) else { return true };
        // The lowest number that is free counts, not how many there are: what is open lies below, or a gap is left.
        let set = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(held), ..now });
        match set {
            Ok(_) => {
                self.before.entry(raw).or_insert(now.current);
                true
            }
            Err(error) => error == rustix::io::Errno::SRCH,
        }
    }
}

enum Decision {
    Nothing,
    Bound,
    Lift,
    End,
}

fn decide(open: u64, most: u64, bounded: bool) -> Decision {
    match open {
        open if bounded && open * 100 > most * TOO_MUCH => Decision::End,
        open if open >= most => Decision::Bound,
        open if bounded && open * 100 < most * RELIEF => Decision::Lift,
        _ => Decision::Nothing,
    }
}

fn end(held: &[(i32, u64)], open: u64) -> Deed {
    let Some((pid, most)) = held.iter().max_by_key(|(_, held)| *held) else { return Deed::Nothing };
    if let Some(pid) = Pid::from_raw(*pid) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    Deed::Ended { pid: *pid, held: *most, open }
}

/// The limits of a process as they are (prlimit(2) would ask for a privilege that reading /proc does not).
fn limits(pid: Pid) -> std::io::Result<Rlimit> {
    if pid == rustix::process::getpid() {
        return Ok(getrlimit(Resource::Nofile));
    }
    let text = pando_kernel::file::proc_file::text(format!("/proc/{}/limits", pid.as_raw_nonzero()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut words = line.ok_or_else(|| std::io::Error::other("no limit of open files"))?.split_ascii_whitespace();
    let mut number = || words.next().and_then(|word| word.parse().ok());
    Ok(Rlimit { current: number(), maximum: number() })
}

fn processes(groups: &Groups) -> Vec<i32> {
    // In version 1 the whole tree of a guest is in one group; in version 2 its own may have groups below.
    let top = groups.inner().cloned().or_else(|| Some(groups.seat(Controller::Pids)?.group.clone()));
    let mut left: Vec<PathBuf> = top.into_iter().collect();
    let mut found = Vec::new();
    while let Some(group) = left.pop() {
        let text = crate::usage::text(Some(group.join("cgroup.procs")));
        found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
        if found.len() >= MOST {
            break;
        }
        let below = std::fs::read_dir(&group).into_iter().flatten().flatten();
        left.extend(below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
    }
    found.truncate(MOST);
    found
}

fn count(pid: i32) -> u64 {
    let path = Path::new("/proc").join(pid.to_string()).join("fd");
    let size = std::fs::metadata(&path).map_or(0, |found| found.len());
    // Kernels before 6.2 do not say.
    if size > 0 { size } else { std::fs::read_dir(&path).map_or(0, |entries| entries.count() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_too_much_is_bounded_then_ended_and_let_go_with_some_room() {
        assert!(matches!(decide(99, 100, false), Decision::Nothing));
        assert!(matches!(decide(100, 100, false), Decision::Bound));
        assert!(matches!(decide(500, 100, false), Decision::Bound), "first it is bounded, whatever it has");
        assert!(matches!(decide(105, 100, true), Decision::Bound), "new processes may have come");
        assert!(matches!(decide(111, 100, true), Decision::End));
        assert!(matches!(decide(95, 100, true), Decision::Nothing), "not to and fro");
        assert!(matches!(decide(89, 100, true), Decision::Lift));
    }

    #[test]
    fn open_files_are_counted() {
        let own = i32::try_from(std::process::id()).unwrap();
        let before = count(own);
        let files: Vec<_> = (0..50).map(|_| std::fs::File::open("/proc/self/stat").unwrap()).collect();
        assert!(count(own) >= before + 25, "{before}: others of this test close some meanwhile");
        drop(files);
        assert_eq!(count(-1), 0);
        let known = limits(rustix::process::getpid()).unwrap();
        assert!(known.maximum >= known.current || known.maximum.is_none());
    }
}

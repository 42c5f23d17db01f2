//! The files that a set of processes has open, all together: what no group counts.
//!
//! The directory /proc/PID/fd has as its size the number of its entries (since Linux 6.2), so counting costs
//! microseconds a process. A group that has reached what it may have gets no more: each of its processes is bounded to
//! what it has open (RLIMIT_NOFILE, soft), until there is room again. Where the kernel does not let this process bound
//! others, or processes were faster, the one that holds the most is ended. The hard bound that needs no looking is
//! `pids` × `files`.
//!
//! Counting many takes tens of milliseconds, in which who was counted may end and its pid become another's, of the
//! host. So whoever is ended or bounded is first known by more than its pid, and seen in the group after that.

use crate::groups::{Controller, Groups};
use pando_kernel::cgroup::tree::{self, Bounds};
use pando_kernel::mistake::planted;
use pando_kernel::process::{held::HeldProcess, identity::ProcessId, pidfd};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

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

/// What came of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// This was done.
    Done(Deed),
    /// One process is to be ended: see [`Victim::end`].
    TooMany(Victim),
}

/// The process that held the most when all were counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    pid: i32,
    held: u64,
    open: u64,
}

impl Victim {
    /// Ends it, if it is one of the groups' processes still: its pid may have become another's since it was counted.
    pub fn end(self, groups: &Groups) -> Deed {
        let Self { pid, held, open } = self;
        let Ok(process) = pidfd::open(pid).map(|process| HeldProcess::new(pid, process)) else { return Deed::Nothing };
        // It is theirs if they have its pid while it has not ended.
        let is_theirs =
            process.opened(|pid| Ok(processes(groups).contains(&pid))).unwrap_or(false) || planted("pids-are-believed");
        match is_theirs && process.signal(Signal::KILL.as_raw()).is_ok() {
            true => Deed::Ended { pid, held, open },
            false => Deed::Nothing,
        }
    }
}

/// Looks after one set of processes.
#[derive(Debug, Default)]
pub struct OpenFiles {
    /// What those that are bounded might have had before, by pid.
    before: BTreeMap<i32, (ProcessId, Option<u64>)>,
}

impl OpenFiles {
    /// Counts, and does what has to be done for at most `most` to be open.
    pub fn look(&mut self, groups: &Groups, most: u64) -> Look {
        let held: Vec<(i32, u64)> = processes(groups).into_iter().map(|pid| (pid, count(pid))).collect();
        let open: u64 = held.iter().map(|(_, held)| held).sum();
        let decision = decide(open, most, !self.before.is_empty());
        let done = match decision {
            Decision::Nothing => Deed::Nothing,
            Decision::Lift => {
                self.lift();
                Deed::Lifted
            }
            Decision::Bound => {
                let first = self.before.is_empty();
                let all = identified(&held, groups).into_iter().all(|(process, held)| self.bound(process, held));
                match (all, first) {
                    (true, true) => Deed::Bounded { open },
                    (true, false) => Deed::Nothing,
                    (false, _) => return victim(&held, open),
                }
            }
            Decision::End => return victim(&held, open),
        };
        Look::Done(done)
    }

    /// Lifts the bounds that were set.
    pub fn lift(&mut self) {
        for (process, current) in std::mem::take(&mut self.before).into_values() {
            if process.is_there()
                && let Some(pid) = Pid::from_raw(process.pid)
                && let Ok(now) = limits(pid)
            {
                let _ = set(process, Rlimit { current, ..now });
            }
        }
    }

    /// Whether it could be bounded, or has gone.
    fn bound(&mut self, process: ProcessId, held: u64) -> bool {
        let Some(pid) = Pid::from_raw(process.pid) else { return true };
        let Ok(now) = limits(pid) else { return true };
        // The lowest number that is free counts, not how many there are: what is open lies below, or a gap is left.
        match set(process, Rlimit { current: Some(held), ..now }) {
            Ok(()) => {
                let is_known = self.before.get(&process.pid).is_some_and(|(known, _)| *known == process);
                if !is_known {
                    self.before.insert(process.pid, (process, now.current));
                }
                true
            }
            Err(error) => error == rustix::io::Errno::SRCH,
        }
    }
}

/// Gives a process this limit. One that has its pid by now goes on as it was.
fn set(process: ProcessId, limit: Rlimit) -> rustix::io::Result<()> {
    let pid = Pid::from_raw(process.pid);
    let before = prlimit(pid, Resource::Nofile, limit)?;
    if !process.is_there() {
        let _ = prlimit(pid, Resource::Nofile, before);
        return Err(rustix::io::Errno::SRCH);
    }
    Ok(())
}

/// Those that were counted, known by when they started, as far as the groups have them still.
fn identified(held: &[(i32, u64)], groups: &Groups) -> Vec<(ProcessId, u64)> {
    let known: Vec<_> = held.iter().filter_map(|(pid, held)| Some((ProcessId::of(*pid).ok()?, *held))).collect();
    let theirs: HashSet<i32> = processes(groups).into_iter().collect();
    known.into_iter().filter(|(process, _)| theirs.contains(&process.pid)).collect()
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

fn victim(held: &[(i32, u64)], open: u64) -> Look {
    let most = held.iter().max_by_key(|(_, held)| *held);
    most.map_or(Look::Done(Deed::Nothing), |(pid, held)| Look::TooMany(Victim { pid: *pid, held: *held, open }))
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
    top.map(|top| tree::members(&top, "cgroup.procs", Bounds { ids: MOST, ..Bounds::ALL }).ids).unwrap_or_default()
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
    fn who_has_the_pid_of_one_that_was_bounded_or_is_to_be_goes_on_as_it_was() {
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let own = ProcessId::of(other.id().cast_signed()).unwrap();
        let pid = Pid::from_raw(own.pid).unwrap();
        let before = limits(pid).unwrap();
        let former = ProcessId { started: own.started - 1, ..own };
        let mut files = OpenFiles::default();
        let bounded = (files.bound(former, 3), files.before.is_empty(), limits(pid).unwrap());
        files.before.insert(own.pid, (former, Some(3)));
        files.lift();
        let lifted = limits(pid).unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(bounded, (true, true, before));
        assert_eq!(lifted, before);
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

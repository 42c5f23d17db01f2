//! Ceilings: what the kernel grants no one process, or no set of processes, beyond. Without a check, a user who asked
//! for more would learn of it at the next start.

use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// CAP_SYS_RESOURCE, as a bit of `CapEff`.
const SYS_RESOURCE: u32 = 24;

/// The most of what may be granted here; `u64::MAX` where nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    /// The most processes and threads that there can be.
    pub pids: u64,
    /// Open files of a process.
    pub files: u64,
    /// Bytes that a process may lock.
    pub locked: u64,
    /// Bytes of the file system that guests' files lie on.
    pub room: u64,
}

impl Ceilings {
    /// No ceiling: the largest number for each.
    pub const NONE: Self = Self { pids: u64::MAX, files: u64::MAX, locked: u64::MAX, room: u64::MAX };

    /// The ceilings of this machine, for this process.
    pub fn look() -> Self {
        let number = |path: &str| std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        // A process that may not pass over limits can grant no more than it has itself.
        let own = |resource| if may_pass_over(&status) { None } else { getrlimit(resource).maximum };
        let files = number("/proc/sys/fs/nr_open").unwrap_or(u64::MAX);
        Self {
            pids: number("/proc/sys/kernel/pid_max").unwrap_or(u64::MAX),
            files: files.min(own(Resource::Nofile).unwrap_or(u64::MAX)),
            locked: own(Resource::Memlock).unwrap_or(u64::MAX),
            room: u64::MAX,
        }
    }

    /// The same with the room of the file system at a place.
    #[must_use]
    pub fn at(self, place: &Path) -> Self {
        let nearest = place.ancestors().find_map(|path| rustix::fs::statvfs(path).ok());
        Self { room: nearest.map_or(u64::MAX, |found| found.f_blocks.saturating_mul(found.f_frsize)), ..self }
    }
}

fn may_pass_over(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    set.is_some_and(|set| set >> SYS_RESOURCE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_may_pass_over_limits_is_told_by_one_bit() {
        assert!(may_pass_over("Name:\tx\nCapEff:\t0000000001000000\n"));
        assert!(!may_pass_over("CapEff:\t000001fffeffffff\n") && !may_pass_over(""));
    }

    #[test]
    fn every_machine_has_some() {
        let found = Ceilings::look().at(Path::new("/proc/self/not/there"));
        assert!(found.pids < u64::MAX && found.files < u64::MAX, "{found:?}");
    }
}

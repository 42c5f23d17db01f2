//! What the processes of a group are shown of the machine: their part of it, in the words that /proc has for the whole.
//!
//! ```text
//!   limits ──wanted──▶ views: which files differ at all        (nothing limited: none)
//!   groups, limits, the host's own text ──Scene──▶ the file's text
//! ```
//!
//! Each text has the form of the kernel's, since programs of every age read it. Where a limit was taken back since, the
//! host's own text stands.

mod load;
mod memory;
mod processors;

pub use load::{EVERY, Load};

use crate::groups::Groups;
use crate::limits::Limits;
use crate::usage::Usage;
use std::ffi::CStr;
use std::time::Duration;

/// A file whose words are made for the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum View {
    /// /proc/meminfo
    MemInfo,
    /// /proc/swaps
    Swaps,
    /// /proc/cpuinfo
    CpuInfo,
    /// /proc/stat
    Stat,
    /// /proc/loadavg
    LoadAvg,
    /// /proc/uptime
    Uptime,
    /// /sys/devices/system/cpu/online
    Online,
}

impl View {
    /// All files that a guest may see other texts in.
    pub const ALL: [Self; 7] =
        [Self::MemInfo, Self::Swaps, Self::CpuInfo, Self::Stat, Self::LoadAvg, Self::Uptime, Self::Online];

    /// Where it lies, below the root.
    pub fn path(self) -> &'static CStr {
        match self {
            Self::MemInfo => c"proc/meminfo",
            Self::Swaps => c"proc/swaps",
            Self::CpuInfo => c"proc/cpuinfo",
            Self::Stat => c"proc/stat",
            Self::LoadAvg => c"proc/loadavg",
            Self::Uptime => c"proc/uptime",
            Self::Online => c"sys/devices/system/cpu/online",
        }
    }

    /// A name for a file that holds it.
    pub fn name(self) -> &'static str {
        let path = self.path().to_str().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default()
    }
}

/// Which files say something else within these limits than on the host, on a machine with those processors.
pub fn wanted(limits: &Limits, online: &[u32]) -> Vec<View> {
    let memory = limits.memory.limit.is_some() || limits.memory.swap.is_some();
    let fewer = processors::shown(&limits.cpu, online).len() < online.len();
    let is_wanted = |view: &View| match view {
        View::MemInfo | View::Swaps => memory,
        View::CpuInfo | View::Online => fewer,
        // A guest that is shown a part of the machine is not shown the work of others.
        View::Stat | View::LoadAvg | View::Uptime => memory || fewer,
    };
    View::ALL.into_iter().filter(is_wanted).collect()
}

/// What texts are made of.
#[derive(Debug)]
pub struct Scene {
    /// The groups whose processes are shown it.
    pub groups: Groups,
    /// The limits that these processes are granted.
    pub limits: Limits,
    /// The processors of the machine.
    pub online: Vec<u32>,
    /// When they began, since the epoch.
    pub began: Duration,
    /// How many of them wanted to run lately.
    pub load: Load,
    /// Processes in the groups that are not to be counted.
    pub uncounted: u64,
}

impl Scene {
    /// The text of a view, now; an empty one where the host's own cannot be read.
    pub fn text(&self, view: View, now: Duration) -> String {
        let host = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let shown = processors::shown(&self.limits.cpu, &self.online);
        let age = now.saturating_sub(self.began);
        match view {
            View::MemInfo => memory::meminfo(&host("/proc/meminfo"), &self.limits, &memory::Held::look(&self.groups)),
            View::Swaps => {
                memory::swaps(&host("/proc/swaps"), &host("/proc/meminfo"), &self.limits, &Usage::read(&self.groups))
            }
            View::CpuInfo => processors::cpuinfo(&host("/proc/cpuinfo"), &shown),
            View::Online => processors::online(&shown),
            View::Stat => {
                processors::stat(&host("/proc/stat"), &shown, &processors::Times::look(&self.groups), &self.life(age))
            }
            View::Uptime => processors::uptime(&shown, &processors::Times::look(&self.groups), age),
            View::LoadAvg => {
                let tasks = Usage::read(&self.groups).pids.saturating_sub(self.uncounted);
                self.load.text(tasks)
            }
        }
    }

    fn life(&self, age: Duration) -> processors::Life {
        processors::Life { began: self.began, age, running: self.load.running() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(pairs: &[(&str, &str)]) -> Limits {
        Limits::read(pairs.iter().copied()).unwrap()
    }

    #[test]
    fn who_is_not_limited_is_shown_the_host() {
        assert_eq!(wanted(&Limits::default(), &[0, 1]), []);
        assert_eq!(wanted(&limits(&[("pids", "5"), ("cpu.share", "10")]), &[0, 1]), []);
        assert_eq!(
            wanted(&limits(&[("cpu.limit", "1.5")]), &[0, 1]),
            [],
            "two processors are needed for one and a half"
        );
    }

    #[test]
    fn what_is_limited_is_shown() {
        let of_memory = wanted(&limits(&[("memory.limit", "64M")]), &[0, 1]);
        assert!(of_memory.contains(&View::MemInfo) && !of_memory.contains(&View::CpuInfo));
        let of_processors = wanted(&limits(&[("cpu.limit", "1")]), &[0, 1]);
        assert!(of_processors.contains(&View::CpuInfo) && of_processors.contains(&View::Uptime));
        assert!(!of_processors.contains(&View::MemInfo));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = View::ALL.iter().map(|view| view.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), View::ALL.len());
    }
}

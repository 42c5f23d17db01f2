//! A process of an image.

use crate::image::file::{Descriptor, Lease, Watch};
use crate::image::memory::{Area, MemoryRules};
use crate::image::thread::{Thread, Timer, WaitingSignal};
use serde::{Deserialize, Serialize};

/// A process of an image, alive or a zombie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The process's pid inside the pid namespace.
    pub pid: i32,
    /// Its parent's; 0 if that was outside.
    pub parent: i32,
    /// Its process group; 0 if that was made outside.
    pub group: i32,
    /// Its session; 0 if that was made outside.
    pub session: i32,
    /// If it has ended and nobody has asked: the status, as wait(2) gives it. Nothing else of it is left then.
    pub ended: Option<i32>,
    /// Whether a signal has stopped it (SIGSTOP and the like), so that it waits for SIGCONT.
    pub stopped: bool,
    /// Threads, the first one first.
    pub threads: Vec<Thread>,
    /// Its memory, by ascending address.
    pub areas: Vec<Area>,
    /// Where code, data, heap and stack lie.
    pub layout: Layout,
    /// The path of the program that it executes.
    pub executable: String,
    /// What that is in [`Image::contents`](super::Image::contents), where it was deleted or replaced.
    pub deleted_executable: Option<usize>,
    /// What signals do, where that is not the default: the kernel's `struct sigaction` (handler, flags, restorer,
    /// mask).
    pub actions: Vec<(i32, [u64; 4])>,
    /// Interval timers: interval and value, each in seconds and microseconds.
    pub intervals: [[u64; 4]; 3],
    /// The timers of timer_create(2) that it has.
    pub timers: Vec<Timer>,
    /// Signals that wait for the process.
    pub waiting: Vec<WaitingSignal>,
    /// The descriptors of open files that it has.
    pub descriptors: Vec<Descriptor>,
    /// Record locks of fcntl(2): descriptor, kind (`F_RDLCK` or `F_WRLCK`), start, length.
    pub locks: Vec<(i32, i16, i64, i64)>,
    /// What epoll instances watch: their descriptor, the watched one, events, data.
    pub watches: Vec<Watch>,
    /// The path of its working directory.
    pub directory: String,
    /// What that is in [`Image::contents`](super::Image::contents), where it was deleted.
    pub deleted_directory: Option<usize>,
    /// The path of its root directory (chroot(2)); none where that is its mount namespace's.
    pub root: Option<String>,
    /// Leases (`F_SETLEASE`) that it takes.
    pub leases: Vec<Lease>,
    /// The mask of modes of files that it makes.
    pub umask: u32,
    /// Which host names it has, an index into [`Image::host_names`](super::Image::host_names); none if those of the
    /// first process.
    pub host_names: Option<usize>,
    /// Which mount namespace it is in, an index into [`Image::mount_spaces`](super::Image::mount_spaces); none if the
    /// first process's.
    pub mount_space: Option<usize>,
    /// Which ipc namespace it is in, one of [`Image::ipc_spaces`](super::Image::ipc_spaces); none if the first
    /// process's.
    pub ipc_space: Option<usize>,
    /// Which network namespace it is in, an index into [`Image::net_spaces`](super::Image::net_spaces); none if the
    /// first process's.
    pub net_space: Option<usize>,
    /// Which user namespace it is in, an index into [`Image::user_spaces`](super::Image::user_spaces); none if the
    /// first process's.
    pub user_space: Option<usize>,
    /// Which control group it is in, an index into [`ControlGroups::groups`](super::ControlGroups::groups); none if the
    /// guest's own.
    pub control_group: Option<usize>,
    /// Resource limits: number, soft, hard.
    pub limits: Vec<(u32, u64, u64)>,
    /// What it has set by prctl(2).
    pub flags: ProcessFlags,
    /// What it has asked for its memory.
    pub memory_rules: MemoryRules,
    /// What is set of it from the outside.
    pub by_host: ByHost,
}

/// What prctl(2) says of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFlags {
    /// Whether its memory may be looked at (PR_SET_DUMPABLE).
    pub dumpable: bool,
    /// Whether orphans below it become its children (PR_SET_CHILD_SUBREAPER).
    pub subreaper: bool,
    /// Whether it has no huge pages (PR_SET_THP_DISABLE).
    pub small_pages: bool,
}

/// Where the parts of a process's memory lie (`struct prctl_mm_map`, without the auxiliary vector's place).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Code, data, heap, stack, arguments, environment: the first eleven words of `struct prctl_mm_map`.
    pub words: [u64; 11],
    /// The auxiliary vector, as /proc/PID/auxv has it.
    pub auxiliary: Vec<u8>,
}

/// Such settings of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByHost {
    /// `oom_score_adj`, from -1000 to 1000.
    pub memory_shortage: i32,
    /// `coredump_filter`, a bit for each kind of memory.
    pub core_dump: u32,
}

impl Default for ByHost {
    /// Those of a process for which nothing was ever set.
    fn default() -> Self {
        Self { memory_shortage: 0, core_dump: 0x33 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clone::host_settings::restore;
    use crate::image::Image;

    #[test]
    fn what_came_from_elsewhere_is_no_more_lasting_than_the_first_process() {
        // A guest of this process alone, whose clone is to be ended last.
        let (own, mut child) =
            (std::process::id() as i32, std::process::Command::new("sleep").arg("10").spawn().unwrap());
        let first = child.id() as i32;
        let had = ByHost::of(first).unwrap();
        let (kept, lowest) = (
            ByHost { memory_shortage: (had.memory_shortage + 7).min(1000), ..had },
            ByHost { memory_shortage: -1000, ..had },
        );
        kept.replace(had, first).unwrap();
        let process = Process { pid: 1, threads: vec![Thread::default()], by_host: lowest, ..Process::default() };
        let image = Image { processes: vec![process], init: 1, adopted: true, ..Image::default() };
        let restored = restore(&image, own, first);
        let now = ByHost::of(first);
        child.kill().unwrap();
        child.wait().unwrap();
        restored.unwrap();
        assert_eq!(now.unwrap(), kept);
        assert_eq!([lowest.at_least(-300), lowest.at_least(i32::MIN)].map(|one| one.memory_shortage), [-300, -1000]);
        assert_eq!(kept.at_least(-300), kept);
    }

    #[test]
    fn settings_are_read_and_replaced() {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let pid = child.id() as i32;
        let had = ByHost::of(pid).unwrap();
        let other = ByHost { memory_shortage: (had.memory_shortage + 7).min(1000), core_dump: had.core_dump ^ 4 };
        other.replace(had, pid).unwrap();
        let now = ByHost::of(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(now.unwrap(), other);
    }
}

//! What a set of processes uses now, and what it is charged for.

use crate::groups::{Controller, Groups};
use crate::meter::CpuMeter;
use std::path::PathBuf;

/// What is used. What nothing counts here is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Nanoseconds of processor time, ever.
    pub cpu_ns: u64,
    /// Nanoseconds in which processes wanted to run and were held back by their bound, ever.
    pub throttled_ns: u64,
    /// Bytes of memory now, page cache included.
    pub memory: u64,
    /// Bytes of that memory that are page cache.
    pub cache: u64,
    /// Bytes of the page cache that nobody has used for long: what is left without them is the working set.
    pub inactive: u64,
    /// Bytes that lie in swap now.
    pub swap: u64,
    /// How often the kernel killed a process for want of memory within the limit.
    pub oom_kills: u64,
    /// The number of processes and threads now.
    pub pids: u64,
    /// Bytes read from block devices, ever.
    pub read: u64,
    /// Bytes written to block devices, ever.
    pub written: u64,
}

impl Usage {
    /// Reads what is used from the files of the groups.
    pub fn read(groups: &Groups) -> Self {
        let (cpu_ns, throttled_ns) = processor_time(groups);
        let (read, written) = traffic(groups);
        let held = Memory::of(groups);
        Self {
            cpu_ns,
            throttled_ns,
            memory: held.now(),
            cache: held.cache(),
            inactive: held.inactive(),
            swap: held.swap(),
            oom_kills: held.killed(),
            pids: number(groups.file(Controller::Pids, "pids.current")),
            read,
            written,
        }
    }

    /// How many of their processes the kernel has killed for want of memory.
    pub fn oom_kills(groups: &Groups) -> u64 {
        Memory::of(groups).killed()
    }

    /// Bytes of memory that are worked with: without page cache that nobody has used for long.
    pub fn working_set(groups: &Groups) -> u64 {
        let held = Memory::of(groups);
        held.now().saturating_sub(held.inactive())
    }

    /// Bytes of memory alone: one read.
    pub fn memory(groups: &Groups) -> u64 {
        Memory::of(groups).now()
    }
}

/// Nanoseconds that were used, and in which the group was held back.
fn processor_time(groups: &Groups) -> (u64, u64) {
    let used = CpuMeter::open(groups).ok().flatten().and_then(|meter| meter.read().ok()).unwrap_or(0);
    let stat = text(groups.file(Controller::Cpu, "cpu.stat"));
    let throttled = field(&stat, "throttled_time").or(field(&stat, "throttled_usec").map(|micros| micros * 1000));
    (used, throttled.unwrap_or(0))
}

/// Bytes read from block devices and written to them.
fn traffic(groups: &Groups) -> (u64, u64) {
    if groups.is_legacy(Controller::Io) {
        let bytes = text(groups.file(Controller::Io, "blkio.throttle.io_service_bytes_recursive"));
        return (by_word(&bytes, "Read"), by_word(&bytes, "Write"));
    }
    let bytes = text(groups.file(Controller::Io, "io.stat"));
    (assigned(&bytes, "rbytes="), assigned(&bytes, "wbytes="))
}

/// The files of the memory controller, whatever its version.
struct Memory<'a> {
    groups: &'a Groups,
    legacy: bool,
}

impl<'a> Memory<'a> {
    fn of(groups: &'a Groups) -> Self {
        Self { groups, legacy: groups.is_legacy(Controller::Memory) }
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.groups.file(Controller::Memory, name)
    }

    fn stat(&self, key: &str) -> u64 {
        field(&text(self.file("memory.stat")), key).unwrap_or(0)
    }

    fn now(&self) -> u64 {
        number(self.file(if self.legacy { "memory.usage_in_bytes" } else { "memory.current" }))
    }

    fn cache(&self) -> u64 {
        self.stat(if self.legacy { "total_cache" } else { "file" })
    }

    fn inactive(&self) -> u64 {
        self.stat(if self.legacy { "total_inactive_file" } else { "inactive_file" })
    }

    fn swap(&self) -> u64 {
        if self.legacy { self.stat("total_swap") } else { number(self.file("memory.swap.current")) }
    }

    fn killed(&self) -> u64 {
        let file = if self.legacy { "memory.oom_control" } else { "memory.events" };
        field(&text(self.file(file)), "oom_kill").unwrap_or(0)
    }
}

pub(crate) fn text(path: Option<PathBuf>) -> String {
    path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
}

fn number(path: Option<PathBuf>) -> u64 {
    text(path).trim().parse().unwrap_or(0)
}

/// The number in the line `key NUMBER`.
pub(crate) fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The sum over devices of version 1's lines `8:0 Read 4096`.
fn by_word(text: &str, word: &str) -> u64 {
    let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|line| line.len() == 3 && line[1] == word).filter_map(|line| line[2].parse::<u64>().ok()).sum()
}

/// The sum over devices of version 2's words `rbytes=4096`.
fn assigned(text: &str, word: &str) -> u64 {
    text.split_ascii_whitespace().filter_map(|one| one.strip_prefix(word)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::cgroup::Seat;

    fn groups(unified: bool, files: &[(&str, &str)]) -> (tempfile::TempDir, Groups) {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(directory.path().join(name), content).unwrap();
        }
        let groups = Groups::find(|_| Some(Seat { unified, group: directory.path().to_owned() }), None);
        (directory, groups)
    }

    #[test]
    fn version_1_is_read() {
        let (_directory, groups) = groups(
            false,
            &[
                ("cpuacct.usage", "5000\n"),
                ("cpu.stat", "nr_periods 1\nthrottled_time 70\n"),
                ("memory.usage_in_bytes", "4096\n"),
                ("memory.stat", "cache 1\ntotal_cache 2048\ntotal_inactive_file 1024\ntotal_swap 9\n"),
                ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
                ("pids.current", "7\n"),
                ("blkio.throttle.io_service_bytes_recursive", "8:0 Read 10\n8:0 Write 20\n9:0 Read 1\nTotal 31\n"),
            ],
        );
        let expected = Usage {
            cpu_ns: 5000,
            throttled_ns: 70,
            memory: 4096,
            cache: 2048,
            inactive: 1024,
            swap: 9,
            oom_kills: 3,
            pids: 7,
            read: 11,
            written: 20,
        };
        assert_eq!(Usage::read(&groups), expected);
    }

    #[test]
    fn version_2_is_read() {
        let (_directory, groups) = groups(
            true,
            &[
                ("cpu.stat", "usage_usec 5\nnr_periods 1\nthrottled_usec 7\n"),
                ("memory.current", "4096\n"),
                ("memory.stat", "anon 1\nfile 2048\nfile_mapped 5\ninactive_file 1024\n"),
                ("memory.swap.current", "9\n"),
                ("memory.events", "oom 4\noom_kill 3\n"),
                ("pids.current", "7\n"),
                ("io.stat", "8:0 rbytes=10 wbytes=20 rios=1\n9:0 rbytes=1 wbytes=0\n"),
            ],
        );
        let expected = Usage {
            cpu_ns: 5000,
            throttled_ns: 7000,
            memory: 4096,
            cache: 2048,
            inactive: 1024,
            swap: 9,
            oom_kills: 3,
            pids: 7,
            read: 11,
            written: 20,
        };
        assert_eq!(Usage::read(&groups), expected);
        assert_eq!(Usage::read(&Groups::default()), Usage::default());
    }
}

//! What the machine has, and whether it can grant what is asked.

use crate::ceilings::Ceilings;
use crate::limits::Limits;
use crate::quantity::{self, show_size};
use crate::refusal::Refusal;

/// What there is to be shared out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The numbers of the processors that are online.
    pub processors: Vec<u32>,
    /// The size of memory, in bytes.
    pub memory: u64,
    /// The size of swap, in bytes.
    pub swap: u64,
    /// What is granted to nobody beyond.
    pub ceilings: Ceilings,
}

/// What is promised to others already.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Promised {
    /// As a fraction of the machine's processors.
    pub cpu: f64,
    /// The reservations of memory, in bytes.
    pub memory: u64,
}

impl Machine {
    /// This machine, as it is now. What cannot be read counts as one processor and no memory.
    pub fn look() -> Self {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            processors: quantity::list(online.trim()).unwrap_or_else(|_| vec![0]),
            memory: meminfo(&info, "MemTotal"),
            swap: meminfo(&info, "SwapTotal"),
            ceilings: Ceilings::look(),
        }
    }

    /// The number of processors that are online.
    pub fn count(&self) -> u32 {
        u32::try_from(self.processors.len()).unwrap_or(u32::MAX).max(1)
    }

    /// Refuses what this machine cannot grant, even if nobody else wanted anything; the answer warns of what will not
    /// be as it seems.
    pub fn bears(&self, limits: &Limits) -> Result<Vec<String>, Refusal> {
        self.bears_processors(limits)?;
        self.bears_memory(limits)?;
        self.bears_counts(limits)?;
        if let (Some(inodes), None) = (limits.disk.inodes, limits.disk.size) {
            return Err(Refusal::new(
                "disk.inodes",
                inodes.to_string(),
                "files are counted on a disk of their own; set disk.size as well",
            ));
        }
        let count = f64::from(self.count());
        let mut warnings = Vec::new();
        if let Some(reserve) = limits.cpu.reserve.filter(|reserve| reserve * count > 1.0 + 1e-9) {
            warnings.push(format!(
                "a reservation of {:.0}% is {:.2} of {count} processors: a program with a single thread can use only {:.0}%",
                reserve * 100.0,
                reserve * count,
                100.0 / count
            ));
        }
        if limits.memory.swap.is_some_and(|swap| swap > self.swap) {
            warnings.push(format!("this machine has {} of swap, less than the limit", show_size(self.swap)));
        }
        Ok(warnings)
    }

    fn bears_processors(&self, limits: &Limits) -> Result<(), Refusal> {
        let (cpu, count) = (&limits.cpu, f64::from(self.count()));
        if let Some(limit) = cpu.limit.filter(|limit| *limit > count) {
            return Err(Refusal::new("cpu.limit", limit.to_string(), format!("this machine has {count} processors")));
        }
        if let Some(missing) = cpu.cpus.iter().flatten().find(|number| !self.processors.contains(number)) {
            let why =
                format!("this machine has no processor {missing}; it has {}", quantity::show_list(&self.processors));
            return Err(Refusal::new("cpu.cpus", quantity::show_list(cpu.cpus.as_deref().unwrap_or_default()), why));
        }
        let Some(reserve) = cpu.reserve else { return Ok(()) };
        let room = cpu.cpus.as_ref().map_or(count, |cpus| cpus.len() as f64).min(cpu.limit.unwrap_or(count));
        if reserve * count > room + 1e-9 {
            let why = format!(
                "that is {:.2} processors, and cpu.limit or cpu.cpus leaves {room}; raise them or reserve less",
                reserve * count
            );
            return Err(Refusal::new("cpu.reserve", percent(reserve), why));
        }
        Ok(())
    }

    fn bears_memory(&self, limits: &Limits) -> Result<(), Refusal> {
        let memory = &limits.memory;
        for (key, wanted) in [
            ("memory.limit", memory.limit),
            ("memory.reserve", memory.reserve),
            ("memory.locked", memory.locked),
            ("memory.sysv", memory.sysv),
            ("memory.shm", memory.shm),
        ] {
            if let Some(bytes) = wanted.filter(|bytes| *bytes > self.memory) {
                let why = format!("this machine has {} of memory", show_size(self.memory));
                return Err(Refusal::new(key, show_size(bytes), why));
            }
        }
        match (memory.reserve, memory.limit) {
            (Some(reserve), Some(limit)) if reserve > limit => {
                let why = format!("that is more than memory.limit allows, {}", show_size(limit));
                Err(Refusal::new("memory.reserve", show_size(reserve), why))
            }
            _ => Ok(()),
        }
    }

    fn bears_counts(&self, limits: &Limits) -> Result<(), Refusal> {
        let ceilings = &self.ceilings;
        for (key, wanted, most, whose) in [
            ("pids", limits.pids, ceilings.pids, "this machine numbers its processes (kernel.pid_max) up to"),
            ("files", limits.files.each, ceilings.files, "here a process may have open (fs.nr_open, RLIMIT_NOFILE)"),
        ] {
            if let Some(count) = wanted.filter(|count| *count > most) {
                return Err(Refusal::new(key, count.to_string(), format!("{whose} {most}")));
            }
        }
        for (key, wanted, most, whose) in [
            ("memory.locked", limits.memory.locked, ceilings.locked, "here a process may lock (RLIMIT_MEMLOCK)"),
            ("disk.size", limits.disk.size, ceilings.room, "the file system that guests lie on has"),
        ] {
            if let Some(bytes) = wanted.filter(|bytes| *bytes > most) {
                return Err(Refusal::new(key, show_size(bytes), format!("{whose} {}", show_size(most))));
            }
        }
        Ok(())
    }

    /// Refuses what cannot be kept beside what is promised to others.
    pub fn grants(&self, limits: &Limits, promised: Promised) -> Result<(), Refusal> {
        if let Some(reserve) = limits.cpu.reserve.filter(|reserve| reserve + promised.cpu > 1.0 + 1e-9) {
            let why = format!(
                "{} of the machine's processors are reserved for others that run; at most {} are left",
                percent(promised.cpu),
                percent((1.0 - promised.cpu).max(0.0))
            );
            return Err(Refusal::new("cpu.reserve", percent(reserve), why));
        }
        if let Some(reserve) = limits.memory.reserve.filter(|reserve| reserve + promised.memory > self.memory) {
            let why = format!(
                "{} of {} are reserved for others that run",
                show_size(promised.memory),
                show_size(self.memory)
            );
            return Err(Refusal::new("memory.reserve", show_size(reserve), why));
        }
        Ok(())
    }
}

/// What is free at a moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Memory that could be had without swapping.
    pub memory: u64,
    /// Bytes of swap that are free.
    pub swap: u64,
    /// How much swap there is, which may change while the machine runs.
    pub swap_size: u64,
}

impl Free {
    /// Reads from /proc/meminfo what is free now.
    pub fn look() -> Self {
        Self::read(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    /// From the text of /proc/meminfo.
    pub(crate) fn read(text: &str) -> Self {
        Self {
            memory: meminfo(text, "MemAvailable"),
            swap: meminfo(text, "SwapFree"),
            swap_size: meminfo(text, "SwapTotal"),
        }
    }
}

fn percent(part: f64) -> String {
    let hundredths = (part * 10_000.0).round() / 100.0;
    format!("{hundredths}%")
}

/// A line of /proc/meminfo, in bytes.
pub(crate) fn meminfo(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let ceilings = Ceilings { pids: 4096, files: 1024, locked: 8 << 20, room: 1 << 30 };
        Machine { processors: vec![0, 1], memory: 1 << 30, swap: 0, ceilings }
    }

    fn read(pairs: &[(&str, &str)]) -> Limits {
        Limits::read(pairs.iter().copied()).unwrap()
    }

    #[test]
    fn free_memory_is_read_in_bytes() {
        let text = "MemTotal:       10 kB\nMemAvailable:   5 kB\nSwapTotal: 4 kB\nSwapFree: 3 kB\n";
        assert_eq!(Free::read(text), Free { memory: 5120, swap: 3072, swap_size: 4096 });
        assert_eq!(Free::read(""), Free::default());
    }

    #[test]
    fn over_capacity_is_refused_by_name() {
        for (pairs, key) in [
            (&[("cpu.limit", "3")][..], "cpu.limit"),
            (&[("cpu.cpus", "0,7")], "cpu.cpus"),
            (&[("cpu.reserve", "60%"), ("cpu.cpus", "1")], "cpu.reserve"),
            (&[("cpu.reserve", "60%"), ("cpu.limit", "1")], "cpu.reserve"),
            (&[("memory.limit", "2G")], "memory.limit"),
            (&[("memory.reserve", "2G")], "memory.reserve"),
            (&[("memory.reserve", "64M"), ("memory.limit", "32M")], "memory.reserve"),
            (&[("disk.inodes", "1000")], "disk.inodes"),
            (&[("disk.size", "2G")], "disk.size"),
            (&[("memory.locked", "9M")], "memory.locked"),
            (&[("memory.shm", "2G")], "memory.shm"),
            (&[("memory.sysv", "2G")], "memory.sysv"),
            (&[("pids", "5000")], "pids"),
            (&[("files", "2000")], "files"),
        ] {
            assert_eq!(machine().bears(&read(pairs)).unwrap_err().key, key, "{pairs:?}");
        }
    }

    #[test]
    fn a_reservation_beyond_one_processor_is_warned_about() {
        assert_eq!(machine().bears(&read(&[("cpu.reserve", "50%")])), Ok(vec![]));
        let warnings = machine().bears(&read(&[("cpu.reserve", "75%")])).unwrap();
        assert!(warnings[0].contains("1.50 of 2") && warnings[0].contains("50%"), "{warnings:?}");
    }

    #[test]
    fn what_others_were_promised_cannot_be_promised_again() {
        let quarter = read(&[("cpu.reserve", "25%"), ("memory.reserve", "256M")]);
        assert_eq!(machine().grants(&quarter, Promised { cpu: 0.75, memory: 768 << 20 }), Ok(()));
        let refused = machine().grants(&quarter, Promised { cpu: 0.8, memory: 0 }).unwrap_err();
        assert!(refused.to_string().contains("80%") && refused.to_string().contains("20%"), "{refused}");
        let refused = machine().grants(&quarter, Promised { cpu: 0.0, memory: 800 << 20 }).unwrap_err();
        assert_eq!(refused.key, "memory.reserve");
    }
}

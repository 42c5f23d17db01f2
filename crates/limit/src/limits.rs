//! What is granted and what is forbidden, as plain data.

use crate::quantity;
use crate::refusal::Refusal;

/// The share of a group that asked for none.
pub const DEFAULT_SHARE: u64 = 100;

/// Everything that can be granted to a set of processes, or kept from them. Nothing set: nothing is limited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Processor time: what is reserved, shared, and bounded.
    pub cpu: Cpu,
    /// Memory: what is reserved, and what it is bounded by.
    pub memory: Memory,
    /// How many processes and threads there may be.
    pub pids: Option<u64>,
    /// Open files: the most of one process, and of all.
    pub files: Files,
    /// Traffic with the disk: its weight and its bounds.
    pub io: Io,
    /// Room on the disk: bytes and files.
    pub disk: Disk,
}

/// Processor time, after the token buckets of Linux-VServer: what is reserved is had whenever it is wanted; what is not
/// reserved or not used is split in proportion to the shares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cpu {
    /// The part of the whole machine that is guaranteed, as a fraction of 1. Without a share it is an upper bound too.
    pub reserve: Option<f64>,
    /// The weight in what is left over.
    pub share: Option<u64>,
    /// The hard upper bound, in processors.
    pub limit: Option<f64>,
    /// The processors that may be used.
    pub cpus: Option<Vec<u32>>,
}

impl Cpu {
    /// The weight in what is left over: nothing for a bare reservation, the usual share for a group that asked for
    /// neither.
    pub fn effective_share(&self) -> u64 {
        match (self.reserve, self.share) {
            (_, Some(share)) => share,
            (Some(_), None) => 0,
            (None, None) => DEFAULT_SHARE,
        }
    }

    /// The upper bound on a machine of `processors`, in processors: the lesser of the limit and, without a share, the
    /// reservation.
    pub fn bound(&self, processors: u32) -> Option<f64> {
        let capped = match (self.reserve, self.share) {
            (Some(reserve), None) => Some(reserve * f64::from(processors)),
            _ => None,
        };
        match (self.limit, capped) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// Bounds and reservations of memory, all in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The most that all processes together may hold, their page cache included.
    pub limit: Option<u64>,
    /// What is not taken from them while they use it.
    pub reserve: Option<u64>,
    /// The most that may lie in swap; see [`Memory::swap_bound`] for what holds where nothing is said.
    pub swap: Option<u64>,
    /// The most that one process may lock (RLIMIT_MEMLOCK).
    pub locked: Option<u64>,
    /// The most private writable memory of one process (RLIMIT_DATA).
    pub anonymous: Option<u64>,
    /// The largest address space of one process (RLIMIT_AS).
    pub virtual_size: Option<u64>,
    /// The most System V shared memory (kernel.shmall of the IPC namespace).
    pub sysv: Option<u64>,
    /// The size of /dev/shm, in bytes.
    pub shm: Option<u64>,
}

impl Memory {
    /// The most that may lie in swap, in bytes. A guest whose memory is bounded, and of whose swap nothing is said, may
    /// have as much again in swap: without a bound it could fill the swap of the whole machine.
    pub fn swap_bound(&self) -> Option<u64> {
        self.swap.or(self.limit)
    }
}

/// Bounds of open files, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The most that one process may have open (RLIMIT_NOFILE).
    pub each: Option<u64>,
    /// The most that all together may have open: no kernel counts them, a governor looks after it.
    pub total: Option<u64>,
}

/// Traffic with the block device that the files lie on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// The weight among those that wait for the device, 1 to 1000; 100 is usual.
    pub weight: Option<u64>,
    /// The most bytes a second that are read.
    pub read_rate: Option<u64>,
    /// The most bytes a second that are written.
    pub write_rate: Option<u64>,
    /// The most reads a second (operations).
    pub read_ops: Option<u64>,
    /// The most writes a second (operations).
    pub write_ops: Option<u64>,
}

impl Io {
    /// Whether any of the bounds by device is set.
    pub fn is_throttled(&self) -> bool {
        self.read_rate.or(self.write_rate).or(self.read_ops).or(self.write_ops).is_some()
    }
}

/// Bounds of room on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The most bytes that the files may take.
    pub size: Option<u64>,
    /// The most files and directories there may be.
    pub inodes: Option<u64>,
}

/// The least memory that a process can start in.
const LEAST_MEMORY: u64 = 1 << 20;

/// The smallest disk that a file system with a journal fits on.
const LEAST_DISK: u64 = 16 << 20;

impl Limits {
    /// Reads limits from pairs of a key and a text.
    pub fn read<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Refusal> {
        let mut limits = Self::default();
        for (key, text) in pairs {
            limits.set(key, text.trim()).map_err(|why| Refusal::new(key, text, why))?;
        }
        Ok(limits)
    }

    fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let at_least = |least: u64| {
            quantity::size(text).and_then(|bytes| {
                if bytes < least {
                    Err(format!("it must be {} at least", quantity::show_size(least)))
                } else {
                    Ok(Some(bytes))
                }
            })
        };
        match key {
            "cpu.reserve" => self.cpu.reserve = Some(quantity::part(text)?),
            "cpu.share" => self.cpu.share = Some(quantity::whole(text, 1, 10_000)?),
            "cpu.limit" => self.cpu.limit = Some(quantity::processors(text)?),
            "cpu.cpus" => self.cpu.cpus = Some(quantity::list(text)?),
            "memory.limit" => self.memory.limit = at_least(LEAST_MEMORY)?,
            "memory.reserve" => self.memory.reserve = at_least(1)?,
            "memory.swap" => self.memory.swap = at_least(0)?,
            "memory.locked" => self.memory.locked = at_least(0)?,
            "memory.anonymous" => self.memory.anonymous = at_least(LEAST_MEMORY)?,
            "memory.virtual_size" => self.memory.virtual_size = at_least(LEAST_MEMORY)?,
            "memory.sysv" => self.memory.sysv = at_least(0)?,
            "memory.shm" => self.memory.shm = at_least(4096)?,
            "pids" => self.pids = Some(quantity::count(text, 1)?),
            "files" => self.files.each = Some(quantity::count(text, 16)?),
            "files_total" => self.files.total = Some(quantity::count(text, 16)?),
            "io.weight" => self.io.weight = Some(quantity::whole(text, 1, 1000)?),
            "io.read_rate" => self.io.read_rate = at_least(4096)?,
            "io.write_rate" => self.io.write_rate = at_least(4096)?,
            "io.read_ops" => self.io.read_ops = Some(quantity::count(text, 1)?),
            "io.write_ops" => self.io.write_ops = Some(quantity::count(text, 1)?),
            "disk.size" => self.disk.size = at_least(LEAST_DISK)?,
            "disk.inodes" => self.disk.inodes = Some(quantity::count(text, 16)?),
            _ => return Err("there is no such limit".to_owned()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_into_its_field() {
        let pairs = [
            ("cpu.reserve", "25%"),
            ("cpu.share", "300"),
            ("cpu.limit", "1.5"),
            ("cpu.cpus", "0-1"),
            ("memory.limit", "512M"),
            ("memory.reserve", "64M"),
            ("memory.swap", "0"),
            ("memory.locked", "1M"),
            ("memory.anonymous", "100M"),
            ("memory.virtual_size", "1G"),
            ("memory.sysv", "2M"),
            ("memory.shm", "8M"),
            ("pids", "200"),
            ("files", "1k"),
            ("files_total", "5k"),
            ("io.weight", "300"),
            ("io.read_rate", "10M"),
            ("io.write_rate", "5M"),
            ("io.read_ops", "100"),
            ("io.write_ops", "50"),
            ("disk.size", "2G"),
            ("disk.inodes", "200k"),
        ];
        let limits = Limits::read(pairs).unwrap();
        assert_eq!((limits.cpu.reserve, limits.cpu.cpus.as_deref()), (Some(0.25), Some(&[0, 1][..])));
        assert_eq!((limits.memory.limit, limits.memory.swap), (Some(512 << 20), Some(0)));
        assert_eq!((limits.pids, limits.files.each, limits.io.write_ops), (Some(200), Some(1000), Some(50)));
        assert_eq!(limits.files.total, Some(5000));
        assert_eq!((limits.disk.size, limits.disk.inodes), (Some(2 << 30), Some(200_000)));
    }

    #[test]
    fn refusals_name_the_key_and_the_value() {
        for (key, value) in [
            ("memory.limit", "0"),
            ("memory.limit", "-5M"),
            ("cpu.share", "0"),
            ("pids", "0"),
            ("io.weight", "0"),
            ("disk.size", "1"),
            ("cpu.colour", "red"),
        ] {
            let text = Limits::read([(key, value)]).unwrap_err().to_string();
            assert!(text.contains(key) && text.contains(&format!("'{value}'")), "{text}");
        }
    }

    #[test]
    fn a_bare_reservation_is_a_bound() {
        let cpu = |pairs: &[(&str, &str)]| Limits::read(pairs.iter().copied()).unwrap().cpu;
        let bare = cpu(&[("cpu.reserve", "25%")]);
        assert_eq!((bare.effective_share(), bare.bound(4)), (0, Some(1.0)));
        let both = cpu(&[("cpu.reserve", "25%"), ("cpu.share", "50")]);
        assert_eq!((both.effective_share(), both.bound(4)), (50, None));
        let limited = cpu(&[("cpu.reserve", "25%"), ("cpu.limit", "0.5")]);
        assert_eq!(limited.bound(4), Some(0.5));
        assert_eq!(Cpu::default().effective_share(), DEFAULT_SHARE);
    }
}

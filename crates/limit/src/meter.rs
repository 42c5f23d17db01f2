//! A group's processor time, read again and again: the file is opened once.

use crate::entitlement::Scale;
use crate::groups::{Controller, Groups};
use pando_kernel::{CallError, Context};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Reads the processor time that a group has used.
#[derive(Debug)]
pub struct CpuMeter {
    file: File,
    unified: bool,
}

impl CpuMeter {
    /// The meter of groups. `None` where nothing counts processor time.
    pub fn open(groups: &Groups) -> Result<Option<Self>, CallError> {
        // The controller of version 2 counts in microseconds, `cpuacct` of version 1 in nanoseconds.
        let (path, unified) = match (groups.account(), groups.seat(Controller::Cpu)) {
            (Some(group), _) => (group.join("cpuacct.usage"), false),
            (None, Some(seat)) if seat.unified => (seat.group.join("cpu.stat"), true),
            _ => return Ok(None),
        };
        let file = File::open(&path).context(|| format!("opening {}", path.display()))?;
        Ok(Some(Self { file, unified }))
    }

    /// The processor time used so far, in nanoseconds.
    pub fn read(&self) -> std::io::Result<u64> {
        let mut bytes = [0; 256];
        let length = self.file.read_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(&bytes[..length]);
        let number =
            if self.unified { microseconds(&text).map(|micros| micros * 1000) } else { text.trim().parse().ok() };
        number.ok_or_else(|| std::io::Error::other("the kernel's count of processor time cannot be read"))
    }
}

fn microseconds(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
}

/// Gives groups a weight of processor time, as [`Scale`](crate::entitlement::Scale) has it.
pub fn set_weight(groups: &Groups, weight: u64) -> Result<(), CallError> {
    let file = if groups.is_legacy(Controller::Cpu) { "cpu.shares" } else { "cpu.weight" };
    let Some(path) = groups.file(Controller::Cpu, file) else { return Ok(()) };
    crate::apply::write(&path, &weight.to_string()).context(|| format!("writing {weight} to {}", path.display()))
}

/// How heavy all guests together are beside one process of the host, where that has a group of the usual weight: enough
/// that a host's job cannot take a reservation away, and not so much that it could not run.
const FIELD_WEIGHT: u64 = 16;

/// Gives the groups that all guests are below their weight.
pub fn weigh_field(groups: &Groups) -> Result<(), CallError> {
    let scale = if groups.is_legacy(Controller::Cpu) { Scale::Shares } else { Scale::Weight };
    set_weight(groups, scale.usual() * FIELD_WEIGHT)
}

/// The weight that groups have now.
pub fn weight(groups: &Groups) -> Option<u64> {
    let file = if groups.is_legacy(Controller::Cpu) { "cpu.shares" } else { "cpu.weight" };
    std::fs::read_to_string(groups.file(Controller::Cpu, file)?).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::cgroup::Seat;

    #[test]
    fn both_versions_are_read_in_nanoseconds() {
        let directory = tempfile::tempdir().unwrap();
        let group = directory.path().to_owned();
        std::fs::write(group.join("cpuacct.usage"), "1234567\n").unwrap();
        std::fs::write(group.join("cpu.stat"), "usage_usec 42\nuser_usec 40\n").unwrap();
        std::fs::write(group.join("cpu.shares"), "1024").unwrap();
        let old = |_: &str| Some(Seat { unified: false, group: group.clone() });
        let new = |_: &str| Some(Seat { unified: true, group: group.clone() });
        let read = |groups: &Groups| CpuMeter::open(groups).unwrap().unwrap().read().unwrap();
        assert_eq!((read(&Groups::find(old, None)), read(&Groups::find(new, None))), (1_234_567, 42_000));
        set_weight(&Groups::find(old, None), 2048).unwrap();
        assert_eq!(weight(&Groups::find(old, None)), Some(2048));
        assert!(CpuMeter::open(&Groups::default()).unwrap().is_none());
    }
}

//! Memory taken back from a set of processes, to swap and to the disk.

use crate::apply::write;
use crate::groups::{Controller, Groups};
use crate::usage::Usage;
use pando_kernel::{CallError, Context};
use std::io;
use std::path::Path;

/// Takes back as much of `bytes` as can be had. Blocking.
///
/// Version 2 has a file for that (memory.reclaim, since Linux 5.19). In version 1 the limit is lowered for a moment:
/// what cannot be taken is left.
pub fn reclaim(groups: &Groups, bytes: u64) -> Result<(), CallError> {
    let file = |name: &str| groups.file(Controller::Memory, name);
    if groups.is_legacy(Controller::Memory) {
        let (Some(limit), Some(usage)) = (file("memory.limit_in_bytes"), file("memory.usage_in_bytes")) else {
            return Ok(());
        };
        return lower(&limit, &usage, bytes).context(|| format!("taking {bytes} bytes by {}", limit.display()));
    }
    let Some(file) = file("memory.reclaim") else { return Ok(()) };
    match write(&file, &bytes.to_string()) {
        // Less than that could be had.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        done => done.context(|| format!("writing {bytes} to {}", file.display())),
    }
}

/// Takes back all that can be had without anybody's noticing but by its speed, page cache first; how many bytes that
/// was. Blocking.
///
/// Version 1 has a file for that (memory.force_empty), which lowers no limit: nobody is killed for it. Where memory is
/// not counted for groups nothing is taken.
pub fn reclaim_all(groups: &Groups) -> Result<u64, CallError> {
    let before = Usage::memory(groups);
    if groups.is_legacy(Controller::Memory) {
        let Some(file) = groups.file(Controller::Memory, "memory.force_empty") else { return Ok(0) };
        unless_busy(write(&file, "0")).context(|| format!("writing to {}", file.display()))?;
    } else {
        let Some(file) = groups.file(Controller::Memory, "memory.reclaim") else { return Ok(0) };
        let what = || format!("writing to {}", file.display());
        match unless_busy(write(&file, &format!("{before} swappiness=0"))) {
            // Before Linux 6.9 the kernel decides itself what goes first.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            done => done.context(what)?,
        }
        let left = Usage::memory(groups);
        if left > 0 {
            unless_busy(write(&file, &left.to_string())).context(what)?;
        }
    }
    Ok(before.saturating_sub(Usage::memory(groups)))
}

/// Less could be had than was asked for.
fn unless_busy(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy) => Ok(()),
        done => done,
    }
}

fn lower(limit: &Path, usage: &Path, bytes: u64) -> io::Result<()> {
    let number = |path: &Path| -> io::Result<u64> {
        std::fs::read_to_string(path)?
            .trim()
            .parse()
            .map_err(|_| io::Error::other("the kernel's number cannot be read"))
    };
    let (before, used) = (number(limit)?, number(usage)?);
    let lowered = write(limit, &used.saturating_sub(bytes).to_string());
    write(limit, &before.to_string())?;
    match lowered {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::cgroup::Seat;

    #[test]
    fn version_1_gets_its_limit_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("memory.limit_in_bytes"), "9000").unwrap();
        std::fs::write(path("memory.usage_in_bytes"), "5000").unwrap();
        let groups = Groups::find(|_| Some(Seat { unified: false, group: directory.path().to_owned() }), None);
        reclaim(&groups, 1000).unwrap();
        assert_eq!(std::fs::read_to_string(path("memory.limit_in_bytes")).unwrap(), "9000");
    }

    #[test]
    fn all_is_asked_for_in_the_words_of_each_version() {
        let asked = |unified: bool, usage: &str, file: &str| {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join(usage), "7000").unwrap();
            std::fs::write(directory.path().join(file), "").unwrap();
            let groups = Groups::find(|_| Some(Seat { unified, group: directory.path().to_owned() }), None);
            assert_eq!(reclaim_all(&groups).unwrap(), 0, "these files take nothing");
            std::fs::read_to_string(directory.path().join(file)).unwrap()
        };
        assert_eq!(asked(false, "memory.usage_in_bytes", "memory.force_empty"), "0");
        assert!(asked(true, "memory.current", "memory.reclaim").starts_with("7000"));
        let none = Groups::find(|_| None, None);
        assert_eq!(reclaim_all(&none).unwrap(), 0);
    }

    #[test]
    fn version_2_is_told_how_much() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("memory.reclaim"), "").unwrap();
        let groups = Groups::find(|_| Some(Seat { unified: true, group: directory.path().to_owned() }), None);
        reclaim(&groups, 1000).unwrap();
        assert_eq!(std::fs::read_to_string(directory.path().join("memory.reclaim")).unwrap(), "1000");
    }
}

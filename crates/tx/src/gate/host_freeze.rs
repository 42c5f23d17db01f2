//! The host's other processes stand still: every control group but this process's own and those of transactions, for
//! the milliseconds of the last look and of applying.
//!
//! That takes a machine all of whose processes are in groups of version 2, as systemd has it: who is in the root group
//! cannot be frozen. Whoever is in this process's own group, such as other programs of the same session, does not stand
//! still; he waits by permission events, as far as these hold him. A transaction's processes see the live tree through
//! its view, and compare when it commits.

use crate::state::overlay_part::OverlayPart;
use pando_kernel::cgroup::Hierarchies;
use pando_kernel::cgroup::timed_freeze::TimedFreeze;
use pando_kernel::file::proc_file;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the groups of transactions are called, whosever they are.
const TRANSACTIONS: &str = "pando-tx";

/// How often it is looked whether all stand still.
const PAUSE: Duration = Duration::from_micros(100);

/// Of a kernel thread (PF_KTHREAD in linux/sched.h), which touches nothing of its own accord.
const KERNEL_THREAD: u32 = 0x0020_0000;

/// A FUSE file system, whose server is a process that would stand still.
const FUSE: i64 = 0x6573_5546;

/// Why the host's processes cannot stand still; nothing if they can.
pub(super) fn obstacle() -> Option<String> {
    let root = match unified() {
        Ok(root) => root,
        Err(error) => return Some(format!("control groups of version 2 are not to be had: {error}")),
    };
    if own_group(&root).is_none() {
        return Some("this process is in the root group itself, with all that it was started by".into());
    }
    match ungrouped(&root) {
        Ok(0) => None,
        Ok(1) => Some("a process is in the root group, where none can be frozen".into()),
        Ok(count) => Some(format!("{count} processes are in the root group, where none can be frozen")),
        Err(error) => Some(format!("the root group cannot be read: {error}")),
    }
}

/// Has all others stand still, for so long at most; nothing where a part lies on what one of them serves.
pub(super) fn freeze(parts: &[&OverlayPart], longest: Duration) -> io::Result<Option<TimedFreeze>> {
    let is_served = |part: &&OverlayPart| rustix::fs::statfs(&part.live).is_ok_and(|found| found.f_type == FUSE);
    if parts.iter().any(is_served) {
        return Ok(None);
    }
    let root = unified()?;
    let own = own_group(&root).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let mut groups = Vec::new();
    gather(&root, &own, &mut groups)?;
    let frozen = TimedFreeze::begin(&groups, longest)?;
    while !frozen.is_complete() && !frozen.has_lapsed() {
        std::thread::sleep(PAUSE);
    }
    Ok(Some(frozen))
}

/// The highest groups below `at` that `own` is not in. What stands still already is nobody's to let go but theirs who
/// froze it.
fn gather(at: &Path, own: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(at)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() || entry.file_name().to_string_lossy().starts_with(TRANSACTIONS) {
            continue;
        }
        let group = entry.path();
        if own.starts_with(&group) {
            gather(&group, own, into)?;
        } else if is(&group, "populated 1") && !is(&group, "frozen 1") {
            into.push(group);
        }
    }
    Ok(())
}

/// What cgroup.events says of a group.
fn is(group: &Path, line: &str) -> bool {
    std::fs::read_to_string(group.join("cgroup.events")).is_ok_and(|text| text.lines().any(|one| one == line))
}

fn unified() -> io::Result<PathBuf> {
    let found = Hierarchies::detect().map_err(|error| error.source)?;
    found.unified.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "none is mounted"))
}

/// This process's group, unless that is the root.
fn own_group(root: &Path) -> Option<PathBuf> {
    let text = proc_file::text("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    (!path.is_empty()).then(|| root.join(path))
}

/// How many processes are in no group.
fn ungrouped(root: &Path) -> io::Result<usize> {
    let text = std::fs::read_to_string(root.join("cgroup.procs"))?;
    Ok(text.lines().filter(|pid| !is_kernel_thread(pid)).count())
}

/// Whether a process is one of the kernel's, or has gone.
fn is_kernel_thread(pid: &str) -> bool {
    /// Where the flags stand behind the name, which may hold anything, and its closing bracket.
    const FLAGS: usize = 6;
    let Ok(text) = proc_file::text(format!("/proc/{pid}/stat")) else { return true };
    let flags = text.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(FLAGS)?.parse::<u32>().ok());
    flags.is_none_or(|flags| flags & KERNEL_THREAD != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_groups_beside_the_own_are_frozen() {
        let directory = tempfile::tempdir().unwrap();
        let group = |path: &str, events: &str| {
            std::fs::create_dir_all(directory.path().join(path)).unwrap();
            std::fs::write(directory.path().join(path).join("cgroup.events"), events).unwrap();
        };
        group("user", "populated 1\nfrozen 0\n");
        group("user/own", "populated 1\nfrozen 0\n");
        group("user/other", "populated 1\nfrozen 0\n");
        group("system", "populated 1\nfrozen 0\n");
        group("system/inner", "populated 1\nfrozen 0\n");
        group("empty", "populated 0\nfrozen 0\n");
        group("paused", "populated 1\nfrozen 1\n");
        group("pando-tx-5", "populated 1\nfrozen 0\n");
        let mut groups = Vec::new();
        gather(directory.path(), &directory.path().join("user/own"), &mut groups).unwrap();
        groups.sort();
        assert_eq!(groups, ["system", "user/other"].map(|path| directory.path().join(path)));
    }

    #[test]
    fn threads_of_the_kernel_are_told_from_processes() {
        assert!(!is_kernel_thread(&std::process::id().to_string()));
        assert!(is_kernel_thread("0"), "there is none of that number");
    }
}

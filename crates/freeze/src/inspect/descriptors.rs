//! Descriptors of processes, as /proc shows them.

use crate::inspect::proc_file::{self, Lines};
use pando_kernel::{CallError, Context};
use rustix::fs::{FileType, OFlags, Stat};

/// A descriptor as it was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) number: i32,
    pub(crate) path: String,
    pub(crate) target: String,
    pub(crate) stat: Stat,
    pub(crate) info: String,
    pub(crate) lines: Lines,
}

impl Found {
    /// The path of the descriptor's file in /proc/PID/fdinfo.
    pub(crate) fn info_path(&self) -> String {
        self.path.replacen("/fd/", "/fdinfo/", 1)
    }
}

/// A file of the outside that a clone gets in its own version: the device and the inode that the frozen one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The device of the open file, as fstat(2) has it.
    pub device: u64,
    /// The inode of the open file, as fstat(2) has it.
    pub inode: u64,
}

/// Every descriptor of a process.
pub(crate) fn list(outer: i32) -> Result<Vec<Found>, CallError> {
    numbers(outer)?.into_iter().map(|number| one(outer, number)).collect()
}

/// Their numbers, in ascending order.
pub(crate) fn numbers(outer: i32) -> Result<Vec<i32>, CallError> {
    let directory = format!("/proc/{outer}/fd");
    let entries = std::fs::read_dir(&directory).context(|| format!("reading {directory}"))?;
    let mut numbers: Vec<i32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// One descriptor of a process.
pub(crate) fn one(outer: i32, number: i32) -> Result<Found, CallError> {
    let path = format!("/proc/{outer}/fd/{number}");
    let info = proc_file::text(outer, &format!("fdinfo/{number}"))?;
    Ok(Found {
        number,
        target: proc_file::link(outer, &format!("fd/{number}"))?,
        stat: rustix::fs::stat(&path).context(|| format!("looking at {path}"))?,
        lines: Lines::parse(&info),
        path,
        info,
    })
}

/// Whether a descriptor stands for a name alone, of something that is neither file nor directory.
pub(crate) fn is_name_alone(found: &Found) -> bool {
    let flags = found.lines.number("flags", 8).unwrap_or(0) as i32;
    flags & libc::O_PATH != 0 && !is(found, FileType::RegularFile) && !is(found, FileType::Directory)
}

/// Whether one stands for a symbolic link that is still there (O_PATH and O_NOFOLLOW). Those of /proc belong to
/// somebody.
pub(crate) fn is_link(found: &Found) -> bool {
    let is_there = found.stat.st_nlink > 0 && !found.target.ends_with(proc_file::DELETED);
    is(found, FileType::Symlink) && is_there && found.target.starts_with('/') && !found.target.starts_with("/proc/")
}

/// Devices of memory that have no state, by their minor number, and what every guest calls its own.
const STATELESS: [(u32, &str); 5] =
    [(3, "/dev/null"), (5, "/dev/zero"), (7, "/dev/full"), (8, "/dev/random"), (9, "/dev/urandom")];

/// What a device without state is called.
pub(crate) fn usual_name(found: &Found) -> Option<&'static str> {
    const MEMORY: u32 = 1;
    let (major, minor) = (rustix::fs::major(found.stat.st_rdev), rustix::fs::minor(found.stat.st_rdev));
    STATELESS.iter().find(|(known, _)| (MEMORY, *known) == (major, minor)).map(|(_, name)| *name)
}

/// What an open file is opened by. A device without state that has lost its name, as those have that a guest is given,
/// is like any other of its kind.
pub(crate) fn name(found: &Found) -> &str {
    let is_nameless_device = is(found, FileType::CharacterDevice) && found.stat.st_nlink == 0;
    let usual = is_nameless_device.then(|| usual_name(found)).flatten();
    usual.unwrap_or(&found.target)
}

/// Whether it is of a type.
pub(crate) fn is(found: &Found, kind: FileType) -> bool {
    FileType::from_raw_mode(found.stat.st_mode) == kind
}

pub(crate) fn supplied(found: &Found, outside: &[Outside]) -> Option<usize> {
    let identity = Outside { device: found.stat.st_dev, inode: found.stat.st_ino };
    outside.iter().position(|one| *one == identity)
}

/// Whether an open file lies in memory, where a clone's is made anew (tmpfs, or ramfs, in whose place it gets a tmpfs).
pub(crate) fn is_in_memory(found: &Found) -> bool {
    /// `RAMFS_MAGIC` (linux/magic.h).
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::statfs(&found.path).is_ok_and(|about| [libc::TMPFS_MAGIC, RAMFS].contains(&about.f_type))
}

/// Flags without those that only matter when opening. Who opens a file that has no name (O_TMPFILE) says that he names
/// a directory.
pub(crate) fn lasting(flags: u32) -> u32 {
    let unnamed = OFlags::TMPFILE.bits();
    let opening = (OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOCTTY | OFlags::CLOEXEC).bits();
    flags & !(opening | if flags & unnamed == unnamed { unnamed } else { 0 })
}

/// The flock(2) lock of a descriptor's fdinfo: `lock: 1: FLOCK  ADVISORY  WRITE 77 00:2f:1234 0 EOF`.
pub(crate) fn flock(info: &str) -> Option<i32> {
    let words = |line: &str| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let line = info
        .lines()
        .filter(|line| line.starts_with("lock:"))
        .map(words)
        .find(|words| words.get(2).is_some_and(|word| word == "FLOCK"))?;
    Some(if line.get(4).is_some_and(|word| word == "WRITE") { libc::LOCK_EX } else { libc::LOCK_SH })
}

/// The record locks of a descriptor's process.
pub(crate) fn record_locks(found: &Found) -> Vec<(i32, i16, i64, i64)> {
    let of = |(kind, start, length)| (found.number, kind, start, length);
    ranges(&found.info, "POSIX").into_iter().map(of).collect()
}

/// The record locks in a descriptor's fdinfo, of processes (POSIX) or of open files (OFDLCK): kind, start, length.
pub(crate) fn ranges(info: &str, of: &str) -> Vec<(i16, i64, i64)> {
    let range = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let [_, _, family, _, mode, _, _, start, end] = words[..] else { return None };
        let kind = if mode == "WRITE" { libc::F_WRLCK } else { libc::F_RDLCK };
        let start: i64 = start.parse().ok()?;
        let length = if end == "EOF" { 0 } else { end.parse::<i64>().ok()?.checked_sub(start)?.checked_add(1)? };
        (family == of).then_some((kind as i16, start, length))
    };
    info.lines().filter(|line| line.starts_with("lock:")).filter_map(range).collect()
}

/// What /proc says of one: `lock: 1: LEASE  ACTIVE  READ 77 00:2f:1234 0 EOF`.
pub(crate) fn lease(info: &str) -> Option<(&str, i32)> {
    let line = info.lines().find(|line| line.starts_with("lock:") && line.contains(" LEASE "))?;
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let kind = match *words.get(4)? {
        "READ" => libc::F_RDLCK,
        "WRITE" => libc::F_WRLCK,
        _ => libc::F_UNLCK,
    };
    Some((words[3], kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::precheck::descriptors::{descriptor_objection, lease_objection};

    fn found(target: &str, mode: u32, info: &str) -> Found {
        let mut stat = rustix::fs::stat("/").unwrap();
        stat.st_mode = mode;
        Found {
            number: 9,
            path: String::new(),
            target: target.into(),
            stat,
            info: info.into(),
            lines: Lines::parse(info),
        }
    }

    #[test]
    fn unsupported_kinds_are_named() {
        let refused = [("anon_inode:[io_uring]", 0o600, "io_uring"), ("/dev/vda", 0o060_600, "device")];
        for (target, mode, word) in refused {
            let (kind, _) = descriptor_objection(&found(target, mode, "flags:\t02\n"), &[]).unwrap();
            assert!(kind.contains(word), "{kind}");
        }
        assert_eq!(descriptor_objection(&found("/etc", 0o040_755, "flags:\t02\n"), &[]), None);
        let (kind, _) = descriptor_objection(&found("/x", 0o140_777, "flags:\t010000000\n"), &[]).unwrap();
        assert!(kind.contains("O_PATH"), "{kind}");
    }

    #[test]
    fn what_the_outside_replaces_is_no_objection() {
        let socket = found("socket:[7]", 0o140_777, "flags:\t02\n");
        let identity = Outside { device: socket.stat.st_dev, inode: socket.stat.st_ino };
        assert_eq!(descriptor_objection(&socket, &[identity]), None);
    }

    #[test]
    fn locks_and_watches_are_parsed() {
        let info = "flags:\t02\nlock:\t1: POSIX  ADVISORY  READ 7 08:01:12 5 9\nlock:\t2: FLOCK  ADVISORY  WRITE 7 08:01:12 0 EOF\n\
                    tfd:        5 events:       19 data:               a1  pos:0 ino:61 sdev:e\n";
        let one = found("/f", 0o100_644, info);
        assert_eq!(record_locks(&one), [(9, libc::F_RDLCK as i16, 5, 5)]);
        assert_eq!(flock(info), Some(libc::LOCK_EX));
    }

    #[test]
    fn what_only_matters_when_opening_is_left_out() {
        let of = |flags: i32| lasting(flags as u32) as i32;
        assert_eq!(of(libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_APPEND), libc::O_RDWR | libc::O_APPEND);
        assert_eq!(of(libc::O_RDWR | libc::O_TMPFILE | libc::O_DIRECT), libc::O_RDWR | libc::O_DIRECT);
        assert_eq!(of(libc::O_DIRECTORY), libc::O_DIRECTORY);
    }

    #[test]
    fn a_lease_is_told_from_a_lock_and_from_one_that_is_broken() {
        let line = |words: &str| format!("flags:\t02\nlock:\t1: {words} 77 00:2f:1234 0 EOF\n");
        assert_eq!(lease(&line("LEASE  ACTIVE    READ")), Some(("ACTIVE", libc::F_RDLCK)));
        assert_eq!(lease(&line("FLOCK  ADVISORY  WRITE")), None);
        assert_eq!(lease_objection(&line("LEASE  ACTIVE    WRITE")), None);
        assert!(lease_objection(&line("LEASE  BREAKING  UNLCK")).is_some());
    }
}

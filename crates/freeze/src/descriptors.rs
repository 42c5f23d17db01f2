//! The open files of the processes: what each is, and which descriptors are the same one.

use crate::contents::{self, Contents};
use crate::credentials::IdMaps;
use crate::image::{Descriptor, FileKind, Image, OpenFile, Pipe};
use crate::inotify;
use crate::leases;
use crate::nested::Nested;
use crate::open_files::{Noted, OpenFiles, Place};
use crate::open_namespaces;
use crate::origin::NOBODY;
use crate::pipes;
use crate::proc_file::{self, Lines};
use crate::process_descriptors;
use crate::queues::Queues;
use crate::sockets;
use crate::terminals;
use crate::tree::Member;
use pando_kernel::{CallError, Context};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;

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
    /// Its file in fdinfo.
    fn info_path(&self) -> String {
        self.path.replacen("/fd/", "/fdinfo/", 1)
    }
}

/// A file of the outside that a clone gets in its own version: the device and the inode that the frozen one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Device.
    pub device: u64,
    /// Inode.
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

/// Why a descriptor cannot be captured, if it cannot: what it is, and what to do.
pub(crate) fn objection(found: &Found, outside: &[Outside]) -> Option<(String, &'static str)> {
    if supplied(found, outside).is_some() {
        return None;
    }
    let target = found.target.as_str();
    let named = |what: &str, advice| Some((format!("{what} ({target})"), advice));
    let flags = found.lines.number("flags", 8).unwrap_or(0) as u32;
    if is_name_alone(found) {
        return if is_link(found) { None } else { named("a name of what cannot be opened (O_PATH)", "close it") };
    }
    if let Some(kind) = target.strip_prefix("anon_inode:") {
        return match kind {
            "[eventfd]" | "[eventpoll]" | "[timerfd]" | "[signalfd]" => None,
            // Whose it is: see `process_descriptors`.
            "[pidfd]" => None,
            "[io_uring]" => named("an io_uring instance", "make the program use epoll"),
            "[userfaultfd]" => named("a userfaultfd", "make the program do without it"),
            "[perf_event]" => named("a performance counter", "stop profiling"),
            // What it watches, nobody can tell by its number: see `inotify`.
            "inotify" => None,
            _ => named("a kernel object", "it cannot be captured; close it"),
        };
    }
    let deleted = found.stat.st_nlink == 0;
    match FileType::from_raw_mode(found.stat.st_mode) {
        // What kind of socket it is, nobody can tell by its number: see `sockets`.
        FileType::Socket => None,
        FileType::Fifo if target.starts_with("pipe:") && flags & libc::O_DIRECT as u32 != 0 => {
            named("a pipe of packets", "make the program use an ordinary pipe")
        }
        FileType::Fifo => None,
        FileType::RegularFile if leases::objection(&found.info).is_some() => leases::objection(&found.info),
        FileType::RegularFile if deleted || contents::is_secret(target) => contents::objection(found),
        FileType::RegularFile if target.ends_with(contents::DELETED) => {
            named("a file that lost this name and has others", "close it")
        }
        FileType::RegularFile | FileType::Directory => None,
        // Whose other end it is, nobody can tell by one: see `terminals`.
        FileType::CharacterDevice if terminals::is_terminal(found) => None,
        FileType::CharacterDevice => device_objection(found),
        _ => named("a device", "close it"),
    }
}

/// Whether a descriptor stands for a name alone, of something that is neither file nor directory.
pub(crate) fn is_name_alone(found: &Found) -> bool {
    let flags = found.lines.number("flags", 8).unwrap_or(0) as i32;
    flags & libc::O_PATH != 0 && !is(found, FileType::RegularFile) && !is(found, FileType::Directory)
}

/// Whether one stands for a symbolic link that is still there (O_PATH and O_NOFOLLOW). Those of /proc belong to somebody.
fn is_link(found: &Found) -> bool {
    let is_there = found.stat.st_nlink > 0 && !found.target.ends_with(contents::DELETED);
    is(found, FileType::Symlink) && is_there && found.target.starts_with('/') && !found.target.starts_with("/proc/")
}

/// Devices of memory that have no state, by their minor number, and what every guest calls its own.
const STATELESS: [(u32, &str); 5] =
    [(3, "/dev/null"), (5, "/dev/zero"), (7, "/dev/full"), (8, "/dev/random"), (9, "/dev/urandom")];

/// What a device without state is called.
fn usual_name(found: &Found) -> Option<&'static str> {
    const MEMORY: u32 = 1;
    let (major, minor) = (rustix::fs::major(found.stat.st_rdev), rustix::fs::minor(found.stat.st_rdev));
    STATELESS.iter().find(|(known, _)| (MEMORY, *known) == (major, minor)).map(|(_, name)| *name)
}

/// What an open file is opened by. A device without state that has lost its name, as those have that a guest is given, is like any other of its kind.
pub(crate) fn name(found: &Found) -> &str {
    let is_nameless_device = is(found, FileType::CharacterDevice) && found.stat.st_nlink == 0;
    let usual = is_nameless_device.then(|| usual_name(found)).flatten();
    usual.unwrap_or(&found.target)
}

fn device_objection(found: &Found) -> Option<(String, &'static str)> {
    if usual_name(found).is_some() {
        return None;
    }
    let kind = match rustix::fs::major(found.stat.st_rdev) {
        5 | 136..=143 => "a terminal",
        _ => "a device",
    };
    Some((format!("{kind} ({})", found.target), "it cannot be captured; start the program without it"))
}

/// Whether it is of a type.
pub(crate) fn is(found: &Found, kind: FileType) -> bool {
    FileType::from_raw_mode(found.stat.st_mode) == kind
}

pub(crate) fn supplied(found: &Found, outside: &[Outside]) -> Option<usize> {
    let identity = Outside { device: found.stat.st_dev, inode: found.stat.st_ino };
    outside.iter().position(|one| *one == identity)
}

/// Notes the open files of one process after another.
#[derive(Debug)]
pub(crate) struct Notebook<'a> {
    noted: OpenFiles,
    pipes: HashMap<(u64, u64), usize>,
    maps: IdMaps,
    mounts: inotify::Mounts<'a>,
    nested: &'a Nested,
    pub(crate) contents: Contents,
    pub(crate) queues: &'a Queues,
}

impl<'a> Notebook<'a> {
    /// An empty one, for the processes below a first process.
    pub(crate) fn new(
        init: i32,
        nested: &'a Nested,
        searched: &'a inotify::Searched,
        queues: &'a Queues,
    ) -> Result<Self, CallError> {
        Ok(Self {
            noted: OpenFiles::default(),
            pipes: HashMap::new(),
            maps: IdMaps::of(init)?,
            mounts: inotify::Mounts::of(init, searched)?,
            nested,
            contents: Contents::of(init)?,
            queues,
        })
    }

    /// Where each open file was found, in the image's order.
    pub(crate) fn places(&self) -> &[Place] {
        self.noted.places()
    }

    /// Captures the descriptors of a stopped process into the image.
    pub(crate) fn capture(
        &mut self,
        member: &Member,
        found: &[Found],
        outside: &[Outside],
        image: &mut Image,
    ) -> Result<Vec<Descriptor>, CallError> {
        let mut descriptors = Vec::new();
        for one in found {
            let flags = one.lines.number("flags", 8)? as u32;
            let file = self.find_or_note(member, one, flags, outside, image)?;
            let close_on_exec = flags & libc::O_CLOEXEC as u32 != 0;
            descriptors.push(Descriptor { number: one.number, file, close_on_exec });
        }
        Ok(descriptors)
    }

    fn find_or_note(
        &mut self,
        member: &Member,
        found: &Found,
        flags: u32,
        outside: &[Outside],
        image: &mut Image,
    ) -> Result<usize, CallError> {
        let (device, inode) = (found.stat.st_dev, found.stat.st_ino);
        let place = Place { outer: member.outer, number: found.number, device, inode };
        if let Noted::Before(known) = self.noted.find_or_note(place).context(|| "comparing open files".into())? {
            return Ok(known);
        }
        let kind = match supplied(found, outside) {
            Some(number) => FileKind::Supplied { number },
            None => self.kind(member, found, flags, image)?,
        };
        let position = found.lines.number("pos", 10).unwrap_or(0) as i64;
        let lock = flock(&found.info);
        let ranges = ranges(&found.info, "OFDLCK");
        let mount_space = match kind {
            FileKind::Named { .. } => self.nested.mounts.of_file(member.outer, found),
            _ => None,
        };
        image.files.push(OpenFile { flags: lasting(flags), position, lock, ranges, kind, mount_space });
        Ok(image.files.len() - 1)
    }

    fn kind(&mut self, member: &Member, found: &Found, flags: u32, image: &mut Image) -> Result<FileKind, CallError> {
        if is(found, FileType::Fifo) {
            let identity = (found.stat.st_dev, found.stat.st_ino);
            let pipe = match self.pipes.get(&identity) {
                Some(pipe) => *pipe,
                None => {
                    let path = (found.target.starts_with('/') && found.stat.st_nlink > 0).then(|| found.target.clone());
                    let mount_space = path.as_ref().and_then(|_| self.nested.mounts.of_file(member.outer, found));
                    image.pipes.push(Pipe { path, mount_space, ..pipes::capture(member.outer, found.number)? });
                    self.pipes.insert(identity, image.pipes.len() - 1);
                    image.pipes.len() - 1
                }
            };
            return Ok(FileKind::PipeEnd { pipe, writes: flags & libc::O_ACCMODE as u32 != 0 });
        }
        if open_namespaces::is_one(found) {
            return self.nested.file(found);
        }
        if self.queues.is_one(found) {
            return self.queues.kind(found, image);
        }
        if (is(found, FileType::RegularFile) || is(found, FileType::Directory)) && found.stat.st_nlink == 0 {
            let (device, inode) = (found.stat.st_dev, found.stat.st_ino);
            let place = Place { outer: member.outer, number: found.number, device, inode };
            // Who stands for what is in flight has no pid.
            let content = self.contents.of_descriptor(member.pid.max(NOBODY), place, &found.target, image)?;
            return Ok(FileKind::Nameless { content });
        }
        if is(found, FileType::CharacterDevice) && terminals::is_terminal(found) {
            return terminals::kind(member, found, &self.maps, image);
        }
        if is(found, FileType::Socket) {
            return sockets::kind(member.outer, found, &self.nested.nets, image);
        }
        Ok(match found.target.as_str() {
            "anon_inode:[eventfd]" => FileKind::Event {
                count: found.lines.number("eventfd-count", 16)?,
                semaphore: found.lines.get("eventfd-semaphore") == "1",
            },
            "anon_inode:[eventpoll]" => FileKind::Epoll,
            "anon_inode:[signalfd]" => FileKind::SignalFd { mask: found.lines.number("sigmask", 16)? },
            "anon_inode:[timerfd]" => {
                // What is left is left from now.
                let (now, info) = (clock_gettime(ClockId::Realtime), proc_file::read(&found.info_path())?);
                timer(&Lines::parse(&info), (now.tv_sec as u64, now.tv_nsec as u64))?
            }
            "anon_inode:[pidfd]" => FileKind::Process { pid: process_descriptors::pid(found) },
            "anon_inode:inotify" => FileKind::Inotify { watches: self.mounts.capture(found)? },
            _ => FileKind::Named { path: name(found).to_owned() },
        })
    }
}

/// Flags without those that only matter when opening. Who opens a file that has no name (O_TMPFILE) says that he names a directory.
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

/// A timerfd: `it_value: (0, 49406829)` is what is left, by `settime flags: 01` too. It is absolute in a clone if the program said a time of the wall clock, which goes
/// on whatever becomes of the image; the clock is given as it is now.
fn timer(lines: &Lines, now: (u64, u64)) -> Result<FileKind, CallError> {
    const NANOSECONDS: u64 = 1_000_000_000;
    const ABSOLUTE: u32 = libc::TFD_TIMER_ABSTIME as u32;
    const KNOWN: u32 = ABSOLUTE | libc::TFD_TIMER_CANCEL_ON_SET as u32;
    let pair = |key: &str| {
        let mut numbers = lines.get(key).trim_matches(['(', ')']).split(',').map(|word| word.trim().parse::<u64>());
        match (numbers.next(), numbers.next()) {
            (Some(Ok(seconds)), Some(Ok(nanoseconds))) => Ok([seconds, nanoseconds]),
            _ => Err(proc_file::malformed(format!("parsing {key} of a timerfd"))),
        }
    };
    let ([a, b], [mut c, mut d]) = (pair("it_interval")?, pair("it_value")?);
    let clock = lines.number("clockid", 10)? as i32;
    let is_wall_clock = matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_ALARM);
    // Since Linux 3.19. Times of other clocks mean nothing after a reboot, nor elsewhere.
    let flags = if is_wall_clock { lines.number("settime flags", 8).unwrap_or(0) as u32 & KNOWN } else { 0 };
    if flags & ABSOLUTE != 0 && (c, d) != (0, 0) {
        (c, d) = (now.0 + c + (now.1 + d) / NANOSECONDS, (now.1 + d) % NANOSECONDS);
    }
    Ok(FileKind::TimerFd {
        clock,
        flags: if flags & ABSOLUTE != 0 { flags } else { 0 },
        setting: [a, b, c, d],
        ticks: lines.number("ticks", 10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let (kind, _) = objection(&found(target, mode, "flags:\t02\n"), &[]).unwrap();
            assert!(kind.contains(word), "{kind}");
        }
        assert_eq!(objection(&found("/etc", 0o040_755, "flags:\t02\n"), &[]), None);
        let (kind, _) = objection(&found("/x", 0o140_777, "flags:\t010000000\n"), &[]).unwrap();
        assert!(kind.contains("O_PATH"), "{kind}");
    }

    #[test]
    fn what_the_outside_replaces_is_no_objection() {
        let socket = found("socket:[7]", 0o140_777, "flags:\t02\n");
        let identity = Outside { device: socket.stat.st_dev, inode: socket.stat.st_ino };
        assert_eq!(objection(&socket, &[identity]), None);
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
    fn times_of_the_wall_clock_stay_what_they_are() {
        let of = |clock: i32, flags: &str| {
            let text = format!(
                "clockid: {clock}\nticks: 0\nsettime flags: {flags}\nit_value: (5, 600000000)\nit_interval: (7, 8)\n"
            );
            match timer(&Lines::parse(&text), (100, 500_000_000)).unwrap() {
                FileKind::TimerFd { flags, setting, .. } => (flags, setting),
                other => panic!("{other:?}"),
            }
        };
        let (left, at) = ([7, 8, 5, 600_000_000], [7, 8, 106, 100_000_000]);
        assert_eq!(of(libc::CLOCK_REALTIME, "03"), (3, at));
        assert_eq!(of(libc::CLOCK_REALTIME, "01"), (1, at));
        assert_eq!(of(libc::CLOCK_REALTIME, "00"), (0, left));
        assert_eq!(of(libc::CLOCK_MONOTONIC, "01"), (0, left));
    }
}

//! The open files of the processes: what each is, and which descriptors are the same one.

use crate::capture::contents::Contents;
use crate::capture::lost_names::{self, Name};
use crate::capture::nested::Nested;
use crate::capture::queues::Queues;
use crate::capture::{inotify, pipes, sockets, terminals};
use crate::image::file::is_nameless_end;
use crate::image::{Descriptor, FileKind, FileOwner, Image, OpenFile, Pipe};
use crate::inspect::credentials::IdMaps;
use crate::inspect::descriptors::{Found, Outside, flock, is, is_in_memory, lasting, name, ranges, supplied};
use crate::inspect::open_files::{Noted, OpenFiles, Place};
use crate::inspect::proc_file::{self, Lines};
use crate::inspect::process_tree::Member;
use crate::inspect::{open_namespaces, pidfd, terminal_ends};
use crate::origin::NOBODY;
use pando_kernel::{CallError, Context};
use rustix::fs::FileType;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;

/// Notes the open files of one process after another.
#[derive(Debug)]
pub(crate) struct Notebook<'a> {
    init: i32,
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
            init,
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
        let position = position(found);
        let lock = flock(&found.info);
        let ranges = ranges(&found.info, "OFDLCK");
        let mount_space = match kind {
            FileKind::Named { .. } => self.nested.mounts.of_file(member.outer, found),
            _ => None,
        };
        if is_nameless_end(&kind, image) {
            // An id that the namespace does not know belongs to nobody there: root's is as good.
            let (user, group) = (self.maps.user(found.stat.st_uid), self.maps.group(found.stat.st_gid));
            if let (Ok(user), Ok(group)) = (user, group)
                && (user, group) != (0, 0)
            {
                image.owners.push(FileOwner { file: image.files.len(), user, group });
            }
        }
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
        if is(found, FileType::CharacterDevice) && terminal_ends::is_terminal(found) {
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
            "anon_inode:[pidfd]" => FileKind::Process { pid: pidfd::pid(found) },
            "anon_inode:inotify" => FileKind::Inotify { watches: self.mounts.capture(found)? },
            _ => match lost_names::of_open(self.init, found) {
                Name::Other(path) => FileKind::Named { path },
                Name::AsTold | Name::Unknown => FileKind::Named { path: name(found).to_owned() },
            },
        })
    }
}

/// A timerfd: `it_value: (0, 49406829)` is what is left, by `settime flags: 01` too. It is absolute in a clone if the
/// program said a time of the wall clock, which goes on whatever becomes of the image; the clock is given as it is now.
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

/// Where an open file stands. A directory in memory that has been listed is at its end in a clone too, where its
/// entries have other positions: what is listed by halves is refused.
fn position(found: &Found) -> i64 {
    /// Behind every entry, on every kernel.
    const END: i64 = i32::MAX as i64;
    let position = found.lines.number("pos", 10).unwrap_or(0) as i64;
    if position != 0 && is(found, FileType::Directory) && is_in_memory(found) { END } else { position }
}

#[cfg(test)]
mod tests {
    use super::*;

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

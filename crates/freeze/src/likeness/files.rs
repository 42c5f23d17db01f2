//! What a process has open: which descriptors, what each leads to, how that was opened, and who shares it.

use crate::capture::{epoll, peer_credentials, plain_socket};
use crate::image::own_files::{is_own_proc, process_of};
use crate::image::{Content, FileKind, Image, OpenFile, PlainSocket, Process, Role, UnixSocket, Watch};
use crate::inspect::credentials::IdMaps;
use crate::inspect::descriptors::{self, Found};
use crate::inspect::open_files::{Noted, OpenFiles, Place};
use crate::inspect::{pidfd, socket_table};
use crate::likeness::{Said, unlike, unlike_bits};
use crate::restore::slots::Slots;
use pando_kernel::{CallError, Context, socket};
use rustix::fs::FileType;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;

/// The open files of a clone, as far as they were seen.
pub(super) struct Files<'a> {
    image: &'a Image,
    maps: IdMaps,
    /// What is from here on is the restorer's, and goes as a process passes the gate.
    free: i32,
    seen: OpenFiles,
    /// Which of the image's each of those is, and the other way round.
    same: HashMap<usize, usize>,
    back: HashMap<usize, usize>,
}

impl<'a> Files<'a> {
    pub(super) fn of(image: &'a Image, init: i32) -> Result<Self, CallError> {
        let free = i32::try_from(Slots::of(image).free).unwrap_or(i32::MAX);
        let (maps, seen) = (IdMaps::of(init)?, OpenFiles::default());
        Ok(Self { image, maps, free, seen, same: HashMap::new(), back: HashMap::new() })
    }

    /// What differs of one process.
    pub(super) fn compare(&mut self, process: &Process, outer: i32) -> Result<Said, CallError> {
        let numbers: BTreeSet<i32> = descriptors::numbers(outer)?.into_iter().filter(|one| *one < self.free).collect();
        let was: BTreeSet<i32> = process.descriptors.iter().map(|one| one.number).collect();
        let mut said: Said = Vec::new();
        said.extend(was.difference(&numbers).map(|number| format!("descriptor {number} is not open")));
        said.extend(numbers.difference(&was).map(|number| format!("descriptor {number} was not open")));
        let mut locks = Vec::new();
        let mut watches = Vec::new();
        for one in process.descriptors.iter().filter(|one| numbers.contains(&one.number)) {
            let found = descriptors::one(outer, one.number)?;
            locks.extend(descriptors::record_locks(&found));
            watches.extend(epoll::watches(&found).into_iter().map(|(watch, _)| watch));
            let file = &self.image.files[one.file];
            let mut differs = Vec::new();
            let closes = found.lines.number("flags", 8)? as i32 & libc::O_CLOEXEC != 0;
            differs.extend(unlike("that it is closed on exec", &closes, &one.close_on_exec));
            if !matches!(file.kind, FileKind::Supplied { .. }) {
                differs.extend(self.open_file(file, (outer, &found))?);
            }
            differs.extend(self.sharing(one.file, (outer, &found))?);
            said.extend(
                differs.into_iter().map(|what| format!("descriptor {} ({}): {what}", found.number, found.target)),
            );
        }
        said.extend(other("locks", locks, process.locks.clone()));
        let key = |watch: &Watch| (watch.epoll, watch.target, watch.events, watch.data);
        let was = process.watches.iter().map(key).collect();
        said.extend(other("what it watches by epoll", watches.iter().map(key).collect(), was));
        Ok(said)
    }

    /// Whether it is shared with those that it was shared with.
    fn sharing(&mut self, file: usize, (outer, found): (i32, &Found)) -> Result<Option<String>, CallError> {
        // Each process opens its own.
        if is_own_proc(self.image, file) || process_of(self.image, file).is_some() {
            return Ok(None);
        }
        let (device, inode) = (found.stat.st_dev, found.stat.st_ino);
        let place = Place { outer, number: found.number, device, inode };
        let noted = self.seen.find_or_note(place).context(|| "comparing open files of a clone".into())?;
        let (Noted::Before(seen) | Noted::Now(seen)) = noted;
        let (is, was) = (*self.same.entry(seen).or_insert(file), *self.back.entry(file).or_insert(seen));
        Ok((is != file || was != seen).then(|| "it is shared otherwise than it was".into()))
    }

    fn open_file(&self, file: &OpenFile, (outer, found): (i32, &Found)) -> Result<Said, CallError> {
        let mut said = Said::new();
        let flags = descriptors::lasting(found.lines.number("flags", 8)? as u32);
        said.extend(unlike_bits("how it is open", telling(flags), telling(file.flags)));
        said.extend(unlike("its lock", &descriptors::flock(&found.info), &file.lock));
        said.extend(other("its locked ranges", descriptors::ranges(&found.info, "OFDLCK"), file.ranges.clone()));
        let is = |kind| descriptors::is(found, kind);
        let counted = |key: &str, base, was| found.lines.number(key, base).map(|is| unlike_bits(key, is, was));
        let position = || found.lines.number("pos", 10).map(|is| unlike("its position", &(is as i64), &file.position));
        match &file.kind {
            FileKind::Named { path } => {
                said.extend(unlike("what it leads to", &descriptors::name(found), &path.as_str()));
                if is(FileType::RegularFile) && !is_of_the_kernel(path) {
                    said.extend(position()?);
                }
            }
            FileKind::Nameless { content } => {
                said.extend(position()?);
                said.extend(nameless(found, &self.image.contents[*content]));
            }
            FileKind::PipeEnd { pipe, .. } => {
                said.extend((!is(FileType::Fifo)).then(|| "it is no pipe".to_owned()));
                let waits = rustix::io::ioctl_fionread(borrow(outer, found)?).context(|| "reading a pipe".into())?;
                let was = self.image.pipes[*pipe].content.len() as u64;
                said.extend(unlike("what waits in it", &waits, &was));
            }
            FileKind::Event { count, semaphore } => {
                said.extend(counted("eventfd-count", 16, *count)?);
                let is = found.lines.get("eventfd-semaphore") == "1";
                said.extend(unlike("that it is a semaphore", &is, semaphore));
            }
            FileKind::SignalFd { mask } => said.extend(counted("sigmask", 16, *mask)?),
            FileKind::TimerFd { clock, .. } => said.extend(counted("clockid", 10, *clock as u64)?),
            FileKind::Inotify { watches } => {
                let is = found.info.lines().filter(|line| line.starts_with("inotify wd:")).count();
                said.extend(unlike("how many files it watches", &is, &watches.len()));
            }
            FileKind::Process { pid } => {
                said.extend(unlike("which process it leads to", &pidfd::pid(found), pid));
            }
            FileKind::Unix { socket } => {
                said.extend(unix(&borrow(outer, found)?, &self.image.unix[*socket], &self.maps)?);
            }
            FileKind::Plain(was) => said.extend(plain(&borrow(outer, found)?, was)?),
            FileKind::Supplied { .. }
            | FileKind::Epoll
            | FileKind::Terminal { .. }
            | FileKind::Namespace { .. }
            | FileKind::Queue { .. } => {}
        }
        Ok(said)
    }
}

/// Flags without those that mean nothing to whoever has it open: that it was not opened by a link, and what open(2)
/// adds to all that it opens for programs of 64 bits.
fn telling(flags: u32) -> u64 {
    const LARGE_FILES: u32 = 0o100_000;
    u64::from(flags & !(LARGE_FILES | libc::O_NOFOLLOW as u32))
}

/// What is in one and not in the other, whatever the order.
fn other<T: Ord + std::fmt::Debug>(what: &str, mut is: Vec<T>, mut was: Vec<T>) -> Option<String> {
    is.sort_unstable();
    is.dedup();
    was.sort_unstable();
    was.dedup();
    unlike(what, &is, &was)
}

fn borrow(outer: i32, found: &Found) -> Result<OwnedFd, CallError> {
    let (device, inode) = (found.stat.st_dev, found.stat.st_ino);
    socket_table::borrow(Place { outer, number: found.number, device, inode })
}

fn nameless(found: &Found, was: &Content) -> Said {
    let mut said = Said::new();
    said.extend(unlike("its length", &(found.stat.st_size as u64), &was.length));
    said.extend(unlike_bits("its mode", u64::from(found.stat.st_mode & 0o7777), u64::from(was.mode & 0o7777)));
    said
}

fn unix(socket: &OwnedFd, was: &UnixSocket, maps: &IdMaps) -> Result<Said, CallError> {
    let what = || "reading a unix socket of a clone".to_owned();
    let number = |option| socket::option::number(socket, libc::SOL_SOCKET, option).context(what);
    let mut said = Said::new();
    said.extend(unlike("its kind", &number(libc::SO_TYPE)?, &was.kind));
    said.extend(unlike("that it listens", &(number(libc::SO_ACCEPTCONN)? != 0), &was.backlog.is_some()));
    let name = socket::option::name(socket).context(what)?;
    said.extend(unlike("its name", &String::from_utf8_lossy(&name), &String::from_utf8_lossy(&was.name)));
    // Datagrams that have no peer's may have nobody's in a clone.
    let credentials = peer_credentials::of(socket, maps).context(what)?;
    if was.peer_credentials.is_some() {
        said.extend(unlike("who is at its other end", &credentials, &was.peer_credentials));
    }
    Ok(said)
}

/// A socket that is no unix socket. What was connected by TCP is reset, and has what its connection leaves it; who was
/// bound to an address that is not there serves all.
fn plain(socket: &OwnedFd, was: &PlainSocket) -> Result<Said, CallError> {
    let is = plain_socket::capture(socket)?;
    let mut said = Said::new();
    said.extend(unlike("its family", &is.family, &was.family));
    said.extend(unlike("its kind", &is.kind, &was.kind));
    said.extend(unlike("its protocol", &is.protocol, &was.protocol));
    let listens = |socket: &PlainSocket| matches!(socket.role, Role::Listens { .. });
    said.extend(unlike("that it listens", &listens(&is), &listens(was)));
    if was.role == Role::Lost || was.family == libc::AF_NETLINK {
        return Ok(said);
    }
    let port = |socket: &PlainSocket| socket.name.get(2..4).map(|port| u16::from_be_bytes([port[0], port[1]]));
    // An address to send to gives one that is not bound a port.
    if port(was).is_some() {
        said.extend(unlike("its port", &port(&is), &port(was)));
    }
    for (level, number, value) in &was.options {
        let now = socket::option::get(socket, *level, *number).unwrap_or_default();
        let kept = is.options.iter().any(|one| (one.0, one.1) == (*level, *number) && one.2 == *value);
        said.extend(
            (!kept && now != *value)
                .then(|| format!("its option {number} of level {level} is {now:?} instead of {value:?}")),
        );
    }
    Ok(said)
}

/// Whether a file is one that is made as it is read.
fn is_of_the_kernel(path: &str) -> bool {
    ["/proc/", "/sys/"].iter().any(|tree| path.starts_with(tree))
}

//! epoll(7): an instance watches open files, each under the number that it had when it was added. The number may have
//! been closed since, while another one keeps the file open, and lead to something else by now: then the kernel is
//! asked which file it is (kcmp(2)).
//!
//! What several processes share since a fork is added once, by the first of them.
//!
//! A watch that tells of one event (EPOLLONESHOT) and has told of it can be had by nothing but an event. So its file
//! has to be ready for something in a clone, too.

use crate::image::{FileKind, Image, Process, Watch};
use crate::inspect::descriptors::Found;
use crate::inspect::socket_table;
use crate::refusal::Refusal;
use pando_kernel::trace::foreign_memory::{self, EpollSlot};
use pando_kernel::{CallError, Context, socket};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::{HashMap, HashSet};
use std::io;

/// Device and inode of a file.
type Identity = (u64, u64);

/// What an epoll instance's fdinfo lists, and which inodes that are: `tfd: 5 events: 19 data: 7  pos:0 ino:61 sdev:e`.
pub(crate) fn watches(found: &Found) -> Vec<(Watch, Identity)> {
    let hexadecimal = |word: &str| u64::from_str_radix(word, 16).ok();
    let watch = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let ["tfd:", target, "events:", events, "data:", data, rest @ ..] = &words[..] else { return None };
        let field = |name: &str| rest.iter().find_map(|word| hexadecimal(word.strip_prefix(name)?));
        let watch = Watch {
            epoll: found.number,
            target: target.parse().ok()?,
            file: 0,
            events: u32::from_str_radix(events, 16).ok()?,
            data: hexadecimal(data)?,
        };
        // The kernel's own form of a device's number.
        let device = field("sdev:")? as u32;
        Some((watch, (rustix::fs::makedev(device >> 20, device & 0xf_ffff), field("ino:")?)))
    };
    found.info.lines().filter_map(watch).collect()
}

/// What the instances of all processes watch, and who has which file open.
#[derive(Default)]
pub(crate) struct Watched {
    /// Which process of the image, and which of its watches; the process here, and what is watched.
    all: Vec<(usize, usize, i32, Identity)>,
    /// Where files of an inode are open: a process here, a number, and which file of the image that is.
    open: HashMap<Identity, Vec<(i32, i32, usize)>>,
}

impl Watched {
    /// Notes what a process has, which will have a place in the image.
    pub(crate) fn note(&mut self, (outer, place): (i32, usize), found: &[Found], captured: &mut Process) {
        let files: HashMap<i32, usize> = captured.descriptors.iter().map(|one| (one.number, one.file)).collect();
        for one in found {
            if let Some(file) = files.get(&one.number) {
                self.open.entry((one.stat.st_dev, one.stat.st_ino)).or_default().push((outer, one.number, *file));
            }
            for (watch, identity) in watches(one) {
                self.all.push((place, captured.watches.len(), outer, identity));
                captured.watches.push(watch);
            }
        }
    }

    /// Finds the file of each; those of which nobody has it open.
    pub(crate) fn find_files(self, image: &mut Image) -> Result<Vec<Refusal>, CallError> {
        let mut before: HashMap<(usize, i32, i32), u32> = HashMap::new();
        let mut lost = Vec::new();
        for (process, number, outer, identity) in &self.all {
            let Watch { epoll, target, .. } = image.processes[*process].watches[*number];
            let count = before.entry((*process, epoll, target)).or_default();
            let slot = EpollSlot { instance: epoll as u32, number: target as u32, before: *count };
            *count += 1;
            match self.file(*outer, slot, identity)? {
                Some(file) => image.processes[*process].watches[*number].file = file,
                None => lost.push(refusal(&image.processes[*process], epoll, UNHELD)),
            }
        }
        for (process, number, _, identity) in &self.all {
            let (process, watch) = (&image.processes[*process], image.processes[*process].watches[*number]);
            let fires = || Ok::<_, CallError>(self.is_ready(image, watch.file, identity)? && is_first(process, watch));
            if watch.has_fired() && !fires()? {
                lost.push(refusal(process, watch.epoll, FIRED));
            }
        }
        Ok(lost)
    }

    /// Whether a file is ready for something, and will be where it is made again.
    fn is_ready(&self, image: &Image, file: usize, identity: &Identity) -> Result<bool, CallError> {
        let what = || "asking what a watched file is ready for".to_owned();
        let open = self.open.get(identity).and_then(|open| open.iter().find(|(.., one)| *one == file));
        let Some((outer, number, _)) = open else { return Ok(false) };
        let taken = socket_table::take(*outer, *number)?;
        // Of what is to be read it is certain where that is kept, and not who connects to a listener.
        let keeps = match &image.files[file].kind {
            FileKind::PipeEnd { .. } => true,
            FileKind::Unix { .. } => {
                socket::option::number(&taken, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).context(what)? == 0
            }
            _ => false,
        };
        let wanted = if keeps { PollFlags::IN | PollFlags::OUT } else { PollFlags::OUT };
        let mut polled = [PollFd::new(&taken, wanted)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&now)).map_err(io::Error::from).context(what)?;
        Ok(polled[0].revents().intersects(wanted))
    }

    fn file(&self, outer: i32, slot: EpollSlot, identity: &Identity) -> Result<Option<usize>, CallError> {
        let what = || format!("asking what process {outer} watches by epoll");
        let Some(open) = self.open.get(identity) else { return Ok(None) };
        let Some(((.., first), others)) = open.split_first() else { return Ok(None) };
        if others.iter().all(|(.., file)| file == first) {
            return Ok(Some(*first));
        }
        // Of one inode, as all eventfds are. That of the same number is the one as a rule.
        let is_own = |(process, number, _): &&(i32, i32, usize)| (*process, *number) == (outer, slot.number as i32);
        let mut asked = HashSet::new();
        for (process, number, file) in open.iter().filter(is_own).chain(open) {
            if asked.insert(*file) && foreign_memory::is_watched((*process, *number), (outer, slot)).context(what)? {
                return Ok(Some(*file));
            }
        }
        Ok(None)
    }
}

/// Whether a watch can be added before all others of its instance: those of files that have lost their numbers come
/// before the rest.
fn is_first(process: &Process, watch: Watch) -> bool {
    let has_number =
        |one: &Watch| process.descriptors.iter().any(|open| (open.number, open.file) == (one.target, one.file));
    process.watches.iter().filter(|one| one.epoll == watch.epoll).all(has_number)
}

type Objection = (&'static str, &'static str);
const UNHELD: Objection =
    ("an epoll instance that watches what no process has open", "have the program take it off the instance");
const FIRED: Objection = (
    "an epoll instance that has told of an event (EPOLLONESHOT) of a file that is ready for none",
    "try again when the program watches that again",
);

fn refusal(process: &Process, epoll: i32, (kind, advice): Objection) -> Refusal {
    let name = process.threads.first().map(|one| String::from_utf8_lossy(&one.name).into_owned());
    Refusal { pid: process.pid, name: name.unwrap_or_default(), descriptor: Some(epoll), kind: kind.into(), advice }
}

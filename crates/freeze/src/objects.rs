//! What the maker makes before it forks: the open files that processes share.

use crate::content_making;
use crate::control_groups;
use crate::host_names;
use crate::image::namespace_kind::{HOST_NAMES, IPC, Kind, MOUNTS, NETWORK, USERS, with_first};
use crate::image::{FileKind, Image, OpenFile, made_mounts, own_proc, pidfd, user_turns};
use crate::inotify;
use crate::ipc_spaces;
use crate::mount_making;
use crate::net_spaces;
use crate::open_namespaces;
use crate::own_network;
use crate::plain_socket;
use crate::pressure;
use crate::queues;
use crate::script::{Chapter, Writer};
use crate::staging::AT_FDCWD;
use crate::terminals;
use crate::unix_making;
use pando_restorer::Special;

/// The descriptors of a clone that is being made: above all that its processes use.
///
/// `free` reports, `free + 1` is the gate, then what is supplied, then open files, the ends of pipes, executables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) free: u64,
    supplied: u64,
    /// Whether the last of what is supplied leads to the first process.
    hands_over: bool,
    files: u64,
    pipes: u64,
    terminals: u64,
    /// Other ends of sockets, which go when those are filled.
    late_widows: u64,
    /// Terminals that are only there to be counted.
    passing: u64,
    contents: u64,
    host_names: u64,
    /// What is about to be mounted in a mount namespace.
    mounting: u64,
    mount_spaces: u64,
    ipc_spaces: u64,
    net_spaces: u64,
    user_spaces: u64,
    /// Processes in those that have threads.
    turns: u64,
}

/// The restorer has a few descriptors of its own below this one.
const LOWEST: u64 = 160;

/// So many a process has room for without a table of its own, which takes the kernel 2 KiB for each process from then on. Where few are needed the first is
/// [`FEW`]; a request's lie below.
const WITHOUT_TABLE: u64 = 64;

const FEW: u64 = 32;

/// A request has three descriptors, one for each hierarchy of version 1, and what is supplied; with no more than this of that it fits below [`FEW`].
const SUPPLIED_TO_FEW: u64 = 8;

impl Slots {
    pub(crate) fn of(image: &Image) -> Self {
        let few = Self::above(image, FEW);
        // Executables are no more than processes.
        let end = few.executable(image.processes.len());
        let suits = end <= WITHOUT_TABLE && few.supplied <= SUPPLIED_TO_FEW && !few.hands_over;
        if suits { few } else { Self::above(image, LOWEST) }
    }

    fn above(image: &Image, lowest: u64) -> Self {
        let numbers = image.processes.iter().flat_map(|process| {
            process.descriptors.iter().map(|one| one.number).chain(process.watches.iter().map(|one| one.target))
        });
        let free = numbers.max().map_or(0, |highest| highest as u64 + 1).max(lowest);
        let number =
            |file: &OpenFile| if let FileKind::Supplied { number } = file.kind { Some(number + 1) } else { None };
        let supplied = image.files.iter().filter_map(number).max().unwrap_or(0) as u64;
        Self {
            free,
            supplied: supplied + u64::from(image.first().is_some()),
            hands_over: image.first().is_some(),
            files: image.files.len() as u64,
            pipes: image.pipes.len() as u64,
            terminals: image.terminals.len() as u64,
            late_widows: unix_making::count_late_widows(image) as u64,
            passing: image.terminals.iter().map(|one| u64::from(one.number) + 1).max().unwrap_or(0),
            contents: image.contents.len() as u64,
            host_names: image.host_names.len() as u64,
            mounting: made_mounts::most_made(image) as u64,
            mount_spaces: with_first(image.mount_spaces.len()),
            ipc_spaces: with_first(image.ipc_spaces),
            net_spaces: with_first(image.net_spaces.len()),
            user_spaces: image.user_spaces.len() as u64,
            turns: user_turns::count_turns(image) as u64,
        }
    }

    /// How many files whoever makes a clone has open at the most, those too that its processes will have.
    pub(crate) fn most_open(self, image: &Image) -> u64 {
        // A pipe lies behind what the processes run.
        self.executable(image.processes.len()) + 3
    }

    /// How many descriptors a clone must be supplied with.
    pub(crate) fn supplied(self) -> usize {
        (self.supplied - u64::from(self.hands_over)) as usize
    }

    /// What leads to a first process that is one of the image, supplied behind the others.
    pub(crate) fn handover(self) -> u64 {
        self.scratch() + self.supplied - 1
    }

    /// The first descriptor behind the gate.
    pub(crate) fn scratch(self) -> u64 {
        self.free + 2
    }

    /// Where an open file waits to be placed.
    pub(crate) fn file(self, number: usize) -> u64 {
        self.free + 2 + self.supplied + number as u64
    }

    fn pipe(self, number: usize, writes: bool) -> u64 {
        self.file(0) + self.files + 2 * number as u64 + u64::from(writes)
    }

    /// An end of a terminal.
    pub(crate) fn terminal(self, number: usize, master: bool) -> u64 {
        self.pipe(0, false) + 2 * self.pipes + 2 * number as u64 + u64::from(master)
    }

    /// The other end of a socket that it is filled by.
    pub(crate) fn late_widow(self, number: usize) -> u64 {
        self.terminal(0, false) + 2 * self.terminals + number as u64
    }

    /// A terminal that goes again.
    pub(crate) fn passing(self, number: u64) -> u64 {
        self.late_widow(0) + self.late_widows + number
    }

    /// One that is used for a moment.
    pub(crate) fn spare(self) -> u64 {
        self.passing(0) + self.passing
    }

    /// The user namespace that a process is about to enter.
    pub(crate) fn own_users(self) -> u64 {
        self.spare() + 1
    }

    /// Where it hears that the next number is a thread's.
    pub(crate) fn own_turn(self) -> u64 {
        self.own_users() + 1
    }

    /// Both, where the image has such namespaces.
    pub(crate) fn kept_to_enter(self) -> std::ops::Range<u64> {
        self.own_users()..self.own_users() + if self.user_spaces > 0 { 2 } else { 0 }
    }

    /// What is about to be mounted.
    pub(crate) fn mounting(self, number: usize) -> u64 {
        self.kept_to_enter().end + number as u64
    }

    /// A clone's own version of a file without a name.
    pub(crate) fn content(self, number: usize) -> u64 {
        self.mounting(0) + self.mounting + number as u64
    }

    /// Where a process says that it has mapped its own, behind the last of them.
    pub(crate) fn mapped(self) -> u64 {
        self.content(0) + self.contents
    }

    /// All of them, and where a process says that it has mapped its own.
    pub(crate) fn contents(self) -> std::ops::Range<u64> {
        self.content(0)..self.mapped() + u64::from(self.contents > 0)
    }

    /// Where the maker hears of it.
    pub(crate) fn unmapped(self) -> u64 {
        self.mapped() + 1
    }

    /// The holder's version of a file without a name.
    pub(crate) fn held(self, number: usize) -> u64 {
        self.unmapped() + 1 + number as u64
    }

    /// Where the holder has the counter of pids.
    pub(crate) fn pid_counter(self) -> u64 {
        self.held(0) + self.contents
    }

    /// Where host names are, and those of the first process.
    pub(crate) fn host_names(self, number: Option<usize>) -> u64 {
        self.pid_counter() + 1 + number.map_or(0, |number| number as u64 + 1)
    }

    /// Where mount namespaces are, and that of the first process.
    pub(crate) fn mount_space(self, number: Option<usize>) -> u64 {
        self.host_names(None) + 1 + self.host_names + number.map_or(0, |number| number as u64 + 1)
    }

    /// Where ipc namespaces are, and that of the first process.
    pub(crate) fn ipc_space(self, number: Option<usize>) -> u64 {
        self.mount_space(None) + self.mount_spaces + number.map_or(0, |number| number as u64 + 1)
    }

    /// Where network namespaces are, and that of the first process.
    pub(crate) fn net_space(self, number: Option<usize>) -> u64 {
        self.ipc_space(None) + self.ipc_spaces + number.map_or(0, |number| number as u64 + 1)
    }

    /// Where a namespace of a kind is, if the image can have such.
    pub(crate) fn namespace(self, kind: Kind, number: usize) -> Option<u64> {
        match kind {
            HOST_NAMES => Some(self.host_names(Some(number))),
            MOUNTS => Some(self.mount_space(Some(number))),
            IPC => Some(self.ipc_space(Some(number))),
            NETWORK => Some(self.net_space(Some(number))),
            USERS => Some(self.user_space(number)),
            _ => None,
        }
    }

    /// Where user namespaces are.
    pub(crate) fn user_space(self, number: usize) -> u64 {
        self.net_space(None) + self.net_spaces + number as u64
    }

    /// The maker's end of what goes to and fro between it and a process with threads in such a namespace, and the process's.
    pub(crate) fn turn(self, number: usize, of_process: bool) -> u64 {
        self.user_space(0) + self.user_spaces + 2 * number as u64 + u64::from(of_process)
    }

    /// Where an executable waits to become the process's.
    pub(crate) fn executable(self, number: usize) -> u64 {
        self.turn(0, false) + 2 * self.turns + number as u64
    }
}

/// Writes the maker's steps up to the first fork of a process. `executables` are paths, `helper` is a pid that is free.
pub(crate) fn write(writer: &mut Writer, image: &Image, (slots, helper): (Slots, i32), executables: &[String]) {
    host_names::make(writer, image, slots);
    ipc_spaces::make(writer, image, slots);
    net_spaces::make(writer, image, slots);
    own_network::make(writer, image, slots);
    control_groups::make(writer, image);
    mount_making::make_first(writer, image, (slots, helper), |writer| {
        content_making::make(writer, image, (slots, helper));
    });
    pipes(writer, image, slots, None);
    unix_making::make(writer, image, slots);
    terminals::make(writer, image, slots);
    queues::make(writer, image, slots);
    // What they mount once more is there by now, sockets too.
    mount_making::make(writer, image, (slots, helper), |writer, space| {
        pipes(writer, image, slots, Some(space));
        files(writer, image, slots, Some(space));
    });
    files(writer, image, slots, None);
    unix_making::fill(writer, image, slots);
    for (number, path) in executables.iter().enumerate() {
        writer.open_named(Writer::MAKING, path, libc::O_RDONLY as u64, slots.executable(number));
    }
}

/// Those that are opened in a mount namespace.
fn files(writer: &mut Writer, image: &Image, slots: Slots, space: Option<usize>) {
    for (number, file) in image.files.iter().enumerate().filter(|(_, file)| file.mount_space == space) {
        if own_proc::is_one(image, number) || pidfd::of(image, number).is_some() {
            continue;
        }
        make(writer, image, file, slots, number);
    }
}

fn pipes(writer: &mut Writer, image: &Image, slots: Slots, space: Option<usize>) {
    for (number, pipe) in image.pipes.iter().enumerate().filter(|(_, pipe)| pipe.mount_space == space) {
        let (read, write) = (slots.pipe(number, false), slots.pipe(number, true));
        match &pipe.path {
            None => writer.special(Writer::MAKING, "making a pipe", Special::Pipe, &[read, write]),
            Some(path) => {
                // For reading and writing at once it never waits for another end, and while it is open nobody does.
                writer.open_named(Writer::MAKING, path, libc::O_RDWR as u64, read);
                writer.call(Writer::MAKING, "keeping a named pipe", libc::SYS_dup3, &[read, write, 0]);
            }
        }
        let capacity = u64::from(pipe.capacity);
        writer.attempt(Writer::MAKING, "sizing a pipe", libc::SYS_fcntl, &[write, libc::F_SETPIPE_SZ as u64, capacity]);
        if !pipe.content.is_empty() {
            // Nobody reads meanwhile: what does not fit is an error, and nothing to wait for.
            let arguments = [write, libc::F_SETFL as u64, libc::O_NONBLOCK as u64];
            writer.call(Writer::MAKING, "filling a pipe without waiting", libc::SYS_fcntl, &arguments);
            let content = writer.data(&pipe.content, 1);
            let length = pipe.content.len() as u64;
            writer.exact(Writer::MAKING, "filling a pipe", libc::SYS_write, &[write, content, length], length);
        }
    }
}

fn make(writer: &mut Writer, image: &Image, file: &OpenFile, slots: Slots, number: usize) {
    let slot = slots.file(number);
    let chapter = Writer::MAKING;
    match &file.kind {
        FileKind::Named { path } => named(writer, chapter, file, path, slot),
        FileKind::Nameless { content } => {
            content_making::open(writer, file, slots, *content, slot);
            place(writer, chapter, file, "a file without a name", slot);
        }
        FileKind::PipeEnd { pipe, writes } => {
            // A second description of the same end, with flags of its own, is had by opening it once more.
            reopen(writer, "opening an end of a pipe", slots.pipe(*pipe, *writes), file, slot);
        }
        FileKind::Supplied { number } => {
            // Opened anew, as the program had it: it may be another kind of file than what it stands for.
            reopen(writer, "opening what is supplied", slots.scratch() + *number as u64, file, slot);
        }
        FileKind::Event { count, semaphore } => {
            let flags = u64::from(*semaphore);
            // The initial value has four bytes; a larger count is written.
            writer.open(chapter, "making an eventfd", libc::SYS_eventfd2, &[0, flags], slot);
            if *count > 0 {
                let word = writer.words(&[*count]);
                writer.exact(chapter, "setting an eventfd", libc::SYS_write, &[slot, word, 8], 8);
            }
        }
        FileKind::Unix { .. } | FileKind::Process { .. } => {}
        FileKind::Terminal { terminal, end } => {
            terminals::open(writer, file, image, slots, (*terminal, *end), slot);
        }
        FileKind::Plain(socket) => net_spaces::inside(writer, slots, socket.net_space, |writer| {
            plain_socket::make(writer, socket, slot, slots.spare());
        }),
        FileKind::Namespace { kind, space } => open_namespaces::open(writer, slots, (*kind, *space), slot),
        FileKind::Inotify { watches } => {
            let early = watches.iter().filter(|watch| !image.control_groups.has(&watch.path));
            inotify::make(writer, early, slot);
        }
        FileKind::Queue { queue } => queues::open(writer, file, &image.queues[*queue], slot),
        FileKind::Epoll => writer.open(chapter, "making an epoll instance", libc::SYS_epoll_create1, &[0], slot),
        FileKind::SignalFd { mask } => {
            let word = writer.words(&[*mask]);
            writer.open(chapter, "making a signalfd", libc::SYS_signalfd4, &[u64::MAX, word, 8, 0], slot);
        }
        FileKind::TimerFd { clock, flags, setting, ticks } => {
            writer.open(chapter, "making a timerfd", libc::SYS_timerfd_create, &[*clock as u64, 0], slot);
            let words = writer.words(setting);
            writer.call(chapter, "setting a timerfd", libc::SYS_timerfd_settime, &[slot, u64::from(*flags), words, 0]);
            if *ticks > 0 {
                let word = writer.words(&[*ticks]);
                writer.attempt(chapter, "ticking a timerfd", libc::SYS_ioctl, &[slot, TFD_IOC_SET_TICKS, word]);
            }
        }
    }
    if !matches!(
        file.kind,
        FileKind::Named { .. } | FileKind::Nameless { .. } | FileKind::Supplied { .. } | FileKind::Namespace { .. }
    ) {
        let flags = u64::from(file.flags) & (libc::O_NONBLOCK | libc::O_ASYNC | libc::O_APPEND) as u64;
        writer.call(
            chapter,
            "setting the flags of an open file",
            libc::SYS_fcntl,
            &[slot, libc::F_SETFL as u64, flags],
        );
    }
}

/// `_IOW('T', 0, u64)`, since Linux 3.17.
const TFD_IOC_SET_TICKS: u64 = 0x4008_5400;

/// Writes the opening of what the maker has open once more, as a program had it open.
fn reopen(writer: &mut Writer, label: &str, descriptor: u64, file: &OpenFile, slot: u64) {
    let path = writer.string(&format!("/proc/self/fd/{descriptor}"));
    // That is a link, whatever the program opened.
    let flags = u64::from(file.flags) & !(libc::O_NOFOLLOW as u64);
    writer.open(Writer::MAKING, label, libc::SYS_openat, &[AT_FDCWD, path, flags], slot);
}

/// Writes the opening of a file by its path.
pub(crate) fn named(writer: &mut Writer, chapter: Chapter, file: &OpenFile, path: &str, slot: u64) {
    // A device in this place must not become the maker's terminal.
    let flags = u64::from(file.flags);
    writer.open_named(chapter, path, flags | libc::O_NOCTTY as u64, slot);
    // Nor may a device or a fifo make the maker wait.
    if flags & (libc::O_PATH | libc::O_NONBLOCK) as u64 == 0 {
        let flags = flags & (libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME) as u64;
        let label = format!("setting the flags of {path}");
        writer.call(chapter, label, libc::SYS_fcntl, &[slot, libc::F_SETFL as u64, flags]);
    }
    pressure::ask(writer, chapter, file, path, slot);
    place(writer, chapter, file, path, slot);
}

/// Writes the opening of a process's own file of /proc, under whatever filter it has by then: more of those know openat(2).
pub(crate) fn own(writer: &mut Writer, chapter: Chapter, file: &OpenFile, path: &str, slot: u64) {
    let at = writer.string(path);
    let flags = u64::from(file.flags) | (libc::O_NOCTTY | libc::O_CLOEXEC) as u64;
    writer.open(chapter, format!("opening {path}"), libc::SYS_openat, &[AT_FDCWD, at, flags], slot);
    place(writer, chapter, file, path, slot);
}

/// Position and lock.
fn place(writer: &mut Writer, chapter: Chapter, file: &OpenFile, path: &str, slot: u64) {
    if file.position > 0 {
        let arguments = [slot, file.position as u64, libc::SEEK_SET as u64];
        writer.attempt(chapter, format!("positioning {path}"), libc::SYS_lseek, &arguments);
    }
    if let Some(lock) = file.lock {
        let arguments = [slot, (lock | libc::LOCK_NB) as u64];
        writer.call(chapter, format!("locking {path}"), libc::SYS_flock, &arguments);
    }
    for (kind, start, length) in &file.ranges {
        let lock = writer.words(&[*kind as u16 as u64, *start as u64, *length as u64, 0]);
        let arguments = [slot, libc::F_OFD_SETLK as u64, lock];
        writer.call(chapter, format!("locking a range of {path}"), libc::SYS_fcntl, &arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Descriptor, Pipe, Process};

    #[test]
    fn slots_do_not_overlap() {
        let file = |kind| OpenFile { flags: 0, position: 0, lock: None, ranges: Vec::new(), kind, mount_space: None };
        let image = Image {
            processes: vec![Process {
                descriptors: vec![Descriptor { number: 500, file: 0, close_on_exec: false }],
                ..Process::default()
            }],
            files: vec![file(FileKind::Supplied { number: 1 }), file(FileKind::Epoll)],
            pipes: vec![Pipe { capacity: 4096, content: Vec::new(), path: None, mount_space: None }],
            init: 1,
            ..Image::default()
        };
        let slots = Slots::of(&image);
        assert_eq!((slots.free, slots.supplied()), (501, 2));
        let all = [
            slots.scratch(),
            slots.scratch() + 1,
            slots.file(0),
            slots.file(1),
            slots.pipe(0, false),
            slots.pipe(0, true),
            slots.spare(),
            slots.mapped(),
            slots.unmapped(),
            slots.pid_counter(),
            slots.executable(0),
        ];
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
    }

    #[test]
    fn a_small_image_needs_no_table_of_descriptors() {
        let process = |number| Process {
            descriptors: vec![Descriptor { number, file: 0, close_on_exec: false }],
            ..Process::default()
        };
        let with = |number| Slots::of(&Image { processes: vec![process(number)], init: 1, ..Image::default() }).free;
        assert_eq!([with(2), with(40), with(62), with(300)], [FEW, 41, LOWEST, 301]);
        let pipes = vec![Pipe { capacity: 4096, content: Vec::new(), path: None, mount_space: None }; 20];
        let many = Image { processes: vec![process(2)], pipes, init: 1, ..Image::default() };
        assert_eq!(Slots::of(&many).free, LOWEST);
    }
}

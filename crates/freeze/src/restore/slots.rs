//! Which descriptor of the maker each object of an image has while a clone is made.

use crate::image::namespace_kind::{HOST_NAMES, IPC, Kind, MOUNTS, NETWORK, USERS, with_first};
use crate::image::{FileKind, Image, OpenFile, made_mounts, user_turns};
use crate::restore::unix_origin;

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

/// So many a process has room for without a table of its own, which takes the kernel 2 KiB for each process from then
/// on. Where few are needed the first is [`FEW`]; a request's lie below.
const WITHOUT_TABLE: u64 = 64;

const FEW: u64 = 32;

/// A request has three descriptors, one for each hierarchy of version 1, and what is supplied; with no more than this
/// of that it fits below [`FEW`].
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
            late_widows: unix_origin::count_late_widows(image) as u64,
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

    pub(crate) fn pipe(self, number: usize, writes: bool) -> u64 {
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

    /// The slot of a user namespace's descriptor.
    pub(crate) fn user_space(self, number: usize) -> u64 {
        self.net_space(None) + self.net_spaces + number as u64
    }

    /// The maker's end of what goes to and fro between it and a process with threads in such a namespace, and the
    /// process's.
    pub(crate) fn turn(self, number: usize, of_process: bool) -> u64 {
        self.user_space(0) + self.user_spaces + 2 * number as u64 + u64::from(of_process)
    }

    /// Where an executable waits to become the process's.
    pub(crate) fn executable(self, number: usize) -> u64 {
        self.turn(0, false) + 2 * self.turns + number as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Descriptor, Pipe, Process};

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

//! What a frozen tree of processes is: plain data, and all that a script is written from.
//!
//! Pids are those inside the frozen pid namespace, ids those inside its user namespace, paths those inside its root. Memory contents are not in
//! here: a holder has them.

pub use crate::contents::{Content, ContentKind};
pub use crate::control_groups::{ControlGroup, ControlGroups};
pub use crate::host_names::HostNames;
pub use crate::host_settings::ByHost;
pub use crate::inotify::FileWatch;
pub use crate::memory_rules::MemoryRules;
pub use crate::mount_difference::{Link, MountChange, MountSource};
pub use crate::mount_spaces::MountSpace;
pub use crate::net_spaces::NetSpace;
pub use crate::plain_socket::{PlainSocket, Role};
pub use crate::queues::Queue;
pub use crate::socket_options::SocketOption;
pub use crate::sysv::{Keyed, KeyedKind};
pub use crate::terminals::{Terminal, TerminalEnd};
pub use crate::thread_settings::ThreadSettings;
pub use crate::unix_socket::{UnixSocket, Waiting};
pub use crate::user_spaces::UserSpace;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// A frozen tree of processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Parents before children.
    pub processes: Vec<Process>,
    /// Open file descriptions; processes' descriptors are indices into it.
    pub files: Vec<OpenFile>,
    /// Pipes; open files are ends of them.
    pub pipes: Vec<Pipe>,
    /// Unix sockets; open files are they.
    #[serde(default)]
    pub unix: Vec<UnixSocket>,
    /// Files without a name; open files and areas are they.
    #[serde(default)]
    pub contents: Vec<Content>,
    /// What System V IPC keeps.
    #[serde(default)]
    pub keyed: Vec<Keyed>,
    /// POSIX message queues; open files are they.
    pub queues: Vec<Queue>,
    /// Host names beside those of the first process.
    pub host_names: Vec<HostNames>,
    /// Pseudo-terminals; open files are ends of them.
    #[serde(default)]
    pub terminals: Vec<Terminal>,
    /// How the first process's mounts differ from what each clone is given, in the order in which that is made. What is mounted once more is had from what is given, or
    /// from what was made before ([`MountSource::space`] 0).
    pub mounts: Vec<MountChange>,
    /// Whether others can hear of what is mounted in the first process's namespace.
    pub shared_mounts: bool,
    /// Mount namespaces beside the first process's.
    pub mount_spaces: Vec<MountSpace>,
    /// How many ipc namespaces there are beside the first process's. There is nothing in them.
    pub ipc_spaces: usize,
    /// Network namespaces beside the first process's.
    pub net_spaces: Vec<NetSpace>,
    /// What is set of the first process's own network: paths below /proc/sys/net, in the order in which that is done, and what is written to each.
    pub net_settings: Vec<(String, String)>,
    /// User namespaces beside the first process's.
    pub user_spaces: Vec<UserSpace>,
    /// Control groups below the guest's own.
    pub control_groups: ControlGroups,
    /// The pid of the namespace's first process. Where it is not one of the image, what it was the parent of falls to a clone's first process.
    pub init: i32,
    /// Whether it came from elsewhere, so that nobody here has allowed what it asks of the host.
    pub adopted: bool,
}

impl Image {
    /// The namespace's first process, if it is one of the image: an index into [`Self::processes`].
    pub fn first(&self) -> Option<usize> {
        self.processes.iter().position(|process| process.pid == self.init)
    }

    /// The areas whose pages are kept, with the process of each, an index into [`Self::processes`]: what several processes share since a fork comes once, with the first
    /// of them.
    pub(crate) fn kept_areas(&self) -> impl Iterator<Item = (usize, &Area)> {
        let mut seen = HashSet::new();
        let areas = self.processes.iter().enumerate();
        let areas = areas.flat_map(|(number, process)| process.areas.iter().map(move |area| (number, area)));
        areas.filter(move |(_, area)| area.fork_shared.is_none_or(|number| seen.insert((number, area.start))))
    }

    /// Bytes of the processes' own memory. What several of them share since a fork counts once.
    pub fn memory(&self) -> u64 {
        self.kept_areas().flat_map(|(_, area)| &area.pages).map(|(_, length)| length).sum()
    }

    /// The open files that wait in unix sockets: indices into [`Self::files`].
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = usize> {
        self.unix.iter().flat_map(|socket| &socket.queue).flat_map(|message| message.files.iter().copied())
    }
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// Its parent's; 0 if that was outside.
    pub parent: i32,
    /// Its process group; 0 if that was made outside.
    pub group: i32,
    /// Its session; 0 if that was made outside.
    pub session: i32,
    /// If it has ended and nobody has asked: the status, as wait(2) gives it. Nothing else of it is left then.
    pub ended: Option<i32>,
    /// Whether a signal has stopped it (SIGSTOP and the like), so that it waits for SIGCONT.
    pub stopped: bool,
    /// Threads, the first one first.
    pub threads: Vec<Thread>,
    /// Its memory, by ascending address.
    pub areas: Vec<Area>,
    /// Where its parts lie.
    pub layout: Layout,
    /// The executable's path.
    pub executable: String,
    /// What signals do, where that is not the default: the kernel's `struct sigaction` (handler, flags, restorer, mask).
    pub actions: Vec<(i32, [u64; 4])>,
    /// Interval timers: interval and value, each in seconds and microseconds.
    pub intervals: [[u64; 4]; 3],
    /// Timers of timer_create(2).
    pub timers: Vec<Timer>,
    /// Signals that wait for the process.
    pub waiting: Vec<WaitingSignal>,
    /// Descriptors.
    pub descriptors: Vec<Descriptor>,
    /// Record locks of fcntl(2): descriptor, kind (`F_RDLCK` or `F_WRLCK`), start, length.
    pub locks: Vec<(i32, i16, i64, i64)>,
    /// What epoll instances watch: their descriptor, the watched one, events, data.
    pub watches: Vec<Watch>,
    /// Working directory.
    pub directory: String,
    /// What that is in [`Image::contents`], where it was deleted.
    pub deleted_directory: Option<usize>,
    /// Leases (`F_SETLEASE`) that it takes.
    pub leases: Vec<Lease>,
    /// File-mode creation mask.
    pub umask: u32,
    /// Which host names it has, an index into [`Image::host_names`]; none if those of the first process.
    pub host_names: Option<usize>,
    /// Which mount namespace it is in, an index into [`Image::mount_spaces`]; none if the first process's.
    pub mount_space: Option<usize>,
    /// Which ipc namespace it is in, one of [`Image::ipc_spaces`]; none if the first process's.
    pub ipc_space: Option<usize>,
    /// Which network namespace it is in, an index into [`Image::net_spaces`]; none if the first process's.
    pub net_space: Option<usize>,
    /// Which user namespace it is in, an index into [`Image::user_spaces`]; none if the first process's.
    pub user_space: Option<usize>,
    /// Which control group it is in, an index into [`ControlGroups::groups`]; none if the guest's own.
    pub control_group: Option<usize>,
    /// Resource limits: number, soft, hard.
    pub limits: Vec<(u32, u64, u64)>,
    /// Flags of prctl(2).
    pub flags: ProcessFlags,
    /// What it has asked for its memory.
    pub memory_rules: MemoryRules,
    /// What is set of it from the outside.
    pub by_host: ByHost,
}

/// What prctl(2) says of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFlags {
    /// Whether its memory may be looked at (PR_SET_DUMPABLE).
    pub dumpable: bool,
    /// Whether orphans below it become its children (PR_SET_CHILD_SUBREAPER).
    pub subreaper: bool,
    /// Whether it has no huge pages (PR_SET_THP_DISABLE).
    pub small_pages: bool,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its tid.
    pub tid: i32,
    /// Its name.
    pub name: Vec<u8>,
    /// The signal frame that it resumes through: general registers, see [`crate::frame`].
    pub registers: Vec<u64>,
    /// Floating-point and vector state, as XSAVE lays it out.
    #[serde(with = "serde_bytes")]
    pub extended: Vec<u8>,
    /// Blocked signals.
    pub mask: u64,
    /// Signals that wait for it.
    pub waiting: Vec<WaitingSignal>,
    /// The stack for signal handlers: address, flags, length.
    pub signal_stack: [u64; 3],
    /// Where the kernel writes 0 when it ends.
    pub clear: u64,
    /// Robust futexes: address and length.
    pub robust: (u64, u64),
    /// Restartable sequences: address, length, signature.
    pub rseq: (u64, u32, u32),
    /// Who it is.
    pub credentials: Credentials,
    /// How it is scheduled.
    pub scheduling: Scheduling,
    /// System-call filters, oldest first: `struct sock_filter`s.
    pub filters: Vec<Vec<u8>>,
    /// The signal that it gets when its parent ends.
    pub parent_death: i32,
    /// Nanoseconds by which its sleeps may be late.
    pub slack: u64,
    /// Nanoseconds that it had yet to wait in the call that it makes first; none if it says itself when that ends, or waits for ever.
    pub left: Option<u64>,
    /// How the kernel treats it.
    pub settings: ThreadSettings,
}

/// A signal that was sent and not taken: the kernel's `siginfo_t` of 128 bytes.
pub type WaitingSignal = Vec<u8>;

/// User, groups and capabilities of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective, saved, file-system user.
    pub users: [u32; 4],
    /// Real, effective, saved, file-system group.
    pub groups: [u32; 4],
    /// Further groups.
    pub further: Vec<u32>,
    /// Inheritable, permitted, effective, bounding, ambient capabilities.
    pub capabilities: [u64; 5],
    /// Secure bits.
    pub secure_bits: u64,
    /// Whether it can never gain privilege.
    pub no_new_privileges: bool,
}

/// How a thread is scheduled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// Niceness.
    pub nice: i32,
    /// `SCHED_*`, with SCHED_RESET_ON_FORK.
    pub policy: u32,
    /// Real-time priority.
    pub priority: u32,
    /// Class and priority of what it reads from disks and writes to them, as ioprio_get(2) has them; 0 if they follow the niceness.
    pub disk: u32,
    /// The processors that it may run on, a bit each; none if the same as the first process.
    pub processors: Vec<u8>,
}

/// A timer of timer_create(2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// Its number.
    pub id: i32,
    /// Its clock.
    pub clock: i32,
    /// `SIGEV_*`.
    pub notify: i32,
    /// The signal.
    pub signal: i32,
    /// The value that comes with it.
    pub value: u64,
    /// The thread that gets it, with `SIGEV_THREAD_ID`.
    pub thread: i32,
    /// Interval and rest, each in seconds and nanoseconds.
    pub setting: [u64; 4],
}

/// A range of memory with one meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// `PROT_*`.
    pub protection: u32,
    /// What it holds.
    pub kind: AreaKind,
    /// Advice that was given: `MADV_*`.
    pub advice: Vec<u32>,
    /// Whether it grows downwards, as a main thread's stack does.
    pub grows: bool,
    /// Whether it is locked in memory.
    pub locked: bool,
    /// Whether only pages are that somebody has touched (MLOCK_ONFAULT).
    pub locked_later: bool,
    /// Whether no memory is ever reserved for it (MAP_NORESERVE).
    pub unreserved: bool,
    /// Whether memory is reserved for all of it, as for what may be written to by one process alone.
    pub accounted: bool,
    /// Whether nobody may ever change what it is (mseal(2)).
    pub sealed: bool,
    /// Pages that nobody may touch (`MADV_GUARD_INSTALL`), as runs of (address, length).
    pub guards: Vec<(u64, u64)>,
    /// Pages that are this process's own, as runs of (address, length).
    pub pages: Vec<(u64, u64)>,
    /// Whether other processes share all its pages since a fork, each until somebody writes to them: a number that is the same for all areas that the same
    /// processes share. What is shared are areas of the same number at the same address.
    pub fork_shared: Option<usize>,
}

impl Area {
    /// One of which nothing else is known.
    pub(crate) fn new(start: u64, end: u64, protection: u32, kind: AreaKind) -> Self {
        Self {
            start,
            end,
            protection,
            kind,
            advice: Vec::new(),
            grows: false,
            locked: false,
            locked_later: false,
            unreserved: false,
            accounted: false,
            sealed: false,
            guards: Vec::new(),
            pages: Vec::new(),
            fork_shared: None,
        }
    }
}

/// What a range of memory holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AreaKind {
    /// Nothing but what was written to it.
    Anonymous,
    /// A file's content, with own pages where it was written to.
    Private {
        /// The file.
        path: String,
        /// Offset in it.
        offset: u64,
    },
    /// A file's content.
    Shared {
        /// The file.
        path: String,
        /// Offset in it.
        offset: u64,
        /// Whether it may ever be written through this mapping.
        writable: bool,
    },
    /// Shared memory of System V, all of it.
    Segment {
        /// Its number.
        id: i32,
        /// Whether it may be written to.
        writable: bool,
    },
    /// A file without a name.
    Nameless {
        /// Which, an index into [`Image::contents`].
        content: usize,
        /// Offset in it.
        offset: u64,
        /// Whether what is written to it is seen by all.
        shared: bool,
        /// Whether it may ever be written through this mapping.
        writable: bool,
    },
    /// The kernel's own: vdso, vvar.
    Kernel {
        /// Which, as /proc/PID/maps names it.
        name: String,
    },
    /// Events of a context of asynchronous input and output (io_setup(2)), whose number is where they lie.
    AioRing(AioRing),
}

/// Such a context, of which nothing is in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AioRing {
    /// How many requests it was made for.
    pub requests: u32,
    /// Where in the ring the next event is taken.
    pub head: u32,
    /// The events from there on that nobody has taken: `struct io_event`.
    pub events: Vec<[u64; 4]>,
}

impl AreaKind {
    /// Whether pages of it can be the process's own, so that the holder has them. Shared files are mapped by each clone from its own files, the kernel's
    /// mappings are the holder's own.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Anonymous | Self::Private { .. } | Self::Nameless { shared: false, .. })
    }
}

/// Where the parts of a process's memory lie (`struct prctl_mm_map`, without the auxiliary vector's place).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Code, data, heap, stack, arguments, environment: the first eleven words of `struct prctl_mm_map`.
    pub words: [u64; 11],
    /// The auxiliary vector.
    pub auxiliary: Vec<u8>,
}

/// A descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Its number.
    pub number: i32,
    /// The open file, an index into [`Image::files`].
    pub file: usize,
    /// Whether it is closed on exec.
    pub close_on_exec: bool,
}

/// What an epoll instance watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// A descriptor of the instance.
    pub epoll: i32,
    /// The number that the watched file had when it was added.
    pub target: i32,
    /// That file, an index into [`Image::files`]. Its number may have been closed since, or lead to another file.
    pub file: usize,
    /// `EPOLL*`.
    pub events: u32,
    /// The program's own word.
    pub data: u64,
}

/// A lease of an open file: its holder hears of others who open it (fcntl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// A descriptor of the file.
    pub descriptor: i32,
    /// `F_RDLCK` or `F_WRLCK`.
    pub kind: i32,
    /// The signal by which it hears of them, if not by SIGIO.
    pub signal: i32,
    /// The file's owner, who may take one.
    pub owner: u32,
}

/// An open file description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// `O_*`, without those that only matter when opening.
    pub flags: u32,
    /// Position.
    pub position: i64,
    /// The lock of flock(2) on it, if any: `LOCK_SH` or `LOCK_EX`.
    pub lock: Option<i32>,
    /// Record locks that belong to it (`F_OFD_SETLK`): kind, start, length.
    #[serde(default)]
    pub ranges: Vec<(i16, i64, i64)>,
    /// What it is.
    pub kind: FileKind,
    /// Where its path leads to it, an index into [`Image::mount_spaces`]; none if in the first process's.
    pub mount_space: Option<usize>,
}

/// What an open file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A file, directory or device with a name.
    Named {
        /// Its path.
        path: String,
    },
    /// An end of a pipe, an index into [`Image::pipes`].
    PipeEnd {
        /// Which pipe.
        pipe: usize,
        /// Which end.
        writes: bool,
    },
    /// Something of the outside, which a clone gets in its own version: the number that the caller gave it.
    Supplied {
        /// Its number.
        number: usize,
    },
    /// eventfd(2): its count and whether it is a semaphore.
    Event {
        /// The count.
        count: u64,
        /// Whether reading takes one.
        semaphore: bool,
    },
    /// epoll(7).
    Epoll,
    /// timerfd_create(2): the clock, flags of the setting, interval and rest as in [`Timer::setting`], missed ticks.
    TimerFd {
        /// The clock.
        clock: i32,
        /// `TFD_TIMER_*`.
        flags: u32,
        /// Interval and rest.
        setting: [u64; 4],
        /// Expirations nobody has read.
        ticks: u64,
    },
    /// A file without a name, an index into [`Image::contents`].
    Nameless {
        /// Which.
        content: usize,
    },
    /// A unix socket, an index into [`Image::unix`].
    Unix {
        /// Which.
        socket: usize,
    },
    /// Another socket.
    Plain(PlainSocket),
    /// signalfd(2): the signals.
    SignalFd {
        /// Bit N−1 for signal N.
        mask: u64,
    },
    /// An end of a pseudo-terminal, an index into [`Image::terminals`].
    Terminal {
        /// Which.
        terminal: usize,
        /// Which end.
        end: TerminalEnd,
    },
    /// inotify(7): what it watches, by ascending number.
    Inotify {
        /// The watches.
        watches: Vec<FileWatch>,
    },
    /// A process (pidfd_open(2)).
    Process {
        /// Its pid.
        pid: i32,
    },
    /// A namespace, as /proc/PID/ns has it.
    Namespace {
        /// `CLONE_NEW*`.
        kind: i32,
        /// Which of the image's own of that kind, for [host names](Image::host_names), [mounts](Image::mount_spaces), [ipc](Image::ipc_spaces) or
        /// [networks](Image::net_spaces); none if the first process's.
        space: Option<usize>,
    },
    /// A message queue, an index into [`Image::queues`].
    Queue {
        /// Which.
        queue: usize,
    },
}

/// A pipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipe {
    /// How much it takes.
    pub capacity: u32,
    /// What nobody has read yet.
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
    /// The path of a named one (fifo(7)).
    #[serde(default)]
    pub path: Option<String>,
    /// Where that path leads to it, an index into [`Image::mount_spaces`]; none if in the first process's.
    pub mount_space: Option<usize>,
}

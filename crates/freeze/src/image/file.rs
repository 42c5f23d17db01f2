//! Open files of an image, and what descriptors lead to them.

use crate::image::Image;
use crate::image::socket::PlainSocket;
use pando_kernel::terminal;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// A descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The number by which the process names it.
    pub number: i32,
    /// The open file, an index into [`Image::files`](super::Image::files).
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
    /// That file, an index into [`Image::files`](super::Image::files). Its number may have been closed since, or lead
    /// to another file.
    pub file: usize,
    /// The events that are watched for, as the kernel numbers them.
    pub events: u32,
    /// The program's own word, which comes with each event.
    pub data: u64,
}

impl Watch {
    /// Whether it tells of one event (EPOLLONESHOT) and has told of it: nothing is left that it is for but how it is
    /// kept, until the program watches again.
    pub(crate) fn has_fired(&self) -> bool {
        /// `EP_PRIVATE_BITS`: EPOLLEXCLUSIVE, EPOLLWAKEUP, EPOLLONESHOT, EPOLLET.
        const MANNERS: u32 = 0xf << 28;
        self.events & libc::EPOLLONESHOT as u32 != 0 && self.events & !MANNERS == 0
    }
}

/// A lease of an open file: its holder hears of others who open it (fcntl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// A descriptor of the file.
    pub descriptor: i32,
    /// Which lease it is: `F_RDLCK` or `F_WRLCK`.
    pub kind: i32,
    /// The signal by which it hears of them, if not by SIGIO.
    pub signal: i32,
    /// The file's owner, who may take one.
    pub owner: u32,
}

/// An open file description, which several descriptors may share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// `O_*`, without those that only matter when opening.
    pub flags: u32,
    /// The position of the next read or write.
    pub position: i64,
    /// The lock of flock(2) on it, if any: `LOCK_SH` or `LOCK_EX`.
    pub lock: Option<i32>,
    /// Record locks that belong to it (`F_OFD_SETLK`): kind, start, length.
    #[serde(default)]
    pub ranges: Vec<(i16, i64, i64)>,
    /// What kind of file is open.
    pub kind: FileKind,
    /// Where its path leads to it, an index into [`Image::mount_spaces`](super::Image::mount_spaces); none if in the
    /// first process's.
    pub mount_space: Option<usize>,
}

/// Whom an open file belongs to that has no name: a pipe, a socket. Whoever opens a pipe once more, by /proc/self/fd,
/// is let by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOwner {
    /// The open file, an index into [`Image::files`](super::Image::files).
    pub file: usize,
    /// The owner, as the id inside.
    pub user: u32,
    /// The group, as the id inside.
    pub group: u32,
}

/// What an open file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A file, directory or device with a name.
    Named {
        /// The path of the file inside.
        path: String,
    },
    /// An end of a pipe, an index into [`Image::pipes`](super::Image::pipes).
    PipeEnd {
        /// The pipe, an index into [`Image::pipes`](super::Image::pipes).
        pipe: usize,
        /// Whether it is the end that writes.
        writes: bool,
    },
    /// Something of the outside, which a clone gets in its own version: the number that the caller gave it.
    Supplied {
        /// The number that the caller gave it.
        number: usize,
    },
    /// eventfd(2): its count and whether it is a semaphore.
    Event {
        /// The count of the eventfd.
        count: u64,
        /// Whether each read takes one of the count.
        semaphore: bool,
    },
    /// An instance of epoll(7); what it watches is with the processes.
    Epoll,
    /// timerfd_create(2): the clock, flags of the setting, interval and rest as in
    /// [`Timer::setting`](super::Timer::setting), missed ticks.
    TimerFd {
        /// The clock of the timer: `CLOCK_*`.
        clock: i32,
        /// Flags of the timer's setting: `TFD_TIMER_*`.
        flags: u32,
        /// Interval and rest, each in seconds and nanoseconds.
        setting: [u64; 4],
        /// Expirations that nobody has read yet.
        ticks: u64,
    },
    /// A file without a name, an index into [`Image::contents`](super::Image::contents).
    Nameless {
        /// The file, an index into [`Image::contents`](super::Image::contents).
        content: usize,
    },
    /// A unix socket, an index into [`Image::unix`](super::Image::unix).
    Unix {
        /// The socket, an index into [`Image::unix`](super::Image::unix).
        socket: usize,
    },
    /// A socket that is no unix socket.
    Plain(PlainSocket),
    /// A signalfd(2), with the signals that it takes.
    SignalFd {
        /// Bit N−1 for signal N.
        mask: u64,
    },
    /// An end of a pseudo-terminal, an index into [`Image::terminals`](super::Image::terminals).
    Terminal {
        /// The terminal, an index into [`Image::terminals`](super::Image::terminals).
        terminal: usize,
        /// The end of the terminal.
        end: TerminalEnd,
    },
    /// inotify(7): what it watches, by ascending number.
    Inotify {
        /// The watches of the instance, by ascending number.
        watches: Vec<FileWatch>,
    },
    /// A descriptor of a process (pidfd_open(2)).
    Process {
        /// The pid of the process inside.
        pid: i32,
    },
    /// A namespace, as /proc/PID/ns has it.
    Namespace {
        /// The kind of namespace: one of `CLONE_NEW*`.
        kind: i32,
        /// Which of the image's own of that kind, for [host names](super::Image::host_names),
        /// [mounts](super::Image::mount_spaces), [ipc](super::Image::ipc_spaces) or
        /// [networks](super::Image::net_spaces); none if the first process's.
        space: Option<usize>,
    },
    /// A message queue, an index into [`Image::queues`](super::Image::queues).
    Queue {
        /// The queue, an index into [`Image::queues`](super::Image::queues).
        queue: usize,
    },
}

/// A pipe, with what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipe {
    /// How many bytes the pipe takes.
    pub capacity: u32,
    /// What nobody has read yet.
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
    /// The path of a named one (fifo(7)).
    #[serde(default)]
    pub path: Option<String>,
    /// Where that path leads to it, an index into [`Image::mount_spaces`](super::Image::mount_spaces); none if in the
    /// first process's.
    pub mount_space: Option<usize>,
}

/// Whether an open file is a pipe or a socket, which is made anew and has an owner.
pub(crate) fn is_nameless_end(kind: &FileKind, image: &Image) -> bool {
    match kind {
        FileKind::PipeEnd { pipe, .. } => image.pipes.get(*pipe).is_some_and(|pipe| pipe.path.is_none()),
        FileKind::Unix { .. } | FileKind::Plain(_) => true,
        _ => false,
    }
}

/// A watch of an inotify instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWatch {
    /// The number by which the process names it.
    pub number: i32,
    /// The events that are watched for, as the kernel numbers them.
    pub events: u32,
    /// The path of what is watched.
    pub path: String,
}

/// More than this are not captured.
pub(crate) const MOST_FILE_WATCHES: usize = 16_384;

/// One of them, with both of its ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// The terminal's number in /dev/pts.
    pub number: u32,
    /// The terminal's settings: the kernel's `struct termios2`.
    pub settings: Vec<u8>,
    /// Rows, columns, and as many pixels.
    pub size: [u16; 4],
    /// Whether the master is in packet mode.
    pub packets: bool,
    /// Owner, group and mode of its file in /dev/pts.
    pub owner: (u32, u32, u32),
    /// The process that leads the session whose terminal it is; 0 for none.
    pub session: i32,
    /// The process group that reads from it; 0 for none.
    pub foreground: i32,
    /// Whether it is the console, whose master is outside: a clone has it already.
    pub kept: bool,
}

/// What an open file is of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminalEnd {
    /// The end of whoever shows it.
    Master,
    /// The end of who runs on it.
    Other,
    /// The same, opened as /dev/console.
    Console,
}

/// Numbers beyond this are too many to count through.
pub(crate) const HIGHEST_TERMINAL: u32 = 255;

impl Terminal {
    pub(crate) fn look(&mut self, file: &OwnedFd) -> std::io::Result<()> {
        self.settings = terminal::settings(file)?.to_vec();
        let size = rustix::termios::tcgetwinsize(file)?;
        self.size = [size.ws_row, size.ws_col, size.ws_xpixel, size.ws_ypixel];
        self.owner = (0, 5, 0o620);
        Ok(())
    }
}

/// What /dev/console is called in a guest.
pub(crate) const CONSOLE_PATH: &str = "/dev/console";

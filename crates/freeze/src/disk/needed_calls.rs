//! Calls by which processes get what an image says that they have: who judges an image of somebody else's asks whether
//! a guest's filter would have let them.
//!
//! A clone's maker makes sockets and namespaces before any filter is there, with powers that no process of the guest
//! has. So an image that was written by hand could have a process hold what it would never have got.

use crate::image::{AreaKind, ContentKind, FileKind, Image, KeyedKind, OpenFile, Process, SocketOption};

/// One of them, and what comes of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NeededCall {
    /// What the processes hold, for people.
    pub what: String,
    /// The number of the call.
    pub number: i64,
    /// Its arguments, as far as they are numbers that say what is made.
    pub arguments: [u64; 6],
}

impl NeededCall {
    fn new<const N: usize>(what: impl Into<String>, number: i64, arguments: [u64; N]) -> Self {
        let mut all = [0; 6];
        all.iter_mut().zip(arguments).for_each(|(own, given)| *own = given);
        Self { what: what.into(), number, arguments: all }
    }

    fn namespace(what: &str, flag: i32) -> Self {
        Self::new(what, libc::SYS_unshare, [flag as u64])
    }
}

/// Those of an image, each once.
pub(crate) fn of(image: &Image) -> Vec<NeededCall> {
    // Each field by its name: of a new one it has to be decided here what it is.
    let Image {
        processes,
        files,
        unix,
        contents,
        keyed,
        queues,
        host_names,
        mounts,
        mount_spaces,
        ipc_spaces,
        net_spaces,
        user_spaces,
        shared_mounts,
        // What anybody may have.
        pipes: _,
        terminals: _,
        // Below /proc/sys/net, as the clone's own root may: no call but write(2).
        net_settings: _,
        // Directories that are made below the guest's own group, as whoever made them there.
        control_groups: _,
        init: _,
        adopted: _,
    } = image;
    let mut all = Vec::new();
    for process in processes {
        of_process(process, &mut all);
    }
    for file in files {
        of_file(file, &mut all);
    }
    for socket in unix {
        all.push(socket_call(libc::AF_UNIX, socket.kind, 0));
        all.extend(options(&socket.options));
    }
    let in_memory = contents.iter().filter(|content| matches!(content.kind, ContentKind::Memory { .. }));
    all.extend(in_memory.map(|_| NeededCall::new("a file in memory", libc::SYS_memfd_create, [0])));
    all.extend(keyed.iter().map(|keyed| match keyed.kind {
        KeyedKind::Segment { .. } => NeededCall::new("shared memory of System V", libc::SYS_shmget, [0]),
        KeyedKind::Semaphores { .. } => NeededCall::new("semaphores of System V", libc::SYS_semget, [0]),
        KeyedKind::Queue { .. } => NeededCall::new("a queue of System V", libc::SYS_msgget, [0]),
    }));
    if !queues.is_empty() {
        all.push(NeededCall::new("a message queue", libc::SYS_mq_open, [0]));
    }
    if !mounts.is_empty() || *shared_mounts {
        all.push(NeededCall::new("mounts of their own", libc::SYS_mount, [0]));
    }
    if !mount_spaces.is_empty() {
        all.push(NeededCall::namespace("a mount namespace of their own", libc::CLONE_NEWNS));
        if mount_spaces.iter().any(|space| !space.changes.is_empty()) {
            all.push(NeededCall::new("mounts of their own", libc::SYS_mount, [0]));
        }
    }
    let spaces = [
        (host_names.len(), "host names of their own", libc::CLONE_NEWUTS),
        (*ipc_spaces, "an ipc namespace of their own", libc::CLONE_NEWIPC),
        (net_spaces.len(), "a network namespace of their own", libc::CLONE_NEWNET),
        (user_spaces.len(), "a user namespace of their own", libc::CLONE_NEWUSER),
    ];
    let made = spaces.into_iter().filter(|(count, ..)| *count > 0);
    all.extend(made.map(|(_, what, flag)| NeededCall::namespace(what, flag)));
    all.sort_unstable();
    all.dedup();
    all
}

fn of_process(process: &Process, all: &mut Vec<NeededCall>) {
    let rings = process.areas.iter().any(|area| matches!(area.kind, AreaKind::AioRing(_)));
    if rings {
        all.push(NeededCall::new("requests of asynchronous input and output", libc::SYS_io_setup, [0]));
    }
    if !process.timers.is_empty() {
        all.push(NeededCall::new("timers", libc::SYS_timer_create, [0]));
    }
    for thread in &process.threads {
        let class = u64::from(thread.scheduling.policy);
        if class != 0 {
            all.push(NeededCall::new("a class of scheduling", libc::SYS_sched_setscheduler, [0, class]));
        }
    }
}

fn of_file(file: &OpenFile, all: &mut Vec<NeededCall>) {
    match &file.kind {
        FileKind::Plain(socket) => {
            all.push(socket_call(socket.family, socket.kind, socket.protocol));
            all.extend(options(&socket.options));
        }
        FileKind::Event { .. } => all.push(NeededCall::new("an eventfd", libc::SYS_eventfd2, [0])),
        FileKind::Epoll => all.push(NeededCall::new("an epoll instance", libc::SYS_epoll_create1, [0])),
        FileKind::TimerFd { clock, .. } => {
            all.push(NeededCall::new("a timer with a descriptor", libc::SYS_timerfd_create, [*clock as u64]));
        }
        FileKind::SignalFd { .. } => all.push(NeededCall::new("a signalfd", libc::SYS_signalfd4, [0])),
        FileKind::Inotify { .. } => all.push(NeededCall::new("an inotify instance", libc::SYS_inotify_init1, [0])),
        FileKind::Process { .. } => all.push(NeededCall::new("a pidfd", libc::SYS_pidfd_open, [0])),
        // By a name of the guest's own, or said with what they are ends of.
        FileKind::Named { .. }
        | FileKind::PipeEnd { .. }
        | FileKind::Supplied { .. }
        | FileKind::Nameless { .. }
        | FileKind::Unix { .. }
        | FileKind::Terminal { .. }
        | FileKind::Namespace { .. }
        | FileKind::Queue { .. } => {}
    }
}

fn socket_call(family: i32, kind: i32, protocol: i32) -> NeededCall {
    let what = format!("a socket of family {family}, type {kind}, protocol {protocol}");
    NeededCall::new(what, libc::SYS_socket, [family as u64, kind as u64, protocol as u64])
}

fn options(options: &[SocketOption]) -> impl Iterator<Item = NeededCall> {
    options.iter().map(|(level, name, _)| {
        let what = format!("a socket's option {name} of level {level}");
        NeededCall::new(what, libc::SYS_setsockopt, [0, *level as u64, *name as u64])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{NetSpace, PlainSocket};

    #[test]
    fn what_processes_hold_is_said_once_with_the_call_that_makes_it() {
        let socket = PlainSocket { family: libc::AF_VSOCK, kind: libc::SOCK_STREAM, ..PlainSocket::default() };
        let file = |kind| OpenFile { flags: 0, position: 0, lock: None, ranges: Vec::new(), kind, mount_space: None };
        let files = vec![file(FileKind::Plain(socket.clone())), file(FileKind::Plain(socket)), file(FileKind::Epoll)];
        let image = Image { files, net_spaces: vec![NetSpace::default()], ..Image::default() };
        let numbers: Vec<(i64, u64)> = of(&image).iter().map(|call| (call.number, call.arguments[0])).collect();
        assert_eq!(numbers.len(), 3);
        for call in [
            (libc::SYS_socket, libc::AF_VSOCK as u64),
            (libc::SYS_unshare, libc::CLONE_NEWNET as u64),
            (libc::SYS_epoll_create1, 0),
        ] {
            assert!(numbers.contains(&call), "{call:?}");
        }
        assert!(of(&Image::default()).is_empty());
    }
}

//! Calls by which processes get what an image says that they have: who judges an image of somebody else's asks whether
//! a guest's filter would have let them.
//!
//! A clone's maker makes sockets and namespaces before any filter is there, with powers that no process of the guest
//! has. So an image that was written by hand could have a process hold what it would never have got.

use crate::image::mount::{self, is_made};
use crate::image::{
    AreaKind, Content, ContentKind, FileKind, Image, KeyedKind, MountChange, MountSpace, NetSpace, OpenFile,
    PlainSocket, Process, Scheduling, SocketOption, Thread, UnixSocket,
};

/// One of them, and what comes of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NeededCall {
    /// What the processes hold, for people.
    pub what: String,
    /// The number of the call.
    pub number: i64,
    /// Its arguments, as far as they are numbers that say what is made.
    pub arguments: [u64; 6],
    /// The capabilities, a bit each, one of which the kernel asks whoever makes it for; 0 where it asks for none.
    /// Whoever makes a clone has all of them over what is the clone's.
    pub capabilities: u64,
}

const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const SYS_CHROOT: u64 = 1 << 18;
const SYS_ADMIN: u64 = 1 << 21;

impl NeededCall {
    fn new<const N: usize>(what: impl Into<String>, number: i64, arguments: [u64; N]) -> Self {
        let mut all = [0; 6];
        all.iter_mut().zip(arguments).for_each(|(own, given)| *own = given);
        Self { what: what.into(), number, arguments: all, capabilities: 0 }
    }

    fn with_one_of(self, capabilities: u64) -> Self {
        Self { capabilities, ..self }
    }

    /// Those beside the first process's belong to its user namespace, whoever is in one of his own.
    fn namespace(what: &str, flag: i32) -> Self {
        let capabilities = if flag == libc::CLONE_NEWUSER { 0 } else { SYS_ADMIN };
        Self::new(what, libc::SYS_unshare, [flag as u64]).with_one_of(capabilities)
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
        net_device,
        user_spaces,
        shared_mounts,
        // What anybody may have.
        pipes: _,
        owners: _,
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
    unix.iter().for_each(|socket| of_unix_socket(socket, &mut all));
    contents.iter().for_each(|content| of_content(content, &mut all));
    net_spaces.iter().for_each(of_network);
    if net_device.is_some() {
        let call = NeededCall::new("what the network device takes", libc::SYS_ioctl, [0, libc::SIOCSIFMTU]);
        all.push(call.with_one_of(NET_ADMIN));
    }
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
    of_mount_spaces(mount_spaces, &mut all);
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

fn of_mount_spaces(spaces: &[MountSpace], all: &mut Vec<NeededCall>) {
    if !spaces.is_empty() {
        all.push(NeededCall::namespace("a mount namespace of their own", libc::CLONE_NEWNS));
        if spaces.iter().any(|space| !space.changes.is_empty()) {
            all.push(NeededCall::new("mounts of their own", libc::SYS_mount, [0]));
        }
    }
    let has_root = |change: &MountChange| is_made(change) && mount::path(change) == "/";
    if spaces.iter().flat_map(|space| &space.changes).any(has_root) {
        all.push(NeededCall::new("another root", libc::SYS_pivot_root, [0]).with_one_of(SYS_ADMIN));
    }
}

fn of_process(process: &Process, all: &mut Vec<NeededCall>) {
    let Process {
        threads,
        areas,
        timers,
        root,
        // What anybody may have, or do to itself.
        pid: _,
        parent: _,
        group: _,
        session: _,
        ended: _,
        stopped: _,
        layout: _,
        executable: _,
        deleted_executable: _,
        actions: _,
        intervals: _,
        waiting: _,
        descriptors: _,
        locks: _,
        watches: _,
        directory: _,
        deleted_directory: _,
        umask: _,
        leases: _,
        flags: _,
        memory_rules: _,
        // Which of those that are made with the image.
        host_names: _,
        mount_space: _,
        ipc_space: _,
        net_space: _,
        user_space: _,
        control_group: _,
        // As far as the daemon gives it to what came from elsewhere.
        by_host: _,
        // Said with the powers.
        limits: _,
    } = process;
    let rings = areas.iter().any(|area| matches!(area.kind, AreaKind::AioRing(_)));
    if rings {
        all.push(NeededCall::new("requests of asynchronous input and output", libc::SYS_io_setup, [0]));
    }
    if root.is_some() {
        all.push(NeededCall::new("a root directory of its own", libc::SYS_chroot, [0]).with_one_of(SYS_CHROOT));
    }
    if !timers.is_empty() {
        all.push(NeededCall::new("timers", libc::SYS_timer_create, [0]));
    }
    threads.iter().for_each(|thread| of_thread(thread, all));
}

fn of_thread(thread: &Thread, all: &mut Vec<NeededCall>) {
    let Thread {
        scheduling: Scheduling { policy, nice: _, priority: _, disk: _, processors: _ },
        // What anybody may have, or do to itself.
        tid: _,
        name: _,
        registers: _,
        extended: _,
        mask: _,
        waiting: _,
        signal_stack: _,
        clear: _,
        robust: _,
        rseq: _,
        parent_death: _,
        slack: _,
        left: _,
        settings: _,
        // Said with the powers.
        credentials: _,
        filters: _,
    } = thread;
    if *policy != 0 {
        let class = u64::from(*policy);
        all.push(NeededCall::new("a class of scheduling", libc::SYS_sched_setscheduler, [0, class]));
    }
}

fn of_file(file: &OpenFile, all: &mut Vec<NeededCall>) {
    // Locks and flags are what anybody may have of what he may open.
    let OpenFile { kind, flags: _, position: _, lock: _, ranges: _, mount_space: _ } = file;
    match kind {
        FileKind::Plain(socket) => of_plain_socket(socket, all),
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

fn of_plain_socket(socket: &PlainSocket, all: &mut Vec<NeededCall>) {
    // Roles are had by listen(2) and connect(2), which no filter of ours refuses.
    let PlainSocket { family, kind, protocol, name, options, filter, role: _, net_space: _ } = socket;
    let is_raw = matches!(*family, libc::AF_INET | libc::AF_INET6) && *kind == libc::SOCK_RAW;
    let raw = if is_raw || *family == libc::AF_PACKET { NET_RAW } else { 0 };
    all.push(socket_call(*family, *kind, *protocol).with_one_of(raw));
    options.iter().for_each(|option| all.push(option_call(option)));
    if !filter.is_empty() {
        let arguments = [0, libc::SOL_SOCKET as u64, libc::SO_ATTACH_FILTER as u64];
        all.push(NeededCall::new("a packet filter at a socket", libc::SYS_setsockopt, arguments));
    }
    // `struct sockaddr_nl`: the groups that it hears of.
    let groups = name.get(8..12).is_some_and(|groups| groups != [0; 4]);
    if *family == libc::AF_NETLINK && groups && !FOR_ALL.contains(protocol) {
        let what = format!("a socket that hears what the kernel tells by netlink protocol {protocol}");
        all.push(NeededCall::new(what, libc::SYS_bind, [0]).with_one_of(NET_ADMIN));
    }
}

/// Protocols of netlink whose groups anybody hears (`NL_CFG_F_NONROOT_RECV`): routes, SELinux, events of devices,
/// generic.
const FOR_ALL: [i32; 4] =
    [libc::NETLINK_ROUTE, libc::NETLINK_SELINUX, libc::NETLINK_KOBJECT_UEVENT, libc::NETLINK_GENERIC];

fn of_unix_socket(socket: &UnixSocket, all: &mut Vec<NeededCall>) {
    let UnixSocket {
        kind,
        options,
        // What anybody may do to one, below the guest's own root.
        file: _,
        net_space: _,
        name: _,
        directory: _,
        place: _,
        published: _,
        borrows_directory: _,
        connected: _,
        peer: _,
        peer_credentials: _,
        connector: _,
        queue: _,
        shut: _,
        backlog: _,
        waiting: _,
        sent: _,
        gone: _,
        is_untold: _,
        carries: _,
        is_urgent: _,
        is_elsewhere: _,
        is_homeless: _,
        is_lost: _,
    } = socket;
    all.push(socket_call(libc::AF_UNIX, *kind, 0));
    options.iter().for_each(|option| all.push(option_call(option)));
}

fn of_content(content: &Content, all: &mut Vec<NeededCall>) {
    // What is in it, whose it is and what may be done with it: of the guest's own files.
    let Content { kind, length: _, runs: _, mode: _, owner: _, holder: _, path: _, times: _ } = content;
    match kind {
        ContentKind::Memory { .. } => all.push(NeededCall::new("a file in memory", libc::SYS_memfd_create, [0])),
        ContentKind::Deleted { .. }
        | ContentKind::DeletedDirectory { .. }
        | ContentKind::Placed { .. }
        | ContentKind::Directory { .. }
        | ContentKind::Fifo { .. }
        | ContentKind::Link { .. }
        | ContentKind::Name { .. }
        | ContentKind::Point { .. } => {}
    }
}

/// The namespace is said for all of them; there is nothing in one but whether its loopback is up, and what its root
/// sets below /proc/sys/net.
fn of_network(space: &NetSpace) {
    let NetSpace { up: _, settings: _ } = space;
}

fn socket_call(family: i32, kind: i32, protocol: i32) -> NeededCall {
    let what = format!("a socket of family {family}, type {kind}, protocol {protocol}");
    NeededCall::new(what, libc::SYS_socket, [family as u64, kind as u64, protocol as u64])
}

fn option_call((level, name, value): &SocketOption) -> NeededCall {
    const IP_TRANSPARENT: i32 = 19;
    const NETLINK_LISTEN_ALL_NSID: i32 = 8;
    const NET_BROADCAST: u64 = 1 << 11;
    let number = value.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes));
    let capabilities = match (*level, *name) {
        (libc::IPPROTO_IP, IP_TRANSPARENT) => NET_RAW | NET_ADMIN,
        (libc::SOL_SOCKET, libc::SO_PRIORITY) if !(0..=6).contains(&number) => NET_RAW | NET_ADMIN,
        (libc::SOL_NETLINK, NETLINK_LISTEN_ALL_NSID) => NET_BROADCAST,
        _ => 0,
    };
    let what = format!("a socket's option {name} of level {level}");
    NeededCall::new(what, libc::SYS_setsockopt, [0, *level as u64, *name as u64]).with_one_of(capabilities)
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

    #[test]
    fn what_takes_a_capability_says_which() {
        let asked = |socket: PlainSocket| {
            let kind = FileKind::Plain(socket);
            let file = OpenFile { flags: 0, position: 0, lock: None, ranges: Vec::new(), kind, mount_space: None };
            of(&Image { files: vec![file], ..Image::default() })
        };
        let socket = |family, kind| PlainSocket { family, kind, ..PlainSocket::default() };
        let plain = socket(libc::AF_INET, libc::SOCK_DGRAM);
        let hears = PlainSocket {
            protocol: libc::NETLINK_NETFILTER,
            name: vec![16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
            ..socket(libc::AF_NETLINK, libc::SOCK_RAW)
        };
        let routes = PlainSocket { protocol: libc::NETLINK_ROUTE, ..hears.clone() };
        let option = |level, name, value: i32| PlainSocket {
            options: vec![(level, name, value.to_le_bytes().to_vec())],
            ..plain.clone()
        };
        for (socket, capabilities) in [
            (socket(libc::AF_INET, libc::SOCK_RAW), NET_RAW),
            (socket(libc::AF_PACKET, libc::SOCK_DGRAM), NET_RAW),
            (option(libc::IPPROTO_IP, 19, 1), NET_RAW | NET_ADMIN),
            (option(libc::SOL_SOCKET, libc::SO_PRIORITY, 7), NET_RAW | NET_ADMIN),
            (option(libc::SOL_SOCKET, libc::SO_PRIORITY, 6), 0),
            (hears, NET_ADMIN),
            (routes, 0),
            (plain.clone(), 0),
        ] {
            let all = asked(socket.clone()).iter().fold(0, |all, call| all | call.capabilities);
            assert_eq!(all, capabilities, "{socket:?}");
        }
        let image = Image { net_spaces: vec![NetSpace::default()], ..Image::default() };
        assert_eq!(of(&image)[0].capabilities, SYS_ADMIN);
    }

    #[test]
    fn a_packet_filter_is_asked_for() {
        let socket =
            PlainSocket { family: libc::AF_INET, filter: vec![6, 0, 0, 0, 0xff, 0xff, 0, 0], ..PlainSocket::default() };
        let mut all = Vec::new();
        of_plain_socket(&socket, &mut all);
        let asked = [0, libc::SOL_SOCKET as u64, libc::SO_ATTACH_FILTER as u64, 0, 0, 0];
        assert!(all.iter().any(|call| call.number == libc::SYS_setsockopt && call.arguments == asked), "{all:?}");
    }
}

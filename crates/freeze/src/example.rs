//! An image that has one of nearly everything: what tests and fuzzers begin with.

use crate::image::{
    AioRing, Area, AreaKind, Content, ContentKind, ControlGroup, ControlGroups, Descriptor, FileKind, HostNames, Image,
    Keyed, KeyedKind, MountChange, MountSource, MountSpace, NetDevice, NetSpace, OpenFile, PeerCredentials, Pipe,
    Process, Queue, Sender, Terminal, TerminalEnd, Thread, UnixSocket, UserSpace, Waiting,
};

fn area(start: u64, kind: AreaKind) -> Area {
    let pages_are_own = matches!(kind, AreaKind::Anonymous);
    let pages = if pages_are_own { vec![(start, 4096)] } else { Vec::new() };
    Area {
        advice: vec![libc::MADV_DONTDUMP as u32],
        pages,
        guards: if pages_are_own { vec![(start + 0x3000, 0x1000)] } else { Vec::new() },
        ..Area::new(start, start + 0x4000, 3, kind)
    }
}

fn process(pid: i32, parent: i32) -> Process {
    let thread = |tid| Thread { tid, registers: vec![7; 25], extended: vec![0; 900], ..Thread::default() };
    Process {
        pid,
        parent,
        group: 2,
        session: 2,
        threads: vec![thread(pid), thread(pid + 100)],
        areas: vec![
            area(0x10_0000, AreaKind::Anonymous),
            area(0x20_0000, AreaKind::Private { path: "/bin/sh".into(), offset: 0 }),
            area(0x30_0000, AreaKind::Nameless { content: 0, offset: 0, shared: true, writable: true }),
            area(0x40_0000, AreaKind::Kernel { name: "[vdso]".into() }),
            area(0x50_0000, AreaKind::Segment { id: 0, writable: true }),
            area(0x60_0000, AreaKind::AioRing(AioRing { requests: 3, head: 510, events: vec![[1; 4]; 2] })),
        ],
        executable: "/bin/sh".into(),
        directory: "/".into(),
        descriptors: (0..5).map(|number| Descriptor { number, file: number as usize, close_on_exec: false }).collect(),
        actions: vec![(2, [0; 4])],
        ..Process::default()
    }
}

/// The image.
pub(crate) fn image() -> Image {
    let file = |kind| OpenFile { flags: 2, position: 3, lock: None, ranges: Vec::new(), kind, mount_space: None };
    let content = Content {
        kind: ContentKind::Memory { name: "x".into(), seals: 0 },
        length: 0x8000,
        runs: vec![(0, 4096), (0x4000, 4096)],
        mode: 0o600,
        owner: (0, 0),
        holder: 2,
        path: "fd/3".into(),
        times: [1, 2, 3, 4],
    };
    let kinds = [
        FileKind::Named { path: "/etc/passwd".into() },
        FileKind::PipeEnd { pipe: 0, writes: true },
        FileKind::Nameless { content: 0 },
        FileKind::Unix { socket: 0 },
        FileKind::Terminal { terminal: 0, end: TerminalEnd::Other },
        FileKind::Namespace { kind: libc::CLONE_NEWIPC, space: Some(0) },
    ];
    let (path, from) = ("/mnt".to_owned(), MountSource { space: None, path: "/srv".into() });
    let changes = vec![
        MountChange::Gone { path: path.clone() },
        MountChange::Set { path: path.clone(), attributes: 1 },
        MountChange::Bind { path: path.clone(), from, attributes: 1 },
        MountChange::Memory { path: path.clone(), options: "size=5k".into(), attributes: 0, contents: (0, 1) },
        MountChange::Queues { path: path.clone(), space: 0, attributes: 0, device: String::new() },
        MountChange::Devices { path, space: 0, attributes: 0, device: String::new() },
    ];
    let settings = vec![("pids.max".to_owned(), "9".to_owned())];
    let group = ControlGroup { path: "/init.scope".into(), owner: (1, 1), given: Vec::new(), settings };
    let (name, waiting) = (b"\x01\0/run/x\0".to_vec(), b"with two".to_vec());
    let queue = vec![Waiting { bytes: waiting, from: Vec::new(), files: vec![0, 3], sender: Some(Sender::default()) }];
    let segment = KeyedKind::Segment { length: 4096, content: vec![1; 9] };
    Image {
        processes: vec![process(2, 1), process(3, 2), process(4, 3)],
        files: kinds.into_iter().map(file).collect(),
        owners: Vec::new(),
        pipes: vec![Pipe { capacity: 4096, content: b"content".to_vec(), path: None, mount_space: Some(0) }],
        unix: vec![UnixSocket {
            file: 3,
            kind: 1,
            name,
            connected: true,
            peer_credentials: Some(PeerCredentials { user: 7, group: 8, further: vec![9] }),
            queue,
            ..UnixSocket::default()
        }],
        contents: vec![content],
        terminals: vec![Terminal { number: 2, settings: vec![0; 44], session: 2, ..Terminal::default() }],
        keyed: vec![Keyed { id: 0, key: 5, mode: 0o600, owner: (0, 0), kind: segment }],
        queues: vec![Queue { name: "jobs".into(), capacity: 1, longest: 4, ..Queue::default() }],
        host_names: vec![HostNames { host: b"inner".to_vec(), domain: Vec::new() }],
        mounts: vec![MountChange::Gone { path: "/sys".into() }],
        shared_mounts: true,
        mount_spaces: vec![MountSpace { changes, ..MountSpace::default() }],
        ipc_spaces: 1,
        net_spaces: vec![NetSpace { up: true, settings: vec![("/proc/sys/net/ipv4/tcp_ecn".into(), "1".into())] }],
        net_device: Some(NetDevice { name: "eth0".into(), longest: 1400 }),
        net_settings: vec![("/proc/sys/net/ipv4/ip_forward".into(), "1".into())],
        user_spaces: vec![UserSpace { users: vec![[0, 0, 1]], groups: vec![[0, 0, 1]], ..UserSpace::default() }],
        control_groups: ControlGroups {
            root: "/sys/fs/cgroup".into(),
            given: vec!["pids".into()],
            groups: vec![group],
        },
        init: 1,
        adopted: true,
    }
}

//! What a frozen tree of processes is: plain data, and all that a script is written from.
//!
//! Pids are those inside the frozen pid namespace, ids those inside its user namespace, paths those inside its root.
//! Memory contents are not in here: a holder has them.

pub(crate) mod aio;
pub(crate) mod connection;
pub(crate) mod content;
pub(crate) mod control_group;
pub(crate) mod dormancy;
pub(crate) mod file;
pub(crate) mod ipc;
pub(crate) mod made_mounts;
pub(crate) mod memory;
pub(crate) mod mount;
pub(crate) mod namespace;
pub(crate) mod namespace_kind;
pub(crate) mod own_files;
pub(crate) mod process;
pub(crate) mod socket;
pub(crate) mod thread;
pub(crate) mod user_turns;

pub use self::content::{Content, ContentKind};
pub use self::control_group::{ControlGroup, ControlGroups};
pub use self::file::{Descriptor, FileKind, FileOwner, FileWatch, Lease, OpenFile, Pipe, Terminal, TerminalEnd, Watch};
pub use self::ipc::{Keyed, KeyedKind, Queue};
pub use self::memory::{AioRing, Area, AreaKind, MemoryRules};
pub use self::mount::{Link, MountChange, MountSource};
pub use self::namespace::{HostNames, MountSpace, NetDevice, NetSpace, UserSpace};
pub use self::process::{ByHost, Layout, Process, ProcessFlags};
pub use self::socket::{GoneClient, PeerCredentials, PlainSocket, Role, Sender, SocketOption, UnixSocket, Waiting};
pub use self::thread::{Credentials, Scheduling, Thread, ThreadSettings, Timer, WaitingSignal};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// A frozen tree of processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The processes of the tree, parents before children.
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
    /// The owners of pipes and sockets that are not root's.
    #[serde(default)]
    pub owners: Vec<FileOwner>,
    /// POSIX message queues; open files are they.
    pub queues: Vec<Queue>,
    /// Host names beside those of the first process.
    pub host_names: Vec<HostNames>,
    /// Pseudo-terminals; open files are ends of them.
    #[serde(default)]
    pub terminals: Vec<Terminal>,
    /// How the first process's mounts differ from what each clone is given, in the order in which that is made. What is
    /// mounted once more is had from what is given, or from what was made before ([`MountSource::space`] 0).
    pub mounts: Vec<MountChange>,
    /// Whether others can hear of what is mounted in the first process's namespace.
    pub shared_mounts: bool,
    /// Mount namespaces beside the first process's.
    pub mount_spaces: Vec<MountSpace>,
    /// How many ipc namespaces there are beside the first process's. There is nothing in them.
    pub ipc_spaces: usize,
    /// Network namespaces beside the first process's.
    pub net_spaces: Vec<NetSpace>,
    /// What is set of the first process's own network: paths below /proc/sys/net, in the order in which that is done,
    /// and what is written to each.
    pub net_settings: Vec<(String, String)>,
    /// The device that connects the guest to its network, where something was chosen of it.
    pub net_device: Option<NetDevice>,
    /// User namespaces beside the first process's.
    pub user_spaces: Vec<UserSpace>,
    /// Control groups below the guest's own.
    pub control_groups: ControlGroups,
    /// The pid of the namespace's first process. Where it is not one of the image, what it was the parent of falls to a
    /// clone's first process.
    pub init: i32,
    /// Whether it came from elsewhere, so that nobody here has allowed what it asks of the host.
    pub adopted: bool,
}

impl Image {
    /// The namespace's first process, if it is one of the image: an index into [`Self::processes`].
    pub fn first(&self) -> Option<usize> {
        self.processes.iter().position(|process| process.pid == self.init)
    }

    /// The areas whose pages are kept, with the process of each, an index into [`Self::processes`]: what several
    /// processes share since a fork comes once, with the first of them.
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

//! Kinds of namespaces, as /proc and the system calls name them.

/// A kind of namespaces, such as those of mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// How a namespace of the kind is called in sentences.
    pub(crate) name: &'static str,
    /// The name of its link in /proc/PID/ns.
    pub(crate) link: &'static str,
    /// The flag of clone(2) for the kind: one of `CLONE_NEW*`.
    pub(crate) flag: i32,
}

pub(crate) const HOST_NAMES: Kind = Kind { name: "a namespace of host names", link: "uts", flag: libc::CLONE_NEWUTS };
pub(crate) const IPC: Kind = Kind { name: "an ipc namespace", link: "ipc", flag: libc::CLONE_NEWIPC };
pub(crate) const MOUNTS: Kind = Kind { name: "a mnt namespace", link: "mnt", flag: libc::CLONE_NEWNS };
pub(crate) const NETWORK: Kind = Kind { name: "a net namespace", link: "net", flag: libc::CLONE_NEWNET };
pub(crate) const USERS: Kind = Kind { name: "a user namespace", link: "user", flag: libc::CLONE_NEWUSER };

/// Those of which a clone has none but the first process's.
const ONLY: [Kind; 3] = [
    Kind { name: "a pid namespace", link: "pid", flag: libc::CLONE_NEWPID },
    Kind { name: "a cgroup namespace", link: "cgroup", flag: libc::CLONE_NEWCGROUP },
    Kind { name: "a time namespace", link: "time", flag: libc::CLONE_NEWTIME },
];

impl Kind {
    /// The kind of namespaces that a flag of clone(2) means.
    pub(crate) fn of_flag(flag: i32) -> Option<Self> {
        [HOST_NAMES, IPC, MOUNTS, NETWORK, USERS].into_iter().chain(ONLY).find(|kind| kind.flag == flag)
    }

    /// What leads to the one that a process is in.
    pub(crate) fn at(self, outer: i32) -> String {
        format!("/proc/{outer}/ns/{}", self.link)
    }

    /// How /proc tells of one with an inode.
    pub(crate) fn told(self, inode: u64) -> String {
        format!("{}:[{inode}]", self.link)
    }
}

/// How many are kept open: those of an image and the first process's, if there are any.
pub(crate) fn with_first(count: usize) -> u64 {
    if count == 0 { 0 } else { count as u64 + 1 }
}

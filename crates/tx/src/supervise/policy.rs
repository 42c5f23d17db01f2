//! Which system calls are caught, and why.

use super::system_v::Kind;
use pando_kernel::seccomp;
use pando_kernel::seccomp::notify::{Matters, With};

/// What becomes of connections to other machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// They are made, and named afterwards.
    #[default]
    Pass,
    /// They are not supported.
    Refuse,
}

/// What is done about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A signal: to whom and which are the arguments of these numbers.
    Signal {
        /// How the receiver is named.
        to: Receiver,
        /// The argument with the signal's number.
        signal: usize,
    },
    /// It changes the mounts of the caller's namespace, which is no matter if that is one of its own.
    Mounts,
    /// It makes or changes a file system's superblock, which is a matter only if that is in the live tree.
    Superblock,
    /// It opens what a handle names on the file system of a descriptor, which is a way around the view if that is in
    /// the live tree.
    Handle,
    /// It names an object of System V by a key that others may use, unless that is 0 (IPC_PRIVATE).
    Key(Kind),
    /// Several calls of System V in one, of which some name an object by a key; only 32-bit programs have it.
    ManyKeys,
    /// It connects a socket to an address, that of another machine perhaps.
    Connect,
    /// It sends something to an address, without being connected; with none it is no matter.
    Send,
    /// It sends messages, of which each may have an address.
    Message {
        /// Whether there are several in one call.
        several: bool,
    },
    /// It says who is sent signals of a descriptor, with some values of its second argument.
    Owner(Owner),
    /// It takes a descriptor from a process, which is a way around the view if that one is outside.
    Descriptor,
    /// It enters a namespace: one of mounts or of System V objects, if it is outside, is a way around the view.
    Namespace,
    /// It makes a socket of a family, which is a matter only where the network is refused.
    Socket,
    /// All calls on sockets in one; only 32-bit programs have it.
    ManySockets,
    /// It makes or uses a ring, through which calls are made that nobody sees: connections to other machines among
    /// them. There are none in a transaction, and programs do without them.
    Ring,
    /// It changes the machine, for which the kernel wants a capability.
    Machine(Option<u32>),
}

/// How the owner of a descriptor is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// By fcntl(2): F_SETOWN and F_SETOWN_EX.
    Descriptor,
    /// By ioctl(2) of a socket: FIOSETOWN and SIOCSPGRP.
    Socket,
}

/// `F_SETOWN`, of which the third argument is the owner, and `F_SETOWN_EX`, of which it points to a kind and the owner.
pub(super) const SET_OWNER: u32 = 8;
const SET_OWNER_EX: u32 = 15;
/// `FIOSETOWN` and `SIOCSPGRP`: the third argument points to the owner.
const SET_SOCKETS_OWNER: u32 = 0x8901;
const SET_SOCKETS_GROUP: u32 = 0x8902;

impl Rule {
    /// The argument, by its index, and its values with which the call is caught, where it is not always.
    fn matters(self) -> Option<(u8, Matters)> {
        match self {
            Self::Send => Some((ADDRESS, Matters::Set)),
            Self::Owner(Owner::Descriptor) => Some((1, Matters::Either([SET_OWNER, SET_OWNER_EX]))),
            Self::Owner(Owner::Socket) => Some((1, Matters::Either([SET_SOCKETS_OWNER, SET_SOCKETS_GROUP]))),
            _ => None,
        }
    }
}

/// How a signal's receiver is named, in the first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// A process, or with 0 and below a group of them.
    ProcessOrGroup,
    /// A process or a thread.
    Task,
    /// A descriptor of a process.
    Pidfd,
}

/// A call that is caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caught {
    pub(crate) number: i64,
    /// The number that 32-bit programs of x86 know it by, if they have it.
    pub(crate) older: Option<i64>,
    pub(crate) name: &'static str,
    pub(crate) rule: Rule,
}

const fn caught(number: i64, older: i64, name: &'static str, rule: Rule) -> Caught {
    Caught { number, older: if older == NONE { None } else { Some(older) }, name, rule }
}

/// In the table: there is no such call.
const NONE: i64 = -1;

const fn signal(to: Receiver, signal: usize) -> Rule {
    Rule::Signal { to, signal }
}

/// `CAP_SYS_MODULE`, `CAP_SYS_PACCT`, `CAP_SYS_ADMIN`, `CAP_SYS_BOOT`, `CAP_SYS_TIME`
const MODULE: u32 = 16;
const ACCOUNTS: u32 = 20;
const ADMIN: u32 = 21;
const BOOT: u32 = 22;
const TIME: u32 = 25;

const fn machine(capability: u32) -> Rule {
    Rule::Machine(Some(capability))
}

impl Rule {
    /// The capability without which the kernel refuses the call in any case.
    pub(crate) fn needs(self) -> Option<u32> {
        match self {
            Self::Mounts | Self::Superblock | Self::Namespace => Some(ADMIN),
            Self::Machine(capability) => capability,
            _ => None,
        }
    }
}

/// `open_tree_attr`, since Linux 6.15; it has one number everywhere.
const OPEN_TREE_ATTR: i64 = 467;

/// Every call that is caught. All others are carried out as ever: those on files because the view makes them the
/// transaction's own.
pub(crate) const CAUGHT: &[Caught] = &[
    caught(libc::SYS_kill, 37, "kill", signal(Receiver::ProcessOrGroup, 1)),
    caught(libc::SYS_tkill, 238, "tkill", signal(Receiver::Task, 1)),
    caught(libc::SYS_tgkill, 270, "tgkill", signal(Receiver::Task, 2)),
    caught(libc::SYS_rt_sigqueueinfo, 178, "rt_sigqueueinfo", signal(Receiver::Task, 1)),
    caught(libc::SYS_rt_tgsigqueueinfo, 335, "rt_tgsigqueueinfo", signal(Receiver::Task, 2)),
    caught(libc::SYS_pidfd_send_signal, 424, "pidfd_send_signal", signal(Receiver::Pidfd, 1)),
    caught(libc::SYS_mount, 21, "mount", Rule::Mounts),
    caught(libc::SYS_umount2, 52, "umount2", Rule::Mounts),
    caught(libc::SYS_move_mount, 429, "move_mount", Rule::Mounts),
    caught(libc::SYS_mount_setattr, 442, "mount_setattr", Rule::Mounts),
    caught(OPEN_TREE_ATTR, OPEN_TREE_ATTR, "open_tree_attr", Rule::Mounts),
    caught(libc::SYS_fsopen, libc::SYS_fsopen, "fsopen", Rule::Superblock),
    caught(libc::SYS_fspick, libc::SYS_fspick, "fspick", Rule::Superblock),
    caught(libc::SYS_fsconfig, libc::SYS_fsconfig, "fsconfig", Rule::Superblock),
    caught(libc::SYS_pivot_root, 217, "pivot_root", Rule::Mounts),
    caught(libc::SYS_open_by_handle_at, 342, "open_by_handle_at", Rule::Handle),
    caught(libc::SYS_shmget, 395, "shmget", Rule::Key(Kind::SharedMemory)),
    caught(libc::SYS_semget, 393, "semget", Rule::Key(Kind::Semaphores)),
    caught(libc::SYS_msgget, 399, "msgget", Rule::Key(Kind::Messages)),
    caught(libc::SYS_mq_open, 277, "mq_open", Rule::Machine(None)),
    caught(libc::SYS_mq_unlink, 278, "mq_unlink", Rule::Machine(None)),
    caught(libc::SYS_reboot, 88, "reboot", machine(BOOT)),
    caught(libc::SYS_kexec_load, 283, "kexec_load", machine(BOOT)),
    caught(libc::SYS_kexec_file_load, NONE, "kexec_file_load", machine(BOOT)),
    caught(libc::SYS_init_module, 128, "init_module", machine(MODULE)),
    caught(libc::SYS_finit_module, 350, "finit_module", machine(MODULE)),
    caught(libc::SYS_delete_module, 129, "delete_module", machine(MODULE)),
    caught(libc::SYS_settimeofday, 79, "settimeofday", machine(TIME)),
    caught(libc::SYS_clock_settime, 264, "clock_settime", machine(TIME)),
    caught(libc::SYS_sethostname, 74, "sethostname", machine(ADMIN)),
    caught(libc::SYS_setdomainname, 121, "setdomainname", machine(ADMIN)),
    caught(libc::SYS_swapon, 87, "swapon", machine(ADMIN)),
    caught(libc::SYS_swapoff, 115, "swapoff", machine(ADMIN)),
    caught(libc::SYS_acct, 51, "acct", machine(ACCOUNTS)),
    caught(libc::SYS_quotactl, 131, "quotactl", Rule::Machine(None)),
    caught(libc::SYS_connect, 362, "connect", Rule::Connect),
    caught(libc::SYS_sendto, 369, "sendto", Rule::Send),
    caught(libc::SYS_sendmsg, 370, "sendmsg", Rule::Message { several: false }),
    caught(libc::SYS_sendmmsg, 345, "sendmmsg", Rule::Message { several: true }),
    caught(libc::SYS_pidfd_getfd, 438, "pidfd_getfd", Rule::Descriptor),
    caught(libc::SYS_fcntl, 55, "fcntl", Rule::Owner(Owner::Descriptor)),
    caught(NONE, 221, "fcntl64", Rule::Owner(Owner::Descriptor)),
    caught(libc::SYS_ioctl, 54, "ioctl", Rule::Owner(Owner::Socket)),
    caught(libc::SYS_setns, 346, "setns", Rule::Namespace),
    caught(libc::SYS_socket, 359, "socket", Rule::Socket),
    caught(libc::SYS_io_uring_setup, 425, "io_uring_setup", Rule::Ring),
    caught(libc::SYS_io_uring_enter, 426, "io_uring_enter", Rule::Ring),
    caught(libc::SYS_io_uring_register, 427, "io_uring_register", Rule::Ring),
    caught(NONE, 22, "umount", Rule::Mounts),
    caught(NONE, 25, "stime", machine(TIME)),
    caught(NONE, 404, "clock_settime64", machine(TIME)),
    caught(NONE, 117, "ipc", Rule::ManyKeys),
    caught(NONE, 102, "socketcall", Rule::ManySockets),
];

/// The argument of `sendto` that is the address: what goes through a connected socket, which is most, has none.
const ADDRESS: u8 = 4;

/// The calls of one architecture that are caught: their numbers, and those that are with an argument only.
pub(crate) type Numbers = (Vec<i64>, Vec<With>);

/// The calls that are caught, and those of 32-bit programs. Sockets are a matter only where the network is refused.
pub(crate) fn numbers(network: Network) -> (Numbers, Numbers) {
    let matters = |one: &&Caught| network == Network::Refuse || one.rule != Rule::Socket;
    let (mut this, mut older) = (Numbers::default(), Numbers::default());
    for one in CAUGHT.iter().filter(matters) {
        let add = |all: &mut Numbers, number: i64, rule: Option<(u8, Matters)>| match rule {
            Some((argument, matters)) => all.1.push(With { number, argument, matters }),
            None => all.0.push(number),
        };
        if one.number != NONE {
            add(&mut this, one.number, one.rule.matters());
        }
        // What 32-bit programs send to an address is always looked at.
        if let Some(number) = one.older.filter(|_| cfg!(target_arch = "x86_64")) {
            add(&mut older, number, one.rule.matters().filter(|_| one.rule != Rule::Send));
        }
    }
    (this, older)
}

/// What catches them, for a process that another program starts; `None` if there were too many.
pub fn filter(network: Network) -> Option<Vec<u8>> {
    let (this, older) = numbers(network);
    seccomp::notify::program(&this.0, &this.1, (&older.0, &older.1))
}

/// What is caught under a number.
pub(crate) fn of(number: i64, older: bool) -> Option<&'static Caught> {
    CAUGHT.iter().find(|caught| if older { caught.older == Some(number) } else { caught.number == number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_listed_twice() {
        let all = |(numbers, with): Numbers| [numbers, with.iter().map(|one| one.number).collect()].concat();
        let (this, older) = numbers(Network::Refuse);
        let (this, older) = (all(this), all(older));
        assert!(this.len() > 25 && (older.len() > 25 || cfg!(not(target_arch = "x86_64"))));
        for mut all in [this, older] {
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
        }
        assert_eq!(of(libc::SYS_kill, false).map(|caught| caught.name), Some("kill"));
        assert_eq!(of(37, true).map(|caught| caught.name), Some("kill"));
        assert_eq!(of(libc::SYS_read, false), None);
    }

    #[test]
    fn the_documentation_lists_every_call_that_is_caught() {
        let page = include_str!("../../../../docs/transactions-calls.md");
        let missing: Vec<_> = CAUGHT.iter().filter(|one| !page.contains(&format!("`{}`", one.name))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

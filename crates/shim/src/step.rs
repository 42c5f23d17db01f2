//! The steps that a process takes on its way into a guest.

use core::ffi::CStr;
use serde::{Deserialize, Serialize};

/// Bytes that end in NUL and have no other: what a system call takes as a path or a name.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text<'a>(#[serde(borrow)] &'a [u8]);

/// Bytes that are no [`Text`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextError;

impl<'a> Text<'a> {
    /// The text of bytes that include the closing NUL.
    pub fn new(with_nul: &'a [u8]) -> Result<Self, TextError> {
        CStr::from_bytes_with_nul(with_nul).map(|_| Self(with_nul)).map_err(|_| TextError)
    }

    /// For system calls. An empty string stands in for bytes that are none, so that a damaged plan fails as ENOENT.
    pub fn c_str(&self) -> &'a CStr {
        CStr::from_bytes_with_nul(self.0).unwrap_or(c"")
    }
}

impl<'a> From<&'a CStr> for Text<'a> {
    fn from(text: &'a CStr) -> Self {
        Self(text.to_bytes_with_nul())
    }
}

impl core::fmt::Debug for Text<'_> {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "{:?}", self.c_str())
    }
}

bitflags::bitflags! {
    /// Attributes of a mount (`MOUNT_ATTR_*`, linux/mount.h).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Attributes: u32 {
        /// Nothing can be written.
        const READ_ONLY = 0x01;
        /// Set-user-id bits and file capabilities are ignored.
        const NO_SUID = 0x02;
        /// Device nodes are dead.
        const NO_DEV = 0x04;
        /// Nothing can be executed.
        const NO_EXEC = 0x08;
    }

    /// Kinds of namespaces (`CLONE_NEW*`, linux/sched.h).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Namespaces: u32 {
        /// Mounts.
        const MOUNT = 0x0002_0000;
        /// The cgroup tree's root.
        const CGROUP = 0x0200_0000;
        /// Host and domain name.
        const UTS = 0x0400_0000;
        /// System V and POSIX message queues, semaphores, shared memory.
        const IPC = 0x0800_0000;
        /// Users.
        const USER = 0x1000_0000;
        /// Processes.
        const PID = 0x2000_0000;
        /// The network.
        const NET = 0x4000_0000;
    }
}

bitflags::bitflags! {
    /// What a Landlock domain around a shim keeps inside (`LANDLOCK_SCOPE_*`, linux/landlock.h): it stands beside kinds
    /// of namespaces in a shim's first word, and no kind of namespace has these bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub struct Scopes: u32 {
        /// No abstract unix socket of others is reached.
        const ABSTRACT_UNIX_SOCKETS = 1;
        /// No process of others is signalled.
        const SIGNALS = 2;
    }
}

/// A set of capabilities: bit N is capability N (linux/capability.h).
pub type Capabilities = u64;

/// What to make where a mount point is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Make {
    /// Nothing is made: the step fails.
    Nothing,
    /// Nothing: the step is passed over.
    Skip,
    /// A directory, and those above it.
    Directory,
    /// An empty file, and the directories above it.
    File,
}

/// A place inside the new root. It is resolved there and nowhere else: a link in a guest's files never leads out of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mountpoint<'a> {
    /// Path, relative to the new root.
    #[serde(borrow)]
    pub at: Text<'a>,
    /// What to do where it is missing.
    pub make: Make,
}

/// One step. Numbers named `fd` are indices into the descriptors that came with the message. New ones are added at the
/// end: a guest outlives the daemon that started it, and the next one sends plans to its shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step<'a> {
    /// No mount made from here on is seen outside, and none made outside is seen here.
    Private,
    /// Attach a detached tree at a path of the host (seen by this process only) and work relative to its root from here
    /// on.
    EnterRoot {
        /// Index of the root file system's descriptor.
        fd: u8,
        /// An existing directory of the host to put it on.
        #[serde(borrow)]
        over: Text<'a>,
    },
    /// Attach a detached tree inside the new root.
    Attach {
        /// Index of the tree's descriptor.
        fd: u8,
        /// The place that it is mounted on.
        #[serde(borrow)]
        on: Mountpoint<'a>,
    },
    /// Mount a new file system of a kind inside the new root.
    Mount {
        /// Its kind: `proc`, `sysfs`, `devpts`, …
        #[serde(borrow)]
        kind: Text<'a>,
        /// `key=value` pairs and flags, separated by commas.
        #[serde(borrow)]
        options: &'a str,
        /// Attributes of the mount.
        attributes: Attributes,
        /// The place that is mounted.
        #[serde(borrow)]
        on: Mountpoint<'a>,
    },
    /// Hide a file behind the new root's null device. A missing one is passed over.
    Mask {
        /// Path, relative to the new root.
        #[serde(borrow)]
        at: Text<'a>,
    },
    /// Make a path read-only by mounting it on itself. A missing one is passed over.
    Protect {
        /// Path, relative to the new root.
        #[serde(borrow)]
        at: Text<'a>,
    },
    /// Make the new root the root, and let go of the old.
    Pivot,
    /// Wait for the rest of the plan: another message on the report's socket, with the plan and its descriptors, which
    /// take the place of those at hand. It has the steps ([`MAX_REST`](crate::MAX_REST)) or nothing in it. Should the
    /// socket close instead, the process ends.
    Await,
    /// Move what is mounted at a path of the present root into the new one, with everything that is mounted below it.
    Bring {
        /// The place to move from, an absolute path.
        #[serde(borrow)]
        from: Text<'a>,
        /// The place that it is mounted on.
        #[serde(borrow)]
        on: Mountpoint<'a>,
    },
    /// Make the new root, which lies over the present one, the root. The present one stays below it, out of sight: it
    /// has to be one that a guest might see. Unlike [`Step::Pivot`] this does not look at every process of the machine.
    TakeRoot,
    /// Set the host name.
    HostName {
        /// The name, of 64 bytes at most.
        #[serde(borrow)]
        name: &'a [u8],
    },
    /// Set a resource limit (setrlimit(2)).
    Limit {
        /// The number of the limit, `RLIMIT_*`.
        resource: u32,
        /// Soft value; `u64::MAX` is unlimited.
        soft: u64,
        /// The hard value of the limit.
        hard: u64,
    },
    /// Enter a namespace.
    Join {
        /// It, as opened under /proc/PID/ns. A pidfd will not do: the init's memory is out of bounds for everybody in
        /// its user namespace, the shim included.
        fd: u8,
    },
    /// Deny system calls by a program of classic BPF.
    Seccomp {
        /// The filter's program: `struct sock_filter`s.
        #[serde(borrow)]
        program: &'a [u8],
    },
    /// Have system calls wait for answers by a program of classic BPF. Where they arrive is told by the number of a
    /// descriptor of this process; the process that has taken it says what to [look up](crate::FIRST_LOOKED_UP)
    /// besides, by paths with a zero at the end, and then, without one, that it is taken; and answers them.
    Supervise {
        /// The socket that the number goes out over, and a word comes back.
        fd: u8,
        /// The filter's program: `struct sock_filter`s.
        #[serde(borrow)]
        program: &'a [u8],
    },
    /// Give up every capability outside a set, for good.
    Bound {
        /// The capabilities that are kept.
        keep: Capabilities,
    },
    /// Become the guest's init: what follows is done by a child, which this process then waits for. Without steps after
    /// it, it idles.
    Init {
        /// An eventfd that takes the command's exit code + 1 as soon as the command has ended, if nothing is left of
        /// what it began: this process's own end, and the news of it, take the kernel longer than all else.
        word: Option<u8>,
    },
    /// Become the guest's init, of a command that comes another way: a clone's. The last step.
    Adopt {
        /// The pid of the command.
        pid: i32,
    },
    /// Standard input, output and error.
    Stdio {
        /// Indices of the descriptors that become 0, 1 and 2.
        fds: [u8; 3],
    },
    /// A new session on a new terminal of the guest's own, whose master goes out over a socket.
    Terminal {
        /// Index of the socket's descriptor.
        fd: u8,
        /// The terminal's height, in characters.
        rows: u16,
        /// The terminal's width, in characters.
        columns: u16,
    },
    /// Open a terminal of the guest's own and show it as /dev/console; it is standard input, output and error, but
    /// nobody's controlling terminal yet, as a kernel leaves it to an init. Its master goes out over a socket.
    Console {
        /// Index of the socket's descriptor.
        fd: u8,
    },
    /// A new session without a terminal.
    Session,
    /// Set the working directory.
    WorkingDirectory {
        /// A path in the guest.
        #[serde(borrow)]
        path: Text<'a>,
    },
    /// Become a user of the guest.
    User {
        /// The user's id in the guest.
        uid: u32,
        /// The group's id in the guest.
        gid: u32,
        /// Further groups.
        #[serde(borrow)]
        groups: Groups<'a>,
    },
    /// Hold a set of capabilities and no others.
    Hold {
        /// The capabilities that are kept.
        keep: Capabilities,
    },
    /// Never gain privilege by executing a file.
    NoNewPrivileges,
    /// Execute a program: the last step.
    Exec {
        /// Arguments, each ended by NUL. The first names the program.
        #[serde(borrow)]
        arguments: &'a [u8],
        /// `NAME=value`s, each ended by NUL.
        #[serde(borrow)]
        environment: &'a [u8],
        /// Where to look for a name without a slash: directories separated by colons.
        #[serde(borrow)]
        search: &'a [u8],
    },
    /// Execute a program that came along as a file descriptor: the last step.
    ExecFd {
        /// Index of the program's descriptor.
        fd: u8,
        /// Arguments, each ended by NUL.
        #[serde(borrow)]
        arguments: &'a [u8],
    },
    /// Wait until the guest has been admitted to what it shares with others: a message on the report's socket says so
    /// ([`ADMITTED`](crate::ADMITTED)). Should the socket close instead, the process ends. Nothing of the guest's own
    /// runs before.
    Admission,
    /// Whatever is mounted in this namespace shares what is mounted on it with copies of the namespace made from here
    /// on, unless they ask otherwise.
    Share,
    /// Move into new namespaces. Of processes and of time only what is forked from here on is in the new ones.
    Unshare {
        /// The namespaces: `CLONE_NEW*`.
        namespaces: u32,
    },
    /// Say a word on the report's socket: a message of this byte alone.
    Say {
        /// The word, whose meaning is the sender's of the plan.
        word: u8,
    },
    /// Go on as another child of this process's parent: the one that is in the new namespaces of processes and time.
    /// The word goes out on the report's socket, with a pidfd of the child; this process ends.
    Sibling {
        /// The word that comes with the pidfd.
        word: u8,
    },
    /// Walk into a control group, by writing "0" to a file of the group's.
    Group {
        /// Index of the file: `cgroup.procs` in version 2, `tasks` in version 1.
        fd: u8,
    },
    /// Bring up the loopback device.
    Loopback,
    /// Change the attributes or the propagation of what is mounted at a path of the new root.
    Change {
        /// Path, relative to the new root; empty for the root itself.
        #[serde(borrow)]
        at: Text<'a>,
        /// Whether the mounts below are changed too.
        recursive: bool,
        /// Attributes that are set: `MOUNT_ATTR_*`.
        set: u32,
        /// Attributes that are taken away.
        clear: u32,
        /// `MS_SHARED` and the like, or 0.
        propagation: u32,
    },
    /// Hide a path of the new root, whatever kind it has: a directory behind an empty one, anything else behind the new
    /// root's null device. A missing one is passed over.
    Hide {
        /// Path, relative to the new root.
        #[serde(borrow)]
        at: Text<'a>,
    },
    /// Make a node in the new root, and the directories above it. One of the same device that is there stays.
    Node {
        /// Path, relative to the new root.
        #[serde(borrow)]
        at: Text<'a>,
        /// File type and permissions, as `st_mode` has them.
        mode: u32,
        /// The device's major and minor number.
        device: (u32, u32),
        /// The user and the group that own it.
        owner: (u32, u32),
    },
    /// Make a symbolic link in the new root. Whatever has the name stays.
    Link {
        /// Path, relative to the new root.
        #[serde(borrow)]
        at: Text<'a>,
        /// What the link says.
        #[serde(borrow)]
        to: Text<'a>,
    },
    /// Make a directory in the new root, and those above it, where they are missing.
    Directory {
        /// Path, relative to the new root.
        #[serde(borrow)]
        at: Text<'a>,
    },
    /// Write to a file below /proc/sys, before the new root is the root: it is the kernel's own file system there.
    Setting {
        /// Path, relative to /proc/sys.
        #[serde(borrow)]
        at: Text<'a>,
        /// What is written.
        #[serde(borrow)]
        value: &'a [u8],
    },
    /// Set the domain name.
    DomainName {
        /// The name, of 64 bytes at most.
        #[serde(borrow)]
        name: &'a [u8],
    },
    /// Set the mask of permissions that new files do not get.
    Umask {
        /// The mask, as umask(2) takes it.
        mask: u32,
    },
    /// Keep the permitted capabilities when the user changes.
    KeepCapabilities,
    /// Hold sets of capabilities, as far as they are permitted.
    CapabilitySets {
        /// Those in force.
        effective: Capabilities,
        /// Those that may be put in force.
        permitted: Capabilities,
        /// Those that programs with such file capabilities get.
        inheritable: Capabilities,
        /// Those that every program keeps.
        ambient: Capabilities,
    },
    /// Begin a new session keyring.
    Keyring {
        /// The keyring's name.
        #[serde(borrow)]
        name: Text<'a>,
    },
    /// Set the execution domain (personality(2)).
    Personality {
        /// The domain and its flags.
        persona: u32,
    },
    /// Show the terminal that is standard input as /dev/console.
    ShowTerminal,
    /// See that a program is there and may be executed, as [`Step::Exec`] will look for it.
    Find {
        /// Its name, which ends in NUL.
        #[serde(borrow)]
        name: &'a [u8],
        /// Where to look for a name without a slash: directories separated by colons.
        #[serde(borrow)]
        search: &'a [u8],
    },
    /// Keep a listening socket, of all descriptors besides the report's.
    Listener {
        /// Index of the socket.
        fd: u8,
    },
    /// Wait at the kept socket until somebody connects and sends the word. That connection is the report's socket from
    /// here on.
    Started {
        /// The word.
        word: u8,
    },
    /// Execute a program in a child, and wait for its end. One that fails, or takes too long, fails the step.
    Call {
        /// Index of the file that is its standard input.
        input: u8,
        /// Arguments, each ended by NUL. The first is the program's path.
        #[serde(borrow)]
        arguments: &'a [u8],
        /// `NAME=value`s, each ended by NUL.
        #[serde(borrow)]
        environment: &'a [u8],
        /// The most seconds that it may take; 0 for any.
        timeout: u32,
    },
    /// Let descriptors be inherited by what is executed, as 3 and up. No others are at hand afterwards.
    Inherit {
        /// Index of the first.
        first: u8,
        /// How many of them there are.
        count: u8,
    },
    /// Execute a program in a child as [`Step::Call`] does, by a path that its arguments need not begin with.
    CallProgram {
        /// Index of the file that is its standard input.
        input: u8,
        /// The program's path.
        #[serde(borrow)]
        path: Text<'a>,
        /// Arguments, each ended by NUL.
        #[serde(borrow)]
        arguments: &'a [u8],
        /// `NAME=value`s, each ended by NUL.
        #[serde(borrow)]
        environment: &'a [u8],
        /// The most seconds that it may take; 0 for any.
        timeout: u32,
    },
    /// Have memory lie on some nodes of the machine (set_mempolicy(2)).
    MemoryPolicy {
        /// The mode, with flags.
        mode: u32,
        /// A bit a node, in whole words of eight bytes; empty for none.
        #[serde(borrow)]
        nodes: &'a [u8],
    },
    /// Mount a new file system of a kind on a directory of the new root that no link is on the way to.
    MountPlainly {
        /// Its kind: `proc`, `sysfs`, …
        #[serde(borrow)]
        kind: Text<'a>,
        /// `key=value` pairs and flags, separated by commas.
        #[serde(borrow)]
        options: &'a str,
        /// Attributes of the mount.
        attributes: Attributes,
        /// Path, relative to the new root. It is made where it is missing.
        #[serde(borrow)]
        at: Text<'a>,
    },
    /// Have lines that are written to the terminal of standard input end as they were written (without `ONLCR`):
    /// whoever carries them on has them end as another terminal wants it.
    PlainLines,
    /// Have a program of classic BPF answer system calls, with flags of seccomp(2). Where calls wait for another
    /// process's answers (`SECCOMP_FILTER_FLAG_NEW_LISTENER`), the number of the descriptor at which they arrive is
    /// told on the report's socket, in four bytes of this machine's order after a word, and the process waits for a
    /// message that it was taken.
    Filter {
        /// The filter's program: `struct sock_filter`s.
        #[serde(borrow)]
        program: &'a [u8],
        /// The flags.
        flags: u32,
        /// The word before the number.
        word: u8,
    },
    /// Execute a program that [`Step::Find`] has found, by the same words: the last step. It takes no other system call
    /// that a filter might not allow.
    ExecFound {
        /// Arguments, each ended by NUL. The first names the program.
        #[serde(borrow)]
        arguments: &'a [u8],
        /// `NAME=value`s, each ended by NUL.
        #[serde(borrow)]
        environment: &'a [u8],
        /// Where to look for a name without a slash: directories separated by colons.
        #[serde(borrow)]
        search: &'a [u8],
    },
    /// Make a directory the root, and the working directory.
    ChangeRoot {
        /// Index of the directory's descriptor.
        fd: u8,
    },
    /// Execute a program of the guest's in a child as [`Step::CallProgram`] does, whose system calls are answered as
    /// [`Step::Filter`] has it. Those that would wait for another process's answers fail (ENOSYS): nobody listens.
    CallFiltered {
        /// Index of the file that is its standard input.
        input: u8,
        /// The program's path.
        #[serde(borrow)]
        path: Text<'a>,
        /// Arguments, each ended by NUL.
        #[serde(borrow)]
        arguments: &'a [u8],
        /// `NAME=value`s, each ended by NUL.
        #[serde(borrow)]
        environment: &'a [u8],
        /// The most seconds that it may take; 0 for any.
        timeout: u32,
        /// The filter's program: `struct sock_filter`s.
        #[serde(borrow)]
        program: &'a [u8],
        /// Flags of seccomp(2).
        flags: u32,
    },
}

/// Group ids, four bytes each, little-endian.
pub type Groups<'a> = &'a [u8];

/// Takes the next step off a plan; `None` at its end, an error where the bytes are no step.
pub fn next_step<'a>(plan: &mut &'a [u8]) -> Option<Result<Step<'a>, postcard::Error>> {
    if plan.is_empty() {
        return None;
    }
    Some(postcard::take_from_bytes(plan).map(|(step, rest)| {
        *plan = rest;
        step
    }))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    fn plan() -> Vec<u8> {
        let steps = [
            Step::Session,
            Step::WorkingDirectory { path: c"/srv/\xff".into() },
            Step::User { uid: 7, gid: 8, groups: &[1, 0, 0, 0] },
            Step::Exec { arguments: b"sh\0-c\0", environment: b"", search: b"/bin:/usr/bin" },
        ];
        let mut bytes = std::vec![0; 200];
        let mut length = 0;
        for step in steps {
            length += postcard::to_slice(&step, &mut bytes[length..]).unwrap().len();
        }
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn a_plan_is_taken_step_by_step() {
        let bytes = plan();
        let mut rest = &bytes[..];
        assert_eq!(next_step(&mut rest), Some(Ok(Step::Session)));
        assert_eq!(next_step(&mut rest), Some(Ok(Step::WorkingDirectory { path: c"/srv/\xff".into() })));
        assert!(matches!(next_step(&mut rest), Some(Ok(Step::User { uid: 7, gid: 8, groups: [1, 0, 0, 0] }))));
        let Some(Ok(Step::Exec { arguments, environment, search })) = next_step(&mut rest) else { panic!("no step") };
        assert_eq!((arguments, environment, search), (&b"sh\0-c\0"[..], &b""[..], &b"/bin:/usr/bin"[..]));
        assert_eq!(next_step(&mut rest), None);
    }

    #[test]
    fn a_plan_that_is_cut_short_ends_in_an_error_and_goes_no_further() {
        let bytes = plan();
        for length in 0..bytes.len() {
            let mut rest = &bytes[..length];
            while let Some(Ok(_)) = next_step(&mut rest) {}
            let left = rest.len();
            assert!(next_step(&mut rest).is_none_or(|step| step.is_err()), "{length}");
            assert_eq!(rest.len(), left, "{length}");
        }
    }

    #[test]
    fn a_text_ends_in_the_one_zero_that_it_has() {
        assert_eq!(Text::new(b"a\0").map(|text| text.c_str()), Ok(c"a"));
        for bytes in [&b""[..], b"a", b"a\0b\0", b"a\0b"] {
            assert_eq!(Text::new(bytes), Err(TextError));
            let mut space = [0; 16];
            let damaged: Text<'_> = postcard::from_bytes(postcard::to_slice(bytes, &mut space).unwrap()).unwrap();
            assert_eq!(damaged.c_str(), c"", "what comes damaged off a plan is no path");
        }
    }
}

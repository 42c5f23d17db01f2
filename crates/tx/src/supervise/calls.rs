//! Every system call of Linux 6.18 on x86-64, and what a transaction on the host does with it: what the table in
//! docs/transactions-calls.md is made of. The groups are those of the table of TxOS's paper, which had 303 calls to
//! tell of.

/// A group of calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) name: &'static str,
    /// How many the paper has in it: wholly supported, in part, not.
    pub(super) paper: [usize; 3],
    /// They act on the view, or on the transaction's own processes, which end with it.
    pub(super) transactional: &'static [&'static str],
    /// They happen when it commits.
    pub(super) deferred: &'static [&'static str],
    /// Where they reach outside, that happens at once and is not undone.
    pub(super) passed: &'static [&'static str],
    /// Where they reach outside, the transaction is aborted.
    pub(super) refused: &'static [&'static str],
}

/// Calls that the kernel has a number for, and no code.
const EMPTY: &[&str] = &[
    "_sysctl",
    "afs_syscall",
    "create_module",
    "get_kernel_syms",
    "getpmsg",
    "nfsservctl",
    "putpmsg",
    "query_module",
    "security",
    "tuxcall",
    "vserver",
];

/// All others.
#[rustfmt::skip]
pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "Credentials",
        paper: [34, 1, 0],
        transactional: &[
            "capget", "capset", "getcpu", "getegid", "geteuid", "getgid", "getgroups", "getpgid", "getpgrp", "getpid", "getppid",
            "getpriority", "getresgid", "getresuid", "getrlimit", "getrusage", "getsid", "gettid", "getuid", "landlock_add_rule",
            "landlock_create_ruleset", "landlock_restrict_self", "lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr", "personality",
            "prctl", "seccomp", "setfsgid", "setfsuid", "setgid", "setgroups", "setpgid", "setregid", "setresgid", "setresuid", "setreuid",
            "setrlimit", "setsid", "setuid", "umask",
        ],
        deferred: &[],
        passed: &[
            "add_key", "keyctl", "prlimit64", "request_key", "setpriority",
        ],
        refused: &[],
    },
    Group {
        name: "Processes",
        paper: [13, 3, 33],
        transactional: &[
            "arch_prctl", "clone", "clone3", "execve", "execveat", "exit", "exit_group", "fork", "futex", "futex_requeue", "futex_wait",
            "futex_waitv", "futex_wake", "get_robust_list", "get_thread_area", "ioprio_get", "kcmp", "membarrier", "modify_ldt",
            "pidfd_open", "restart_syscall", "rseq", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity",
            "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_yield", "set_robust_list",
            "set_thread_area", "set_tid_address", "unshare", "uprobe", "uretprobe", "uselib", "vfork", "wait4", "waitid",
        ],
        deferred: &[],
        passed: &[
            "ioperm", "iopl", "ioprio_set", "migrate_pages", "move_pages", "process_madvise", "process_mrelease", "process_vm_readv",
            "process_vm_writev", "ptrace", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler",
        ],
        refused: &["pidfd_getfd", "setns"],
    },
    Group {
        name: "Memory",
        paper: [0, 0, 15],
        transactional: &[
            "brk", "cachestat", "get_mempolicy", "madvise", "map_shadow_stack", "mbind", "memfd_create", "memfd_secret", "mincore", "mlock",
            "mlock2", "mlockall", "mmap", "mprotect", "mremap", "mseal", "msync", "munlock", "munlockall", "munmap", "pkey_alloc",
            "pkey_free", "pkey_mprotect", "remap_file_pages", "set_mempolicy", "set_mempolicy_home_node", "userfaultfd",
        ],
        deferred: &[],
        passed: &[],
        refused: &[],
    },
    Group {
        name: "File system",
        paper: [63, 4, 29],
        transactional: &[
            "access", "chdir", "chmod", "chown", "chroot", "creat", "faccessat", "faccessat2", "fallocate", "fanotify_init", "fanotify_mark",
            "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "fdatasync", "fgetxattr", "file_getattr", "file_setattr",
            "flistxattr", "flock", "fremovexattr", "fsetxattr", "fsmount", "fstat", "fstatfs", "fsync",
            "ftruncate", "futimesat", "getcwd", "getdents", "getdents64", "getxattr", "getxattrat", "inotify_add_watch", "inotify_init",
            "inotify_init1", "inotify_rm_watch", "lchown", "lgetxattr", "link", "linkat", "listmount", "listxattr", "listxattrat",
            "llistxattr", "lookup_dcookie", "lremovexattr", "lsetxattr", "lstat", "mkdir", "mkdirat", "mknod", "mknodat",
            "name_to_handle_at", "newfstatat", "open", "open_tree", "openat", "openat2", "readlink",
            "readlinkat", "removexattr", "removexattrat", "rename", "renameat", "renameat2", "rmdir", "setxattr", "setxattrat", "stat",
            "statfs", "statmount", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs", "sysfs", "truncate", "unlink",
            "unlinkat", "ustat", "utime", "utimensat", "utimes",
        ],
        deferred: &[],
        passed: &[],
        refused: &[
            "fsconfig", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_by_handle_at", "open_tree_attr", "pivot_root",
            "umount2",
        ],
    },
    Group {
        name: "File descriptors",
        paper: [0, 0, 14],
        transactional: &[
            "close", "close_range", "copy_file_range", "dup", "dup2", "dup3", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old",
            "epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "fadvise64", "io_cancel",
            "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit", "lseek", "poll", "ppoll", "pread64", "preadv", "preadv2",
            "pselect6", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readv", "select", "sendfile", "splice", "tee", "vmsplice",
            "write", "writev",
        ],
        deferred: &[],
        passed: &[
            "ioctl",
        ],
        refused: &[
            "fcntl", "io_uring_enter", "io_uring_register", "io_uring_setup",
        ],
    },
    Group {
        name: "Communication",
        paper: [15, 0, 8],
        transactional: &[
            "msgctl", "msgrcv", "msgsnd", "pipe", "pipe2", "semctl", "semop", "semtimedop", "shmat", "shmctl", "shmdt", "socketpair",
        ],
        deferred: &[],
        passed: &[
            "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "mq_getsetattr", "mq_notify",
            "mq_timedreceive", "mq_timedsend", "recvfrom", "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
            "socket",
        ],
        refused: &[
            "mq_open", "mq_unlink", "msgget", "semget", "shmget",
        ],
    },
    Group {
        name: "Timers and signals",
        paper: [0, 0, 12],
        transactional: &[
            "alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "gettimeofday", "nanosleep", "pause", "rt_sigaction",
            "rt_sigpending", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "setitimer", "sigaltstack", "signalfd",
            "signalfd4", "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create",
            "timerfd_gettime", "timerfd_settime", "times",
        ],
        deferred: &[
            "kill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tgkill", "tkill",
        ],
        passed: &[],
        refused: &[],
    },
    Group {
        name: "Administration",
        paper: [0, 0, 22],
        transactional: &[
            "sysinfo", "uname",
        ],
        deferred: &[],
        passed: &[
            "adjtimex", "bpf", "clock_adjtime", "perf_event_open", "quotactl_fd", "syslog", "vhangup",
        ],
        refused: &[
            "acct", "clock_settime", "delete_module", "finit_module", "init_module", "kexec_file_load", "kexec_load", "quotactl", "reboot",
            "setdomainname", "sethostname", "settimeofday", "swapoff", "swapon",
        ],
    },
    Group {
        name: "Other",
        paper: [13, 6, 18],
        transactional: &[
            "getrandom",
        ],
        deferred: &[],
        passed: &[],
        refused: &[],
    },
];

mod tests {
    use super::super::policy::{CAUGHT, Owner, Rule};
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/transactions-calls.md");
    const MARKS: [&str; 2] = ["<!-- calls: begin -->\n", "<!-- calls: end -->\n"];

    fn cell(names: &[&str]) -> String {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ")
    }

    /// The table, as the page has it.
    fn table() -> String {
        let mut text =
            String::from("| | TxOS | transactional | deferred | passed | refused |\n|---|---|---|---|---|---|\n");
        let mut sums = [0; 7];
        for group in GROUPS {
            let ours = [group.transactional, group.deferred, group.passed, group.refused];
            let [whole, part, none] = group.paper;
            let counts = ours.map(|names| names.len());
            let _ = writeln!(
                text,
                "| {} | {whole} + {part} in part, {none} not | {} | {} | {} | {} |",
                group.name, counts[0], counts[1], counts[2], counts[3]
            );
            for (sum, count) in sums.iter_mut().zip(group.paper.into_iter().chain(counts)) {
                *sum += count;
            }
        }
        let [whole, part, none, counts @ ..] = sums;
        let [transactional, deferred, passed, refused] = counts;
        let _ = writeln!(
            text,
            "| all | {whole} + {part} in part, {none} not | {transactional} | {deferred} | {passed} | {refused} |\n"
        );
        for group in GROUPS {
            let _ = writeln!(text, "**{}**\n", group.name);
            let kinds = [
                ("transactional", group.transactional),
                ("deferred", group.deferred),
                ("passed", group.passed),
                ("refused", group.refused),
            ];
            for (kind, names) in kinds.into_iter().filter(|(_, names)| !names.is_empty()) {
                let _ = writeln!(text, "- {kind}: {}", cell(names));
            }
            text.push('\n');
        }
        text
    }

    /// With `PANDO_WRITE_DOCS` in the environment the page is written anew.
    #[test]
    fn the_page_has_the_table_that_the_data_makes() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(MARKS[0]).expect("the page has the mark before the table");
        let (found, after) = rest.split_once(MARKS[1]).expect("the page has the mark behind the table");
        if std::env::var_os("PANDO_WRITE_DOCS").is_some() {
            std::fs::write(PAGE, format!("{before}{}{}{}{after}", MARKS[0], table(), MARKS[1])).unwrap();
            return;
        }
        assert!(
            found == table(),
            "docs/transactions-calls.md: PANDO_WRITE_DOCS=1 cargo test -p pando-tx the_page writes it anew"
        );
    }

    #[test]
    fn what_is_caught_is_what_the_table_says() {
        let native = CAUGHT.iter().filter(|caught| caught.number >= 0);
        let named = |among: fn(&Group) -> &'static [&'static str]| -> BTreeSet<&str> {
            GROUPS.iter().flat_map(|group| among(group).iter().copied()).collect()
        };
        let mut expected = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
        for caught in native {
            let kind = match caught.rule {
                Rule::Signal { .. } => 0,
                Rule::Connect | Rule::Socket | Rule::ManySockets | Rule::Send | Rule::Message { .. } => 1,
                Rule::Owner(Owner::Socket) => 1,
                Rule::Mounts
                | Rule::Superblock
                | Rule::Key(_)
                | Rule::ManyKeys
                | Rule::Machine(_)
                | Rule::Owner(Owner::Descriptor)
                | Rule::Descriptor
                | Rule::Ring
                | Rule::Handle
                | Rule::Namespace => 2,
            };
            expected[kind].insert(caught.name);
        }
        assert_eq!(named(|group| group.deferred), expected[0]);
        assert!(named(|group| group.passed).is_superset(&expected[1]));
        assert_eq!(named(|group| group.refused), expected[2]);
    }

    #[test]
    fn every_call_is_in_one_place() {
        let all = |group: &Group| [group.transactional, group.deferred, group.passed, group.refused].concat();
        let mut names: Vec<&str> = GROUPS.iter().flat_map(all).chain(EMPTY.iter().copied()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "one is named twice");
        assert_eq!(GROUPS.iter().map(|group| group.paper.iter().sum::<usize>()).sum::<usize>(), 303);
        // The headers of the machine that this is built on may know fewer calls than the kernel has.
        let header = std::fs::read_to_string("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").unwrap_or_default();
        let known = header.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split(' ').next());
        let missing: Vec<_> = known.filter(|name| names.binary_search(name).is_err()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

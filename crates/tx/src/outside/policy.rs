//! Which system calls are caught, and why.

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
    /// It names an object of System V by a key that others may use, unless that is 0 (IPC_PRIVATE).
    Key,
    /// It changes the machine.
    Machine,
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
    pub(crate) name: &'static str,
    pub(crate) rule: Rule,
}

const fn caught(number: i64, name: &'static str, rule: Rule) -> Caught {
    Caught { number, name, rule }
}

const fn signal(to: Receiver, signal: usize) -> Rule {
    Rule::Signal { to, signal }
}

/// Every call that is caught. All others are carried out as ever: those on files because the view makes them the transaction's own.
pub(crate) const CAUGHT: &[Caught] = &[
    caught(libc::SYS_kill, "kill", signal(Receiver::ProcessOrGroup, 1)),
    caught(libc::SYS_tkill, "tkill", signal(Receiver::Task, 1)),
    caught(libc::SYS_tgkill, "tgkill", signal(Receiver::Task, 2)),
    caught(libc::SYS_rt_sigqueueinfo, "rt_sigqueueinfo", signal(Receiver::Task, 1)),
    caught(libc::SYS_rt_tgsigqueueinfo, "rt_tgsigqueueinfo", signal(Receiver::Task, 2)),
    caught(libc::SYS_pidfd_send_signal, "pidfd_send_signal", signal(Receiver::Pidfd, 1)),
    caught(libc::SYS_mount, "mount", Rule::Mounts),
    caught(libc::SYS_umount2, "umount2", Rule::Mounts),
    caught(libc::SYS_move_mount, "move_mount", Rule::Mounts),
    caught(libc::SYS_mount_setattr, "mount_setattr", Rule::Mounts),
    caught(libc::SYS_pivot_root, "pivot_root", Rule::Mounts),
    caught(libc::SYS_shmget, "shmget", Rule::Key),
    caught(libc::SYS_semget, "semget", Rule::Key),
    caught(libc::SYS_msgget, "msgget", Rule::Key),
    caught(libc::SYS_mq_open, "mq_open", Rule::Machine),
    caught(libc::SYS_mq_unlink, "mq_unlink", Rule::Machine),
    caught(libc::SYS_reboot, "reboot", Rule::Machine),
    caught(libc::SYS_kexec_load, "kexec_load", Rule::Machine),
    caught(libc::SYS_kexec_file_load, "kexec_file_load", Rule::Machine),
    caught(libc::SYS_init_module, "init_module", Rule::Machine),
    caught(libc::SYS_finit_module, "finit_module", Rule::Machine),
    caught(libc::SYS_delete_module, "delete_module", Rule::Machine),
    caught(libc::SYS_settimeofday, "settimeofday", Rule::Machine),
    caught(libc::SYS_clock_settime, "clock_settime", Rule::Machine),
    caught(libc::SYS_sethostname, "sethostname", Rule::Machine),
    caught(libc::SYS_setdomainname, "setdomainname", Rule::Machine),
    caught(libc::SYS_swapon, "swapon", Rule::Machine),
    caught(libc::SYS_swapoff, "swapoff", Rule::Machine),
    caught(libc::SYS_acct, "acct", Rule::Machine),
    caught(libc::SYS_quotactl, "quotactl", Rule::Machine),
];

/// The numbers of the calls that are caught.
pub(crate) fn numbers() -> Vec<i64> {
    CAUGHT.iter().map(|caught| caught.number).collect()
}

/// What is caught under a number.
pub(crate) fn of(number: i64) -> Option<&'static Caught> {
    CAUGHT.iter().find(|caught| caught.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_listed_twice() {
        let mut all = numbers();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), CAUGHT.len());
        assert_eq!(of(libc::SYS_kill).map(|caught| caught.name), Some("kill"));
        assert_eq!(of(libc::SYS_read), None);
    }

    #[test]
    fn the_documentation_lists_every_call_that_is_caught() {
        let page = include_str!("../../../../docs/transactions.md");
        let missing: Vec<_> = CAUGHT.iter().filter(|one| !page.contains(&format!("`{}`", one.name))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

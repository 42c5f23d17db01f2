//! Whom a signal is meant for. A process names others by the numbers of its own pid namespace; here all are known by
//! those of the supervisor's.

use super::policy::Receiver;
use pando_kernel::namespace::pid::{PidNamespace, innermost};
use pando_kernel::process;
use pando_kernel::seccomp::notify::Call;

/// Signals that the first process of a pid namespace does not get from its own.
const UNHEARD: [i32; 2] = [libc::SIGKILL, libc::SIGSTOP];

/// Who a call means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meant {
    /// A process or a thread, by its pid here.
    One(i32),
    /// These processes.
    Group(Vec<i32>),
    /// All that there are.
    All,
    /// Nobody: the kernel says so to the caller.
    Nobody,
}

impl Meant {
    /// By a call whose receiver is named in a way, in its first argument.
    pub(super) fn by(call: &Call, to: Receiver) -> Self {
        let number = call.arguments[0] as i32;
        match to {
            Receiver::Pidfd => pid_of_descriptor(call.pid, number).map_or(Self::Nobody, Self::One),
            Receiver::ProcessOrGroup if number == -1 => Self::All,
            Receiver::ProcessOrGroup if number == 0 => {
                let own = process::group(call.pid).ok();
                let all = process::all().unwrap_or_default().into_iter();
                Self::Group(all.filter(|pid| own.is_some() && process::group(*pid).ok() == own).collect())
            }
            Receiver::ProcessOrGroup | Receiver::Task => {
                // A caller that is gone, or a number that has no opposite, means nobody.
                let (Ok(namespace), Some(opposite)) = (PidNamespace::of(call.pid), number.checked_neg()) else {
                    return Self::Nobody;
                };
                match number < 0 && to == Receiver::ProcessOrGroup {
                    true => Self::Group(namespace.in_group(opposite)),
                    false => namespace.here(number).map_or(Self::Nobody, Self::One),
                }
            }
        }
    }
}

/// Whether the kernel would pass a signal over: the first process of a pid namespace cannot be ended or stopped from
/// inside it.
pub(super) fn is_unheard(caller: i32, receiver: i32, signal: i32) -> bool {
    let link = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    UNHEARD.contains(&signal) && innermost(receiver).is_ok_and(|pid| pid == 1) && link(caller) == link(receiver)
}

/// The process behind a descriptor of another process.
pub(super) fn pid_of_descriptor(owner: i32, descriptor: i32) -> Option<i32> {
    let text = process::read(owner, &format!("fdinfo/{descriptor}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_hears_itself() {
        let me = std::process::id().cast_signed();
        assert!(!is_unheard(me, me, libc::SIGKILL));
    }
}

//! Whom a signal is meant for. A process names others by the numbers of its own pid namespace; here all are known by
//! those of the supervisor's.

use super::policy::Receiver;
use pando_kernel::namespace::pid::{PidNamespace, innermost};
use pando_kernel::process;
use std::io;

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
    /// That cannot be looked up.
    Unknown,
}

impl Meant {
    /// By the number that a process names somebody by.
    pub(super) fn by(caller: i32, number: i32, to: Receiver) -> Self {
        match to {
            Receiver::Pidfd => match pid_of_descriptor(caller, number) {
                Ok(found) => found.map_or(Self::Nobody, Self::One),
                Err(_) => Self::Unknown,
            },
            Receiver::ProcessOrGroup if number == -1 => Self::All,
            Receiver::ProcessOrGroup if number == 0 => {
                let (Ok(own), Ok(all)) = (process::group(caller), process::all()) else { return Self::Unknown };
                Self::Group(all.into_iter().filter(|pid| process::group(*pid).is_ok_and(|its| its == own)).collect())
            }
            Receiver::ProcessOrGroup | Receiver::Task => {
                // A number that has no opposite means nobody.
                let Some(opposite) = number.checked_neg() else { return Self::Nobody };
                let Ok(namespace) = PidNamespace::of(caller) else { return Self::Unknown };
                match number < 0 && to == Receiver::ProcessOrGroup {
                    true => namespace.in_group(opposite).map_or(Self::Unknown, Self::Group),
                    false => namespace.here(number).map_or(Self::Nobody, Self::One),
                }
            }
        }
    }
}

/// Whether the kernel would pass a signal over: the first process of a pid namespace cannot be ended or stopped from
/// inside it.
pub(super) fn is_unheard(caller: i32, receiver: i32, signal: i32) -> bool {
    let link = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid"));
    let share = || link(caller).is_ok_and(|own| link(receiver).is_ok_and(|its| own == its));
    UNHEARD.contains(&signal) && innermost(receiver).is_ok_and(|pid| pid == 1) && share()
}

/// The process behind a descriptor of another process; `None` where the descriptor is none of a process.
///
/// # Errors
///
/// That it cannot be looked at. That there is no such descriptor is no error.
pub(super) fn pid_of_descriptor(owner: i32, descriptor: i32) -> io::Result<Option<i32>> {
    let text = match process::read(owner, &format!("fdinfo/{descriptor}")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|word| word.trim().parse().ok());
    Ok(number.filter(|pid| *pid > 0))
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

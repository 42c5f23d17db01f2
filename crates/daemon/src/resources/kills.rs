//! Processes that the kernel killed for want of memory, told as events of their guests.

use crate::runtime::readable::readable;
use crate::state::daemon::Daemon;
use pando_limit::oom::{KernelLog, Victim, victim};
use std::os::fd::AsFd;
use std::rc::Rc;

/// Follows the kernel's log for as long as the daemon runs.
pub(crate) async fn tell_of_kills(daemon: Rc<Daemon>) {
    let opened = KernelLog::open().and_then(|log| Ok((log.as_fd().try_clone_to_owned()?, log)));
    let (ready, mut log) = match opened {
        Ok((copy, log)) => match readable(copy) {
            Ok(ready) => (ready, log),
            Err(error) => return tracing::warn!(%error, "the kernel's log cannot be followed"),
        },
        Err(error) => {
            return tracing::warn!(%error, "the kernel's log cannot be read: kills for want of memory are counted, not told");
        }
    };
    loop {
        let Ok(mut guard) = ready.readable().await else { return };
        loop {
            match log.next_record() {
                Ok(line) => tell(&daemon, &line),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return tracing::warn!(%error, "the kernel's log ends"),
            }
        }
        guard.clear_ready();
    }
}

fn tell(daemon: &Daemon, line: &str) {
    let Some(victim) = victim(line) else { return };
    let Some(slot) = slot(&victim, &daemon.places.field()) else { return };
    let guests = daemon.guests.borrow();
    let is_its = |slot: u32| move |running: &Rc<crate::state::guest::Running>| running.slot == slot;
    let Some(guest) = guests.values().find(|guest| guest.running.borrow().as_ref().is_some_and(is_its(slot))) else {
        return;
    };
    let limit = if victim.by_limit { "the guest's limit of memory" } else { "the machine's want of memory" };
    let detail = format!("process {} ({}) was killed for {limit}", victim.pid, victim.task);
    daemon.events.tell(guest.name.as_ref(), "oom", Some(detail));
}

/// The slot of a group of ours.
fn slot(victim: &Victim, field: &str) -> Option<u32> {
    victim.group.strip_prefix('/')?.strip_prefix(field)?.strip_prefix('/')?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_of_ours_have_slots() {
        let of =
            |group: &str| slot(&Victim { by_limit: true, group: group.into(), task: String::new(), pid: 1 }, "pando");
        assert_eq!((of("/pando/7"), of("/pando/7/guest/x")), (Some(7), Some(7)));
        assert_eq!((of("/pando-other/7"), of("/pando"), of("/pando/x")), (None, None, None));
    }
}

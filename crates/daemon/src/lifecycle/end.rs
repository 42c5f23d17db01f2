//! How a guest ends, and what is left to do then.

use crate::lifecycle::start;
use crate::logs;
use crate::runtime::readable::readable;
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use crate::state::record;
use crate::state::record::RECORD;
use pando_api::GuestState;
use pando_kernel::pidfd;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// How a first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With an exit code, or 128 + a signal's number.
    Code(i32),
    /// By reboot(2) from inside, asking to be started again.
    Reboot,
    /// By reboot(2) from inside, asking to stay down.
    Halt,
    /// Nobody could tell.
    Unknown,
}

impl Ending {
    /// From a status as waitpid(2) gives it. An own init that calls reboot(2) in its pid namespace dies by SIGHUP for a restart and by SIGINT for
    /// a halt or a power-off (pid_namespaces(7)).
    pub(crate) fn from_status(status: Option<i32>, own_init: bool) -> Self {
        let Some(status) = status else { return Self::Unknown };
        let signal = status & 0x7f;
        match (signal, own_init) {
            (0, _) => Self::Code(status >> 8 & 0xff),
            (libc::SIGHUP, true) => Self::Reboot,
            (libc::SIGINT, true) => Self::Halt,
            (signal, _) => Self::Code(128 + signal),
        }
    }

    /// The exit code to remember.
    pub(crate) fn exit_code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Reboot | Self::Halt => Some(0),
            Self::Unknown => None,
        }
    }
}

/// Watches over a life to its end.
pub(crate) fn watch(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Rc<Running>) {
    crate::freeze::self_freeze::mind(daemon, guest, running);
    let (daemon, guest, running) = (Rc::clone(daemon), Rc::clone(guest), Rc::clone(running));
    tokio::task::spawn_local(async move {
        let status = {
            let status = status(&daemon, &guest, &running);
            let mut status = std::pin::pin!(status);
            tokio::select! {
                status = &mut status => status,
                code = word(&running) => {
                    // Nothing runs in it any more: what is left is the end of its first process, which nobody has to wait for.
                    guest.state.set(GuestState::Stopping);
                    count_kills(&daemon, &guest, &running, Ending::Code(code));
                    running.over.send_replace(Some(Ending::Code(code)));
                    status.await
                }
            }
        };
        finish(&daemon, &guest, &running, status).await;
    });
}

/// Notes how many of its processes the kernel has killed for want of memory, before its groups go. Of a guest that ended well nobody will ask.
fn count_kills(daemon: &Daemon, guest: &Guest, running: &Running, ending: Ending) {
    if ending != Ending::Code(0) {
        running.oom_kills.set(daemon.resources.oom_kills(&guest.name).max(running.oom_kills.get()));
    }
}

/// The command's exit code, from the first process, which says it before it ends itself where nothing else has to end with it.
async fn word(running: &Running) -> i32 {
    let said = async {
        let word = readable(running.word.borrow_mut().take()?).ok()?;
        let mut count = [0; size_of::<u64>()];
        loop {
            let mut ready = word.readable().await.ok()?;
            match ready.try_io(|word| Ok(rustix::io::read(word.get_ref(), &mut count)?)) {
                Ok(read) => {
                    return read.ok().and_then(|_| i32::try_from(u64::from_ne_bytes(count).checked_sub(1)?).ok());
                }
                Err(_would_block) => {}
            }
        }
    };
    match said.await {
        Some(code) if !running.has_visitors() => code,
        // Its end will say.
        _ => std::future::pending().await,
    }
}

/// The first process's status, from the seed that started it; if that has gone, from the kernel.
async fn status(daemon: &Daemon, guest: &Guest, running: &Running) -> Option<i32> {
    if let Some(status) = running.link.ended(running.pid).await {
        return Some(status);
    }
    logs::orphan::carry_until_end(daemon, guest, running).await;
    status_without_seed(&running.trunk).await
}

/// The status of a process whose seed has gone, which the kernel knows once whoever inherited the process has reaped it.
pub(crate) async fn status_without_seed(process: &OwnedFd) -> Option<i32> {
    const MOMENT: Duration = Duration::from_millis(10);
    const MOMENTS: u32 = 200;
    wait_for(process).await;
    for _ in 0..MOMENTS {
        if let Some(status) = pidfd::exit_status(process) {
            return Some(status);
        }
        tokio::time::sleep(MOMENT).await;
    }
    None
}

/// Waits until a process has ended. That the daemon lacks what it takes to wait is no end: it looks again and again then.
pub(crate) async fn wait_for(process: &OwnedFd) {
    const MOMENT: Duration = Duration::from_millis(50);
    while !pidfd::has_ended(process) {
        match process.as_fd().try_clone_to_owned().and_then(readable) {
            Ok(process) => drop(process.readable().await),
            Err(_) => tokio::time::sleep(MOMENT).await,
        }
    }
}

/// Clears away what a life leaves, and starts the guest again if it asked for that.
pub(crate) async fn finish(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Rc<Running>, status: Option<i32>) {
    let ending = Ending::from_status(status, guest.spec.borrow().init.is_some() && !running.errand);
    let stopping = guest.state.get() == GuestState::Stopping;
    count_kills(daemon, guest, running, ending);
    if !running.errand {
        let mut record = guest.record.borrow_mut();
        record.exit_code = ending.exit_code();
        record.oom_kills = Some(running.oom_kills.get()).filter(|kills| *kills > 0);
    }
    // It may have been said ahead.
    running.over.send_if_modified(|over| over.is_none() && over.replace(ending).is_none());
    guest.state.set(GuestState::Stopping);
    // Whoever waits for the end hears of it before anything is cleared away.
    tokio::task::yield_now().await;
    crate::crash::point("end.noticed");
    // Before the seed goes, which alone could tell the next daemon.
    if !guest.ephemeral {
        let path = guest.directory(&daemon.places).join(RECORD);
        let record = guest.record.borrow().clone();
        if let Err(error) = record::write_kept(&path, &record) {
            tracing::warn!(%error, guest = %guest.name, "remembering how it ended failed");
        }
    }
    crate::crash::point("end.remembered");
    running.link.quit();
    let mounts = running.mounts.borrow_mut().take();
    let unmounted = tokio::task::spawn_blocking(move || drop(mounts));
    wait_for(&running.seed).await;
    crate::crash::point("end.quit");
    daemon.resources.leave(&guest.name);
    daemon.resources.accounts.forget(&guest.name);
    daemon.clear_slot(running.slot).await;
    // The next start needs the guest's own files to itself.
    let _ = unmounted.await;
    crate::crash::point("end.cleared");
    record::remove_run(&daemon.places, &guest.name);
    *guest.running.borrow_mut() = None;
    crate::store::hot_layers::note(daemon, guest);
    let detail = ending.exit_code().map_or("its exit code is not known".to_owned(), |code| format!("exit code {code}"));
    let killed = match running.oom_kills.get() {
        0 => String::new(),
        kills => format!("; killed for want of memory: {kills}"),
    };
    let detail = detail + &killed;
    daemon.events.tell(guest.name.as_ref(), "exit", Some(detail));
    if ending == Ending::Reboot && !stopping {
        daemon.events.tell(guest.name.as_ref(), "reboot", None);
        match start::again(daemon, guest).await {
            Ok(()) => return,
            Err(fault) => tracing::warn!(%fault, guest = %guest.name, "starting it again failed"),
        }
    }
    guest.state.set(GuestState::Stopped);
    guest.ends.send_modify(|ends| *ends += 1);
    if guest.ephemeral {
        crate::lifecycle::remove::forget(daemon, guest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_is_told_as_the_shell_tells_it() {
        assert_eq!(Ending::from_status(Some(3 << 8), false), Ending::Code(3));
        assert_eq!(Ending::from_status(Some(9), false), Ending::Code(137));
        assert_eq!(Ending::from_status(Some(1), false), Ending::Code(129));
        assert_eq!(Ending::from_status(Some(1), true), Ending::Reboot);
        assert_eq!(Ending::from_status(Some(2), true), Ending::Halt);
        assert_eq!(Ending::from_status(None, true).exit_code(), None);
    }
}

//! Asking guests how they are, now and then, for as long as they run.

use crate::launch::exec;
use crate::lifecycle::{restart, stop};
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::guest::{Guest, Running};
use crate::supervision::health_plan::{Check, Result, after};
use pando_api::{Fault, FaultKind, Health, OnFailure, Process, Wellbeing};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// How much of what a check prints is kept: bytes.
const MOST_KEPT: usize = 4096;

/// Asks a guest until it ends.
pub(crate) fn watch(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Rc<Running>) {
    if running.errand {
        return;
    }
    let (daemon, guest, running) = (Rc::clone(daemon), Rc::clone(guest), Rc::clone(running));
    tokio::task::spawn_local(async move {
        let mut over = running.over.subscribe();
        tokio::select! {
            () = ask(&daemon, &guest, &running) => {}
            _ = over.wait_for(Option::is_some) => {}
        }
        *guest.health.borrow_mut() = None;
    });
}

async fn ask(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Rc<Running>) {
    loop {
        let said = guest.spec.borrow().health.as_ref().and_then(Check::of);
        let Some(check) = said else {
            *guest.health.borrow_mut() = None;
            guest.is_asked_otherwise.notified().await;
            continue;
        };
        let before = guest.health.borrow_mut().get_or_insert_default().clone();
        tokio::select! {
            () = tokio::time::sleep(check.interval) => {}
            () = guest.is_asked_otherwise.notified() => continue,
        }
        let Some((exit_code, output)) = one(daemon, guest, &check).await else { continue };
        let at = now();
        let result = Result { exit_code, output, at, age: at - running.started };
        let health = after(&before, &check, result);
        let became = (health.status != before.status).then_some(health.status);
        *guest.health.borrow_mut() = Some(health.clone());
        if let Some(status) = became {
            tell(daemon, guest, &health);
            if status == Wellbeing::Unhealthy {
                act(daemon, guest, check.on_failure);
            }
        }
    }
}

fn tell(daemon: &Daemon, guest: &Guest, health: &Health) {
    let detail = match health.status {
        Wellbeing::Unhealthy => {
            let said = health.output.lines().next().unwrap_or_default();
            format!("unhealthy: {} checks failed, the last one saying '{said}'", health.failing_streak)
        }
        status => status.to_string(),
    };
    daemon.events.tell(guest.name.as_ref(), "health", Some(detail));
}

/// Runs one check: its exit code if it ended in time, and what it printed or why there was none. `None` where nobody
/// can be asked now.
async fn one(daemon: &Rc<Daemon>, guest: &Rc<Guest>, check: &Check) -> Option<(Option<i32>, String)> {
    if guest.paused.get() {
        return None;
    }
    let (output, stdio) = match stdio() {
        Ok(made) => made,
        Err(error) => {
            tracing::warn!(%error, guest = %guest.name, "no health check: its output has no place");
            return None;
        }
    };
    let process = Process { command: check.command.clone(), ..Process::default() };
    let started = match exec::exec(daemon, guest, process, stdio).await {
        Ok(started) => started,
        // It is being frozen or made, or has just ended.
        Err(Fault { kind: FaultKind::Busy | FaultKind::GuestNotRunning | FaultKind::Unavailable, .. }) => return None,
        Err(fault) => return Some((None, fault.message)),
    };
    match tokio::time::timeout(check.timeout, exec::outcome(&started)).await {
        Ok(None) => None,
        Ok(code) => Some((code, printed(&output))),
        Err(_) => {
            exec::end(started);
            Some((None, format!("it did not end within {} seconds, and was killed", check.timeout.as_secs())))
        }
    }
}

fn stdio() -> io::Result<(File, Vec<OwnedFd>)> {
    let output = File::from(rustix::fs::memfd_create("pando-health", MemfdFlags::CLOEXEC)?);
    let stdio = vec![File::open("/dev/null")?.into(), output.try_clone()?.into(), output.try_clone()?.into()];
    Ok((output, stdio))
}

fn printed(output: &File) -> String {
    let mut bytes = vec![0; MOST_KEPT];
    let read = output.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).trim_end().to_owned()
}

/// Does what is to be done with a guest that has become unhealthy. It is done beside this: the guest's end ends this.
fn act(daemon: &Rc<Daemon>, guest: &Rc<Guest>, action: OnFailure) {
    let (daemon, guest) = (Rc::clone(daemon), Rc::clone(guest));
    tokio::task::spawn_local(async move {
        let done = match action {
            OnFailure::None => Ok(()),
            // Its restart policy says what follows.
            OnFailure::Kill => guest.signal(libc::SIGKILL).map(drop).map_err(|error| error.to_string()),
            OnFailure::Restart => restart::restart(&daemon, &guest, None).await.map_err(|fault| fault.message),
            OnFailure::Stop => stop::stop(&daemon, &guest, None, None).await.map_err(|fault| fault.message),
        };
        if let Err(why) = done {
            let detail = format!("what is to be done with an unhealthy guest failed: {why}");
            daemon.events.tell(guest.name.as_ref(), "health", Some(detail));
        }
    });
}

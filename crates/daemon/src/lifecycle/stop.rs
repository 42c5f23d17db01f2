//! Stopping, killing and restarting a guest.

use crate::failure;
use crate::launch::exec;
use crate::lifecycle::{start, takeover};
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use pando_api::{Fault, FaultKind, GuestState};
use pando_kernel::{pidfd, signal};
use std::rc::Rc;
use std::time::Duration;

/// Seconds between asking and killing, if nobody says otherwise.
const GRACE: u32 = 10;

/// How long a killed guest may take to go: its processes may be deep in the kernel.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks a guest to stop, and kills it after the grace period. One that is at rest already is left alone.
pub(crate) async fn stop(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    with: Option<&str>,
    grace: Option<u32>,
) -> Result<(), Fault> {
    let _doing = guest.begin_in_trouble("stopped")?;
    if guest.unreached.borrow().is_some() {
        let spec = guest.spec.borrow().clone();
        let signal = with.or(spec.stop_signal.as_deref()).unwrap_or("TERM").to_owned();
        let number = signal::number(&signal).ok_or_else(|| unknown_signal(&signal))?;
        let grace = grace.or(spec.stop_grace).unwrap_or(GRACE);
        return takeover::end(daemon, guest, Some((number, Duration::from_secs(grace.into())))).await;
    }
    let Ok(running) = guest.life() else { return Ok(()) };
    halt(daemon, guest, &running, with, grace).await
}

/// Stops it if it runs, and starts it again.
pub(crate) async fn restart(daemon: &Rc<Daemon>, guest: &Rc<Guest>, grace: Option<u32>) -> Result<(), Fault> {
    let _doing = guest.begin("restarted")?;
    crate::lifecycle::quarantine::look_again(daemon, guest);
    guest.is_sound()?;
    if guest.ephemeral {
        return Err(failure::bad(
            guest.name.as_ref(),
            format!("guest '{}' goes away with its command and cannot be restarted", guest.name),
        ));
    }
    if let Ok(running) = guest.life() {
        halt(daemon, guest, &running, None, grace).await?;
    }
    crate::store::unify::before_start(daemon, guest).await;
    start::again(daemon, guest).await
}

/// Stops it without asking, whatever it is doing.
pub(crate) async fn force(guest: &Rc<Guest>, running: &Running) -> Result<(), Fault> {
    guest.state.set(GuestState::Stopping);
    kill_all(running);
    gone(guest, PATIENCE).await
}

async fn halt(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    running: &Running,
    with: Option<&str>,
    grace: Option<u32>,
) -> Result<(), Fault> {
    let asking = asking(guest, running, with)?;
    let grace = grace.or(guest.spec.borrow().stop_grace).unwrap_or(GRACE);
    guest.state.set(GuestState::Stopping);
    daemon.events.tell(guest.name.as_ref(), "stop", Some(asking.to_string()));
    crate::crash::point("stop.asking");
    ask(daemon, guest, running, &asking).await;
    crate::crash::point("stop.asked");
    if gone(guest, Duration::from_secs(grace.into())).await.is_ok() {
        return Ok(());
    }
    kill_all(running);
    gone(guest, PATIENCE).await
}

/// How a guest is asked to stop.
enum Asking {
    /// By a signal to its first process.
    Signal(i32),
    /// By the command that an administrator would use inside.
    Command,
}

impl std::fmt::Display for Asking {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(number) => out.write_str(&signal::name(*number)),
            Self::Command => out.write_str(&HALT.join(" ")),
        }
    }
}

/// Understood by sysvinit, OpenRC and runit alike.
const HALT: [&str; 3] = ["/sbin/shutdown", "-h", "now"];

/// Inits differ in what they take for "halt". systemd has a signal of its own for it, busybox another (init(1) of each); sysvinit has none.
fn asking(guest: &Guest, running: &Running, with: Option<&str>) -> Result<Asking, Fault> {
    let spec = guest.spec.borrow();
    if let Some(text) = with.or(spec.stop_signal.as_deref()) {
        return signal::number(text).map(Asking::Signal).ok_or_else(|| unknown_signal(text));
    }
    if spec.init.is_none() {
        return Ok(Asking::Signal(libc::SIGTERM));
    }
    // What the guest's first process is called is the guest's to choose; choosing wrong only makes its stop less gentle.
    let program = std::fs::read_link(format!("/proc/{}/exe", running.pid)).unwrap_or_default();
    let systemd = signal::number("RTMIN+3").unwrap_or(libc::SIGPWR);
    Ok(match program.file_name().and_then(|name| name.to_str()) {
        Some("systemd") => Asking::Signal(systemd),
        Some("busybox") => Asking::Signal(libc::SIGUSR2),
        _ => Asking::Command,
    })
}

/// That the guest may have ended just now is what was wanted, so nothing here fails.
async fn ask(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Running, asking: &Asking) {
    match asking {
        Asking::Signal(number) => {
            let _ = pidfd::send_signal(&running.trunk, *number);
        }
        Asking::Command => {
            if let Err(fault) = exec::quietly(daemon, guest, &HALT).await {
                tracing::info!(%fault, guest = %guest.name, "it has no command to halt; it gets SIGTERM");
                let _ = pidfd::send_signal(&running.trunk, libc::SIGTERM);
            }
        }
    }
}

fn unknown_signal(text: &str) -> Fault {
    failure::bad(
        text,
        format!(
            "'{}' is not a signal; use a name such as TERM, a number from 1 to 64, or RTMIN+N",
            text.escape_debug()
        ),
    )
}

/// The kernel ends everything in the guest's pid namespace with its first process. That it may have ended is what was wanted.
fn kill_all(running: &Running) {
    let _ = pidfd::send_signal(&running.trunk, libc::SIGKILL);
}

/// Waits until the guest is at rest.
async fn gone(guest: &Rc<Guest>, limit: Duration) -> Result<(), Fault> {
    let mut ends = guest.ends.subscribe();
    let at_rest = async {
        while guest.state.get() != GuestState::Stopped {
            if ends.changed().await.is_err() {
                break;
            }
        }
    };
    tokio::time::timeout(limit, at_rest).await.map_err(|_| {
        let message = format!(
            "guest '{}' did not end within {} s, although it was killed; a process of it may be stuck in the kernel: see 'pando ps {}'",
            guest.name,
            limit.as_secs(),
            guest.name
        );
        Fault::new(FaultKind::Failed, guest.name.as_ref(), message)
    })
}

/// Waits for the end of a guest that is about to end.
pub(crate) async fn has_ended(guest: &Rc<Guest>) -> Result<(), Fault> {
    gone(guest, PATIENCE).await
}

/// Sends a signal to a guest's first process; without one, kills it.
pub(crate) fn kill(daemon: &Daemon, guest: &Rc<Guest>, with: Option<&str>) -> Result<(), Fault> {
    let number = with.map_or(Ok(libc::SIGKILL), |text| signal::number(text).ok_or_else(|| unknown_signal(text)))?;
    if let Some(slot) = guest.unreached.borrow().as_ref().map(|unreached| unreached.run.slot) {
        takeover::ask(daemon, slot, number);
        return Ok(());
    }
    let running = guest.life()?;
    pidfd::send_signal(&running.trunk, number).map_err(|error| match error.raw_os_error() {
        // It has ended just now, and is being cleared away.
        Some(libc::ESRCH) => failure::not_running(&guest.name),
        _ => failure::io("sending a signal", guest.name.as_ref(), &error),
    })?;
    daemon.events.tell(guest.name.as_ref(), "kill", Some(signal::name(number)));
    Ok(())
}

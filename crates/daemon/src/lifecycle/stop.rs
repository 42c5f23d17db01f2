//! Stopping, killing and restarting a guest.

use crate::failure;
use crate::launch::exec;
use crate::lifecycle::kill::{PATIENCE, between_lives, gone, kill_all};
use crate::lifecycle::preempt::preempt;
use crate::lifecycle::{pause, takeover};
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use pando_api::{Fault, GuestState};
use pando_kernel::process::signal;
use std::rc::Rc;
use std::time::Duration;

/// Seconds between asking and killing, if nobody says otherwise.
const GRACE: u32 = 10;

/// Asks a guest to stop, and kills it after the grace period. One that is at rest already is left alone.
pub(crate) async fn stop(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    with: Option<&str>,
    grace: Option<u32>,
) -> Result<(), Fault> {
    guest.is_wanted(&daemon.places, false);
    let patience = Duration::from_secs(grace.or(guest.spec.borrow().stop_grace).unwrap_or(GRACE).into());
    let Some(_doing) = preempt(daemon, guest, "stopped", patience).await? else { return Ok(()) };
    if guest.unreached.borrow().is_some() {
        let spec = guest.spec.borrow().clone();
        let signal = with.or(spec.stop_signal.as_deref()).unwrap_or("TERM").to_owned();
        let number = signal::number(&signal).ok_or_else(|| unknown_signal(&signal))?;
        let grace = grace.or(spec.stop_grace).unwrap_or(GRACE);
        return takeover::end(daemon, guest, Some((number, Duration::from_secs(grace.into())))).await;
    }
    let Ok(running) = guest.life() else { return between_lives(guest).await };
    halt(daemon, guest, &running, with, grace).await
}

/// Asks a guest that runs to stop, and kills it after the grace period.
pub(crate) async fn halt(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    running: &Running,
    with: Option<&str>,
    grace: Option<u32>,
) -> Result<(), Fault> {
    let asking = asking(guest, running, with)?;
    // It could not answer otherwise.
    pause::go_on(daemon, guest)?;
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

/// Inits differ in what they take for "halt". systemd has a signal of its own for it, busybox another (init(1) of
/// each); sysvinit has none.
fn asking(guest: &Guest, running: &Running, with: Option<&str>) -> Result<Asking, Fault> {
    let spec = guest.spec.borrow();
    if let Some(text) = with.or(spec.stop_signal.as_deref()) {
        return signal::number(text).map(Asking::Signal).ok_or_else(|| unknown_signal(text));
    }
    if spec.init.is_none() {
        return Ok(Asking::Signal(libc::SIGTERM));
    }
    // What the guest's first process is called is the guest's to choose; choosing wrong only makes its stop less
    // gentle.
    let program = running.first.opened(|pid| std::fs::read_link(format!("/proc/{pid}/exe"))).unwrap_or_default();
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
            let _ = running.first.signal(*number);
        }
        Asking::Command => {
            if let Err(fault) = exec::quietly(daemon, guest, &HALT).await {
                tracing::info!(%fault, guest = %guest.name, "it has no command to halt; it gets SIGTERM");
                let _ = running.first.signal(libc::SIGTERM);
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

/// Sends a signal to a guest's first process; without one, kills it, also while it starts.
pub(crate) fn kill(daemon: &Daemon, guest: &Rc<Guest>, with: Option<&str>) -> Result<(), Fault> {
    let number = with.map_or(Ok(libc::SIGKILL), |text| signal::number(text).ok_or_else(|| unknown_signal(text)))?;
    if number == libc::SIGKILL || Some(number) == guest.spec.borrow().stop_signal.as_deref().and_then(signal::number) {
        guest.is_wanted(&daemon.places, false);
    }
    if let Some(slot) = guest.unreached.borrow().as_ref().map(|unreached| unreached.run.slot) {
        takeover::ask(&daemon.field, slot, number);
        return Ok(());
    }
    // Its end is what is wanted: of a life that has ended just now as well, whether or not that was noticed yet. It is
    // not started again.
    let is_leaving = number == libc::SIGKILL && guest.state.get() != GuestState::Stopped;
    let was_sent = guest.signal(number).or_else(|error| match error.raw_os_error() {
        Some(libc::ESRCH) if is_leaving => Ok(false),
        // It is being cleared away.
        Some(libc::ESRCH) => Err(failure::not_running(&guest.name)),
        _ => Err(failure::io("sending a signal", guest.name.as_ref(), &error)),
    })?;
    if !was_sent {
        return if is_leaving { Ok(()) } else { guest.life().map(drop) };
    }
    daemon.events.tell(guest.name.as_ref(), "kill", Some(signal::name(number)));
    Ok(())
}

//! How a guest ends, and what is left to do then.

use crate::lifecycle::forget::forget;
use crate::logs;
use crate::resources::Resources;
use crate::runtime::process_end::{status_without_shim, wait_for};
use crate::runtime::readable::readable;
use crate::state::daemon::Daemon;
use crate::state::ending::Ending;
use crate::state::events::now;
use crate::state::guest::{Guest, Running};
use crate::state::record::RECORD;
use crate::state::{processes, record};
use crate::supervision::restart_plan::reboot_pause;
use crate::supervision::restarts;
use pando_api::GuestState;
use std::rc::Rc;
use std::time::Duration;

/// Notes how many of its processes the kernel has killed for want of memory, before its groups go. Of a guest that
/// ended well nobody will ask.
fn count_kills(resources: &Resources, guest: &Guest, running: &Running, ending: Ending) {
    if ending != Ending::Code(0) {
        running.oom_kills.set(resources.oom_kills(&guest.name).max(running.oom_kills.get()));
    }
}

/// The command's exit code, from the first process, which says it before it ends itself where nothing else has to end
/// with it.
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

/// Waits until a life ends: the status of the first process. Whoever waits for the command hears of its end as soon as
/// that is known.
pub(crate) async fn comes(daemon: &Daemon, guest: &Guest, running: &Running) -> Option<i32> {
    let mut status = std::pin::pin!(status(daemon, guest, running));
    tokio::select! {
        status = &mut status => status,
        code = word(running) => {
            // Nothing runs in it any more: what is left is the end of its first process, which nobody has to wait for.
            guest.state.set(GuestState::Stopping);
            count_kills(&daemon.resources, guest, running, Ending::Code(code));
            running.over.send_replace(Some(Ending::Code(code)));
            status.await
        }
    }
}

/// The first process's status, from the shim that started it; if that has gone, from the kernel.
async fn status(daemon: &Daemon, guest: &Guest, running: &Running) -> Option<i32> {
    if let Some(status) = running.link.ended(running.first.pid()).await {
        return Some(status);
    }
    logs::orphan::carry_until_end(
        (&daemon.logs, guest.log(&daemon.places)),
        &processes::pids(&daemon.field, running.slot),
        running,
    )
    .await;
    status_without_shim(running.first.descriptor()?).await
}

/// What follows the end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The guest is at rest.
    Rest,
    /// It is at rest, and its restart policy starts it again after a pause.
    StartAfter(Duration),
    /// It asked to be started again, which it is after a pause.
    StartAgain(Duration),
}

/// Clears away what a life leaves.
pub(crate) async fn clear_away(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    running: &Rc<Running>,
    status: Option<i32>,
) -> Next {
    let ending = Ending::from_status(status, guest.spec.borrow().init.is_some() && !running.errand);
    let stopping = guest.state.get() == GuestState::Stopping;
    count_kills(&daemon.resources, guest, running, ending);
    let mut next = Next::Rest;
    if !running.errand {
        let mut record = guest.record.borrow_mut();
        record.exit_code = ending.exit_code();
        record.oom_kills = Some(running.oom_kills.get()).filter(|kills| *kills > 0);
        drop(record);
        next = follows(guest, running, ending, stopping);
    }
    // It may have been said ahead.
    running.over.send_if_modified(|over| over.is_none() && over.replace(ending).is_none());
    guest.state.set(GuestState::Stopping);
    // Whoever waits for the end hears of it before anything is cleared away.
    tokio::task::yield_now().await;
    crate::crash::point("end.noticed");
    // Before the shim goes, which alone could tell the next daemon.
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
    wait_for(&running.shim).await;
    crate::crash::point("end.quit");
    daemon.resources.leave(&guest.name);
    daemon.resources.accounts.forget(&guest.name);
    daemon.clear_slot(running.slot).await;
    // The next start needs the guest's own files to itself.
    let _ = unmounted.await;
    crate::crash::point("end.cleared");
    record::remove_run(&daemon.places, &guest.name);
    *guest.running.borrow_mut() = None;
    guest.paused.set(false);
    crate::store::hot_layers::note(daemon, guest);
    let detail = ending.exit_code().map_or("its exit code is not known".to_owned(), |code| format!("exit code {code}"));
    let killed = match running.oom_kills.get() {
        0 => String::new(),
        kills => format!("; killed for want of memory: {kills}"),
    };
    let detail = detail + &killed;
    daemon.events.tell(guest.name.as_ref(), "exit", Some(detail));
    next
}

/// What follows the end of a life; of one that its policy minds, noted in the record.
fn follows(guest: &Guest, running: &Running, ending: Ending, stopping: bool) -> Next {
    let lasted = Duration::from_secs(u64::try_from(now().saturating_sub(running.started)).unwrap_or(0));
    let life = restarts::past_life(guest, ending, lasted);
    if ending == Ending::Reboot && !stopping && !guest.restarts.is_down() {
        guest.restarts.short_lives.set(life.short_lives());
        return Next::StartAgain(reboot_pause(life));
    }
    let pause = restarts::follow(guest, life);
    pause.map_or(Next::Rest, Next::StartAfter)
}

/// Has a guest be at rest; one that goes away with its command is forgotten.
pub(crate) fn rest(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    guest.state.set(GuestState::Stopped);
    guest.ends.send_modify(|ends| *ends += 1);
    if guest.ephemeral {
        forget(daemon, guest);
    }
}

//! Taking over a guest that an earlier daemon started, from its note and its shim.
//!
//! ```text
//!   note ─▶ shim: connect ─▶ status ─▶ descriptors of its processes ─▶ Running
//!             │ refused        │ closed     │ lack
//!             ▼                ▼            ▼
//!            gone             gone         cannot be reached now: kept as it is, said in `ls`, tried again
//! ```
//!
//! Only the shim can say that a guest has gone. What the daemon lacks itself (descriptors, memory), and a shim that
//! does not answer, say nothing of the guest: it goes on, its note stays, and it can be ended by its control group
//! meanwhile.

use crate::crash;
use crate::failure;
use crate::init::link::{InitStatus, Link};
use crate::lifecycle::{forget, supervisor};
use crate::runtime::descriptors::leave_some;
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running, Unreached};
use crate::state::lives::Lives;
use crate::state::record::RunRecord;
use crate::state::{processes, record};
use crate::supervision::restarts;
use pando_api::{Fault, GuestState};
use pando_guest::Places;
use pando_guest::shim::ShimLink;
use pando_guest::slot;
use pando_kernel::cgroup::Field;
use pando_kernel::namespace::id_map;
use pando_kernel::process::{self, held::HeldProcess, pidfd, signal};
use pando_shim::Request;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long all shims together may take to answer until the daemon serves; those that have not are asked again.
const ANSWERS: Duration = Duration::from_secs(2);

/// How long one has at least.
const ANSWER: Duration = Duration::from_millis(100);

/// How long is waited until those that could not be reached are tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a killed guest may take to go.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of a guest that was to be taken over.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is this daemon's. What is left is to watch for its end, where that is not known yet: see [`attend`].
    TakenOver(Option<Rc<Running>>),
    /// It never was a guest, or nothing of it is left.
    Gone,
    /// That could not be found out.
    Unreached(Rc<Link>, io::Error),
    /// Not even its shim could be connected to.
    Unconnected(io::Error),
}

/// When the shims that are asked before the daemon serves have to have answered.
pub(crate) fn deadline() -> Instant {
    Instant::now() + ANSWERS
}

/// Takes over a guest whose first process was made. Whoever asks has to see that some descriptors are left.
pub(crate) async fn take_over(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    run: &RunRecord,
    connected: Option<Rc<Link>>,
    until: Instant,
) -> Outcome {
    let link = match connected.map_or_else(|| connect(&daemon.places, run), Ok) {
        Ok(link) => link,
        Err(error) if is_nobody(&error) => return nobody(&daemon.field, run, error).await,
        Err(error) => return Outcome::Unconnected(error),
    };
    let mut known = None;
    loop {
        let status = match said(daemon, run, &link, until).await {
            Ok(status) => status,
            Err(outcome) => return outcome,
        };
        if status.pid == 0 {
            link.quit();
            return Outcome::Gone;
        }
        // What was opened by numbers is what they meant if the shim, which alone reaps the first process, says the
        // same afterwards.
        known = match known {
            Some((before, running)) if before == status => {
                return Outcome::TakenOver(begin(daemon, guest, run, (Rc::new(running), status.ended)).await);
            }
            _ => match running(guest, run, &link, status) {
                Ok(running) => Some((status, running)),
                Err(error) => return Outcome::Unreached(link, error),
            },
        };
        crash::point("takeover.opened");
    }
}

/// What a shim says of its guest's first process.
async fn said(daemon: &Daemon, run: &RunRecord, link: &Rc<Link>, until: Instant) -> Result<InitStatus, Outcome> {
    let asked = tokio::time::timeout_at(until.max(Instant::now() + ANSWER), link.status()).await;
    match asked {
        Ok(Ok(Some(status))) => Ok(status),
        // It has gone.
        Ok(Ok(None)) => Err(nobody(&daemon.field, run, io::ErrorKind::BrokenPipe.into()).await),
        Ok(Err(error)) if is_nobody(&error) => Err(nobody(&daemon.field, run, error).await),
        Ok(Err(error)) => Err(Outcome::Unreached(Rc::clone(link), error)),
        Err(_) => Err(Outcome::Unreached(Rc::clone(link), io::Error::other("its shim does not answer"))),
    }
}

fn connect(places: &Places, run: &RunRecord) -> io::Result<Rc<Link>> {
    // Before anything is taken, what has to be left is seen to be there.
    let _left = leave_some()?;
    ShimLink::connect(&places.shim(run.slot)).and_then(Link::new)
}

/// Whether an error means that nobody listens there.
fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::NotFound
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
    )
}

/// A guest without a shim has ended, unless processes of it are left, which nobody but the kernel can tell of then.
async fn nobody(field: &Field, run: &RunRecord, error: io::Error) -> Outcome {
    const MOMENT: Duration = Duration::from_millis(10);
    const MOMENTS: u32 = 50;
    for _ in 0..MOMENTS {
        // Those of a start that came to nothing die with the daemon, but not at once.
        if processes::pids(field, run.slot).is_empty() {
            return Outcome::Gone;
        }
        tokio::time::sleep(MOMENT).await;
    }
    Outcome::Unconnected(error)
}

/// A life, with all descriptors that it takes: all of them, or an error.
fn running(guest: &Guest, run: &RunRecord, link: &Rc<Link>, status: InitStatus) -> io::Result<Running> {
    let InitStatus { shim, pid, ended } = status;
    let _left = leave_some()?;
    let shim_process = pidfd::open(shim)?;
    let first = match ended {
        // Its shim has reaped it.
        Some(_) => HeldProcess::ended(pid),
        None => HeldProcess::new(pid, pidfd::open(pid)?),
    };
    let own_ids = guest.spec.borrow().user_namespace;
    let namespace = own_ids.then(|| id_map::open(shim)).transpose().map_err(|error| error.source)?;
    Ok(Running {
        slot: run.slot,
        link: Rc::clone(link),
        shim: shim_process,
        mounts: RefCell::new(crate::init::prewarmed::mounts(&first)),
        started_by_clients: RefCell::new(HashMap::from([(pid, first.clone())])),
        first,
        namespace,
        started: run.started,
        errand: run.errand,
        word: RefCell::default(),
        oom_kills: Cell::new(0),
        over: watch::Sender::new(None),
    })
}

async fn begin(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    run: &RunRecord,
    (running, ended): (Rc<Running>, Option<i32>),
) -> Option<Rc<Running>> {
    daemon.resources.adopt(guest, run);
    *guest.unreached.borrow_mut() = None;
    *guest.running.borrow_mut() = Some(Rc::clone(&running));
    guest.state.set(GuestState::Running);
    guest.paused.set(run.paused && ended.is_none());
    match ended {
        Some(status) => {
            supervisor::finish(daemon, guest, &running, Some(status)).await;
            None
        }
        None => {
            daemon.events.tell(guest.name.as_ref(), "adopt", None);
            if !run.log_is_kept {
                daemon.logs.mind(guest.log(&daemon.places));
            } else if let Err(error) = running.link.shim().send(Request::Log { bound: daemon.logs.bound() }, &[]) {
                tracing::warn!(%error, guest = %guest.name, "its shim did not hear how large its log may be now");
            }
            Some(running)
        }
    }
}

/// Watches for the end of a guest that was taken over. What the guest holds has to be this daemon's by then: what is
/// given back before it was taken over would be kept for ever.
pub(crate) fn attend(lives: &Lives, guest: &Rc<Guest>, running: Option<&Rc<Running>>) {
    if let Some(running) = running {
        lives.tell(guest, running);
    }
}

/// Keeps a guest that could not be reached, to be tried again.
pub(crate) fn keep(daemon: &Daemon, guest: &Guest, run: RunRecord, (link, error): (Option<Rc<Link>>, &io::Error)) {
    let why = failure::reason(error);
    let said_before = guest.unreached.borrow().as_ref().is_some_and(|before| before.why == why);
    if !said_before {
        tracing::error!(guest = %guest.name, why, "it goes on, and cannot be reached now; it is tried again");
        daemon.events.tell(guest.name.as_ref(), "unreachable", Some(why.clone()));
    }
    *guest.unreached.borrow_mut() = Some(Unreached { run, link, why });
    guest.state.set(GuestState::Unreachable);
    daemon.troubled.notify_one();
}

/// Tries again, for as long as the daemon runs, to reach guests that it could not, and to read what it could not read.
pub(crate) async fn try_again(daemon: Rc<Daemon>) {
    loop {
        let troubled: Vec<_> =
            daemon.guests.borrow().values().filter(|guest| guest.trouble().is_some()).cloned().collect();
        if troubled.is_empty() {
            daemon.troubled.notified().await;
        }
        for guest in troubled {
            if let Ok(_doing) = guest.begin_in_trouble("looked for") {
                again(&daemon, &guest).await;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Tries once again. The guest is nobody else's meanwhile.
pub(crate) async fn again(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    crate::lifecycle::quarantine::look_again(daemon, guest);
    if guest.is_unreadable() {
        return;
    }
    let Some(Unreached { run, link, .. }) = guest.unreached.take() else { return };
    match take_over(daemon, guest, &run, link, Instant::now()).await {
        Outcome::TakenOver(running) => attend(&daemon.lives, guest, running.as_ref()),
        Outcome::Gone => gone(daemon, guest, &run).await,
        Outcome::Unreached(link, error) => keep(daemon, guest, run, (Some(link), &error)),
        Outcome::Unconnected(error) => keep(daemon, guest, run, (None, &error)),
    }
}

async fn gone(daemon: &Rc<Daemon>, guest: &Rc<Guest>, run: &RunRecord) {
    daemon.clear_slot(run.slot).await;
    record::remove_run(&daemon.places, &guest.name);
    *guest.unreached.borrow_mut() = None;
    guest.state.set(if guest.is_unreadable() { GuestState::Unreadable } else { GuestState::Stopped });
    daemon.events.tell(guest.name.as_ref(), "exit", Some("its exit code is not known".to_owned()));
    guest.ends.send_modify(|ends| *ends += 1);
    if guest.ephemeral {
        forget::forget(daemon, guest);
    } else if !run.errand {
        restarts::after_unseen_end(daemon, guest);
    }
}

/// Ends a guest that cannot be reached: by a signal to its first process first, if one is given, then by its control
/// group.
pub(crate) async fn end(daemon: &Rc<Daemon>, guest: &Rc<Guest>, asking: Option<(i32, Duration)>) -> Result<(), Fault> {
    let Some(run) = guest.unreached.borrow().as_ref().map(|unreached| unreached.run.clone()) else { return Ok(()) };
    if let Some((number, grace)) = asking {
        ask(&daemon.field, run.slot, number);
        if emptied(&daemon.field, run.slot, grace).await {
            return leave(daemon, guest, &run).await;
        }
    }
    daemon.field.plot(run.slot).kill();
    if emptied(&daemon.field, run.slot, PATIENCE).await {
        return leave(daemon, guest, &run).await;
    }
    Err(failure::bad(
        guest.name.as_ref(),
        format!("guest '{}' cannot be reached, and its processes did not end although they were killed", guest.name),
    ))
}

/// Sends a signal to the first process of a slot.
pub(crate) fn ask(field: &Field, slot: u32, number: i32) {
    let is_first = |pid: &i32| process::describe(*pid).is_ok_and(|process| process.inner_pid == 1);
    let first = processes::pids(field, slot).into_iter().find(is_first);
    if let Some((pid, first)) = first.and_then(|pid| Some((pid, pidfd::open(pid).ok()?))) {
        // The number may have been another's when it was opened: whoever is in the group under it now, while this one
        // has not ended, is this one.
        let is_meant = processes::pids(field, slot).contains(&pid) && is_first(&pid) && !pidfd::has_ended(&first);
        if is_meant {
            let _ = pidfd::send_signal(&first, number);
        }
    }
    tracing::info!(slot, signal = signal::name(number), "asked a guest that cannot be reached");
}

async fn emptied(field: &Field, slot: u32, limit: Duration) -> bool {
    const MOMENT: Duration = Duration::from_millis(20);
    let emptied = async {
        while !processes::pids(field, slot).is_empty() {
            tokio::time::sleep(MOMENT).await;
        }
    };
    tokio::time::timeout(limit, emptied).await.is_ok()
}

/// Its shim is all that is left.
async fn leave(daemon: &Rc<Daemon>, guest: &Rc<Guest>, run: &RunRecord) -> Result<(), Fault> {
    const MOMENT: Duration = Duration::from_millis(20);
    daemon.field.plot(run.slot).kill();
    let free = async {
        while slot::is_held(run.slot) {
            tokio::time::sleep(MOMENT).await;
        }
    };
    let _ = tokio::time::timeout(PATIENCE, free).await;
    gone(daemon, guest, run).await;
    Ok(())
}

//! Memory taken back from guests: because somebody asks for it, and from those that have been idle for long.

use crate::failure;
use crate::resources::{Resources, Tenant};
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use pando_api::{Fault, Reclaimed, Reply};
use pando_guest::GuestName;
use pando_guest::settings::{Problem, Settings};
use pando_limit::idleness::Idleness;
use pando_limit::reclaim::reclaim_all;
use serde::Deserialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often it is looked who is idle.
const LOOK: Duration = Duration::from_secs(5);

/// Keys of the table `[memory]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Rules {
    /// Seconds for which a guest has to be idle before its memory is taken back; none is never.
    reclaim_idle: Option<u64>,
}

/// The rules in pando.toml, and what is wrong with them.
pub(crate) fn rules(settings: &Settings) -> (Rules, Vec<Problem>) {
    settings.table("memory")
}

/// What was taken back, and by which rules more will be.
#[derive(Debug, Default)]
pub(crate) struct Reclaiming {
    rules: Cell<Rules>,
    /// Bytes that were taken back from each guest in the life that it is in, and what tells that from others.
    taken: RefCell<BTreeMap<GuestName, (Life, u64)>>,
    changed: Notify,
}

/// A life of a guest: when it began, and its first process. Two may begin within one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    started: i64,
    pid: i32,
}

impl Life {
    fn of(guest: &Guest) -> Option<Self> {
        guest.running.borrow().as_ref().map(|running| Self { started: running.started, pid: running.first.pid() })
    }
}

impl Reclaiming {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self { rules: Cell::new(rules(settings).0), ..Self::default() }
    }

    /// From now on memory is taken back by these.
    pub(crate) fn go_by(&self, rules: Rules) {
        if self.rules.replace(rules) != rules {
            self.changed.notify_one();
        }
    }

    /// Bytes that were taken back from a guest since it was started.
    pub(crate) fn taken_from(&self, guest: &Guest) -> Option<u64> {
        let life = Life::of(guest)?;
        self.taken.borrow().get(&guest.name).filter(|(of, _)| *of == life).map(|(_, bytes)| *bytes)
    }

    fn note(&self, guest: &Guest, bytes: u64) {
        let Some(life) = Life::of(guest) else { return };
        let before = self.taken_from(guest).unwrap_or(0);
        self.taken.borrow_mut().insert(guest.name.clone(), (life, before + bytes));
    }
}

/// Takes memory back from a guest that runs; without a name from all that are idle.
pub(crate) async fn reclaim(daemon: &Rc<Daemon>, name: Option<&str>) -> Result<Reply, Fault> {
    let guests = match name {
        Some(name) => {
            let guest = daemon.guest(name)?;
            guest.life()?;
            vec![guest]
        }
        None => idle(daemon),
    };
    let mut reclaimed = Vec::new();
    for guest in guests {
        let bytes = take(daemon, &guest).await?;
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        reclaimed.push(Reclaimed { guest: guest.name.to_string(), bytes });
    }
    Ok(Reply::Reclaimed { reclaimed })
}

/// Guests that used less than 0.1 % of the machine's processor time in the last five minutes.
fn idle(daemon: &Daemon) -> Vec<Rc<Guest>> {
    let Resources { accounts, machine, .. } = &*daemon.resources;
    let is_idle = |guest: &&Rc<Guest>| {
        let used = daemon.resources.with(&guest.name, Tenant::used).flatten();
        used.is_some_and(|cpu_ns| !accounts.look(&guest.name, cpu_ns, machine.count()).1)
    };
    daemon.guests.borrow().values().filter(is_idle).cloned().collect()
}

async fn take(daemon: &Daemon, guest: &Guest) -> Result<u64, Fault> {
    let Some(groups) = daemon.resources.with(&guest.name, |tenant| tenant.groups.clone()) else { return Ok(0) };
    let name = guest.name.as_ref();
    let taken = tokio::task::spawn_blocking(move || reclaim_all(&groups)).await;
    let taken = taken
        .map_err(|error| failure::bad(name, format!("taking memory back failed inside Pando: {error}")))?
        .map_err(|error| failure::call(&format!("taking memory back from guest '{name}'"), name, &error))?;
    daemon.reclaiming.note(guest, taken);
    Ok(taken)
}

/// Takes memory back from those that are idle for long, for as long as the daemon runs.
pub(crate) async fn reclaim_from_idle(daemon: Rc<Daemon>) {
    let mut idleness = Idleness::default();
    loop {
        let Some(seconds) = daemon.reclaiming.rules.get().reclaim_idle else {
            daemon.reclaiming.changed.notified().await;
            continue;
        };
        let used = |name: &GuestName| daemon.resources.with(name, Tenant::used).flatten().map(Duration::from_nanos);
        let names: Vec<GuestName> = daemon.guests.borrow().keys().cloned().collect();
        let all: Vec<_> = names.into_iter().filter_map(|name| used(&name).map(|used| (name, used))).collect();
        for name in idleness.look(&all, Instant::now(), Duration::from_secs(seconds)) {
            let Some(guest) = daemon.guests.borrow().get(&name).cloned() else { continue };
            match take(&daemon, &guest).await {
                Ok(0) => {}
                Ok(bytes) => {
                    let detail = format!("{} KiB taken back: idle for {seconds} seconds", bytes / 1024);
                    daemon.events.tell(name.as_ref(), "reclaim", Some(detail));
                }
                Err(fault) => tracing::warn!(%fault, guest = %name, "it is idle, and keeps its memory"),
            }
        }
        let wait = LOOK.min(Duration::from_secs(seconds.max(1)));
        let _ = tokio::time::timeout(wait, daemon.reclaiming.changed.notified()).await;
    }
}

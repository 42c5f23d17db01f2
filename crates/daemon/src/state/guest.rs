//! A guest, as the daemon holds it.

use crate::failure;
use crate::init::link::Link;
use crate::state::damage::Damage;
use crate::state::ending::Ending;
use crate::state::image::Checkpoint;
use crate::state::record;
use crate::state::record::{GuestRecord, LOG, RECORD, RunRecord};
use crate::state::restarts::Restarts;
use pando_api::{Fault, FaultKind, GuestState, GuestStatus, Health, Spec};
use pando_guest::policy::grants;
use pando_guest::{GuestName, Places};
use pando_kernel::process::held::HeldProcess;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// A guest as the daemon holds it.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) name: GuestName,
    /// Whether it goes away with its command.
    pub(crate) ephemeral: bool,
    /// What its directory is called.
    pub(crate) home: String,
    pub(crate) record: RefCell<GuestRecord>,
    pub(crate) spec: RefCell<Spec>,
    pub(crate) state: Cell<GuestState>,
    pub(crate) running: RefCell<Option<Rc<Running>>>,
    /// What a command is doing to it now.
    doing: Cell<Option<&'static str>>,
    /// Tells those who wait to do something that nothing is being done any more.
    freed: Notify,
    /// The process that is about to be its first, while it starts.
    beginning: RefCell<Option<HeldProcess>>,
    /// Whether it was killed before there was a process that could be: the start that is under way ends with it.
    pub(crate) is_doomed: Cell<bool>,
    /// Whether nobody may enter it yet.
    closed: Cell<bool>,
    /// The image that it comes back from, with connections, until it has them.
    pub(crate) returning: RefCell<Option<String>>,
    /// Counts its ends, for those who wait for one.
    pub(crate) ends: watch::Sender<u64>,
    /// Its note, if it was left running and cannot be taken over yet.
    pub(crate) unreached: RefCell<Option<Unreached>>,
    /// What is wrong with its files.
    pub(crate) damage: RefCell<Option<Damage>>,
    pub(crate) restarts: Restarts,
    /// What came of its health checks in this run.
    pub(crate) health: RefCell<Option<Health>>,
    /// Tells whoever asks how it is that it is to be asked otherwise.
    pub(crate) is_asked_otherwise: Notify,
    /// Whether somebody has paused it.
    pub(crate) paused: Cell<bool>,
    /// The image that it was frozen into last, in this run.
    pub(crate) frozen_as: RefCell<Option<Checkpoint>>,
}

/// A guest that an earlier daemon left running, and that this one cannot work with yet.
#[derive(Debug)]
pub(crate) struct Unreached {
    pub(crate) run: RunRecord,
    /// The connection to its shim, if there is one: a shim that stands still is not connected to again and again.
    pub(crate) link: Option<Rc<Link>>,
    pub(crate) why: String,
}

/// A guest's life from start to end.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) slot: u32,
    pub(crate) link: Rc<Link>,
    /// The shim's process.
    pub(crate) shim: OwnedFd,
    /// The guest's first process.
    pub(crate) first: HeldProcess,
    /// Its user namespace, if it has one of its own.
    pub(crate) namespace: Option<OwnedFd>,
    /// Its mounts, held so that they are taken down by the daemon, at leisure, and not by the first process on its way
    /// out, which would keep its end from being seen for several grace periods.
    pub(crate) mounts: RefCell<Option<OwnedFd>>,
    /// When it began, in seconds since the epoch.
    pub(crate) started: i64,
    /// Whether it runs for an errand of Pando's, and not its own command.
    pub(crate) errand: bool,
    /// Processes that clients started in it, by host pid: those that they may signal.
    pub(crate) started_by_clients: RefCell<HashMap<i32, HeldProcess>>,
    /// Where its first process says that the command has ended, until somebody listens there.
    pub(crate) word: RefCell<Option<OwnedFd>>,
    /// How many of its processes the kernel had killed for want of memory when it ended.
    pub(crate) oom_kills: Cell<u64>,
    /// How it ended, as soon as that is known; clearing away comes after.
    pub(crate) over: watch::Sender<Option<Ending>>,
}

impl Running {
    /// The id that its root is on the host.
    pub(crate) fn root(&self) -> u32 {
        self.namespace.as_ref().map_or(0, |_| pando_guest::slot::first_id(self.slot))
    }

    /// Whether anything runs in it, or is just about to, that its first process did not begin.
    pub(crate) fn has_visitors(&self) -> bool {
        self.link.is_launching() || self.started_by_clients.borrow().keys().any(|pid| *pid != self.first.pid())
    }
}

impl Guest {
    /// Makes a guest that lasts.
    pub(crate) fn new(name: GuestName, record: GuestRecord, spec: Spec) -> Rc<Self> {
        let home = name.to_string();
        Self::of(name, false, home, record, spec)
    }

    /// One that goes away with its command. `home` is its directory below that of all such guests.
    pub(crate) fn passing(name: GuestName, home: String, record: GuestRecord, spec: Spec) -> Rc<Self> {
        Self::of(name, true, home, record, spec)
    }

    fn of(name: GuestName, ephemeral: bool, home: String, record: GuestRecord, spec: Spec) -> Rc<Self> {
        Rc::new(Self {
            name,
            ephemeral,
            home,
            record: RefCell::new(record),
            spec: RefCell::new(spec),
            state: Cell::new(GuestState::Stopped),
            running: RefCell::new(None),
            doing: Cell::new(None),
            freed: Notify::new(),
            beginning: RefCell::default(),
            is_doomed: Cell::default(),
            closed: Cell::new(false),
            returning: RefCell::default(),
            ends: watch::Sender::new(0),
            unreached: RefCell::default(),
            damage: RefCell::default(),
            restarts: Restarts::default(),
            health: RefCell::default(),
            is_asked_otherwise: Notify::new(),
            paused: Cell::new(false),
            frozen_as: RefCell::default(),
        })
    }

    /// The image that its memory is most like: that it was frozen into last, or came out of.
    pub(crate) fn checkpoint(&self) -> Option<Checkpoint> {
        let came_of = || {
            let record = self.record.borrow();
            let image = record.source.strip_prefix("image:")?.to_owned();
            Some(Checkpoint { image, created: record.image_created? })
        };
        self.frozen_as.borrow().clone().or_else(came_of)
    }

    /// The directory that its files lie in.
    pub(crate) fn directory(&self, places: &Places) -> PathBuf {
        if self.ephemeral { places.ephemeral().join(&self.home) } else { places.guest(&self.name) }
    }

    /// The most bytes that its own files may take, if they are bounded.
    pub(crate) fn bound(&self) -> Option<u64> {
        grants::read(&self.spec.borrow()).ok()?.disk.size
    }

    /// What its command says goes there.
    pub(crate) fn log(&self, places: &Places) -> PathBuf {
        self.directory(places).join(LOG)
    }

    /// Writes down what Pando knows of it, if it lasts.
    pub(crate) fn remember(&self, places: &Places) -> Result<(), Fault> {
        if self.ephemeral {
            return Ok(());
        }
        let written = record::write_kept(&self.directory(places).join(RECORD), &*self.record.borrow());
        written.map_err(|error| failure::call("remembering the guest", self.name.as_ref(), &error))
    }

    /// From here on it is not what it was frozen as.
    pub(crate) fn goes_on(&self, places: &Places) -> Result<(), Fault> {
        let was_frozen = self.record.borrow_mut().frozen_into.take().is_some();
        if was_frozen { self.remember(places) } else { Ok(()) }
    }

    /// Somebody wants it to run, or to be at rest: what its restart policy goes by from now on, and the next daemon's.
    pub(crate) fn is_wanted(&self, places: &Places, up: bool) {
        self.restarts.is_wanted_up(up);
        let mut record = self.record.borrow_mut();
        let up = up && !self.spec.borrow().restart.is_no();
        if (record.up, record.restarts) == (up, 0) {
            return;
        }
        (record.up, record.restarts) = (up, 0);
        drop(record);
        if let Err(fault) = self.remember(places) {
            tracing::warn!(%fault, guest = %self.name, "a daemon that comes may start or leave it against what was asked");
        }
    }

    /// Begins to do something to it that nothing else may happen beside.
    pub(crate) fn begin(self: &Rc<Self>, doing: &'static str) -> Result<Doing, Fault> {
        match self.out_of_reach() {
            Some(fault) => Err(fault),
            None => self.begin_in_trouble(doing),
        }
    }

    /// The same, for what can be done to one that cannot be reached, or of which nothing is known.
    pub(crate) fn begin_in_trouble(self: &Rc<Self>, doing: &'static str) -> Result<Doing, Fault> {
        if let Some(other) = self.doing.get() {
            return Err(failure::busy(&self.name, other));
        }
        self.doing.set(Some(doing));
        Ok(Doing(Rc::clone(self)))
    }

    /// The same, once nothing else is being done to it any more: that is waited for, `limit` at most.
    pub(crate) async fn begin_within(self: &Rc<Self>, doing: &'static str, limit: Duration) -> Result<Doing, Fault> {
        let begun = async {
            loop {
                let freed = self.freed.notified();
                match self.begin_in_trouble(doing) {
                    Ok(begun) => return begun,
                    Err(_) => freed.await,
                }
            }
        };
        match tokio::time::timeout(limit, begun).await {
            Ok(begun) => Ok(begun),
            Err(_) => self.begin_in_trouble(doing),
        }
    }

    /// Notes which process is to be its first, until what this gives is dropped. Killed, it ends the start.
    pub(crate) fn begins_with(self: &Rc<Self>, process: HeldProcess) -> Beginning {
        if self.is_doomed.take() {
            // That it has ended already is as well.
            let _ = process.signal(libc::SIGKILL);
        }
        *self.beginning.borrow_mut() = Some(process);
        Beginning(Rc::clone(self))
    }

    /// Sends a signal to its first process, or kills what is about to be that; whether there was one.
    pub(crate) fn signal(&self, number: i32) -> std::io::Result<bool> {
        if let Some(running) = &*self.running.borrow() {
            return running.first.signal(number).map(|()| true);
        }
        match &*self.beginning.borrow() {
            Some(process) if number == libc::SIGKILL => process.signal(number).map(|()| true),
            None if number == libc::SIGKILL && self.state.get() == GuestState::Starting => {
                self.is_doomed.set(true);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Whether something is being done to it.
    pub(crate) fn is_busy(&self) -> bool {
        self.doing.get().is_some()
    }

    /// Keeps everybody from entering it until what this gives is dropped.
    pub(crate) fn close(self: &Rc<Self>) -> Closed {
        self.closed.set(true);
        Closed(Rc::clone(self))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Its life, if it runs.
    pub(crate) fn life(&self) -> Result<Rc<Running>, Fault> {
        let running = self.running.borrow().clone();
        running.ok_or_else(|| self.out_of_reach().unwrap_or_else(|| failure::not_running(&self.name)))
    }

    /// Refuses what has to go on inside while somebody has paused it.
    pub(crate) fn goes(&self) -> Result<(), Fault> {
        if self.paused.get() { Err(failure::paused(&self.name)) } else { Ok(()) }
    }

    /// Whether nothing is known of it but its name.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.damage.borrow().as_ref().is_some_and(|damage| !damage.known)
    }

    /// The slot that it is in, whether or not this daemon can reach it there.
    pub(crate) fn slot(&self) -> Option<u32> {
        let reached = self.running.borrow().as_ref().map(|running| running.slot);
        reached.or_else(|| Some(self.unreached.borrow().as_ref()?.run.slot))
    }

    /// Why nothing can be done with it but to end, remove or repair it.
    fn out_of_reach(&self) -> Option<Fault> {
        if self.unreached.borrow().is_none() && !self.is_unreadable() {
            return None;
        }
        let message = format!("guest '{}' cannot be used now: {}", self.name, self.trouble()?);
        Some(Fault::new(FaultKind::Unavailable, self.name.as_ref(), message))
    }

    /// That it is not to be started or changed before its damaged files are mended.
    pub(crate) fn is_sound(&self) -> Result<(), Fault> {
        let Some(damage) = self.damage.borrow().clone() else { return Ok(()) };
        let message = format!("guest '{}' is left as it is: {}", self.name, damage.told(&self.name));
        Err(Fault::new(FaultKind::Unavailable, self.name.as_ref(), message))
    }

    /// What is wrong with it and what to do, if anything is.
    pub(crate) fn trouble(&self) -> Option<String> {
        let damaged = self.damage.borrow().as_ref().map(|damage| damage.told(&self.name));
        let unreached = self.unreached.borrow().as_ref().map(|unreached| {
            format!(
                "it runs, and Pando's daemon cannot reach it: {}; it tries again every second, and 'pando stop' and 'pando rm --force' end it",
                unreached.why
            )
        });
        let all: Vec<String> = damaged.into_iter().chain(unreached).collect();
        (!all.is_empty()).then(|| all.join(". "))
    }

    /// Whether nothing is left of it but what is being cleared away.
    pub(crate) fn is_leaving(&self) -> bool {
        let has_ended = |running: &Rc<Running>| running.over.borrow().is_some_and(|how| how != Ending::Reboot);
        self.ephemeral && self.running.borrow().as_ref().is_some_and(has_ended)
    }

    /// Waits until that is done.
    pub(crate) async fn has_left(&self) {
        // The sender lives in the guest.
        let _ = self.ends.subscribe().changed().await;
    }

    /// Its line in a listing.
    pub(crate) fn status(&self) -> GuestStatus {
        let (record, spec, running) = (self.record.borrow(), self.spec.borrow(), self.running.borrow());
        GuestStatus {
            name: self.name.to_string(),
            state: self.state.get(),
            paused: self.paused.get(),
            pid: running.as_ref().map(|running| running.first.pid()),
            source: record.source.clone(),
            ephemeral: self.ephemeral,
            created: record.created,
            started: running.as_ref().map(|running| running.started),
            exit_code: record.exit_code,
            oom_kills: record.oom_kills,
            health: self.health.borrow().clone(),
            restarts: Some(record.restarts).filter(|restarts| *restarts > 0),
            next_start: self.restarts.due(),
            labels: spec.labels.clone(),
            command: spec.init.iter().cloned().chain(spec.command.iter().cloned()).collect(),
            trouble: self.trouble(),
        }
    }
}

/// A guest that nobody enters, until this is dropped.
#[derive(Debug)]
pub(crate) struct Closed(Rc<Guest>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.closed.set(false);
    }
}

/// A guest that is being started, until this is dropped.
#[derive(Debug)]
pub(crate) struct Beginning(Rc<Guest>);

impl Drop for Beginning {
    fn drop(&mut self) {
        self.0.beginning.borrow_mut().take();
    }
}

/// Something that is being done to a guest, until this is dropped.
#[derive(Debug)]
pub(crate) struct Doing(Rc<Guest>);

impl Drop for Doing {
    fn drop(&mut self) {
        self.0.doing.set(None);
        self.0.freed.notify_waiters();
    }
}

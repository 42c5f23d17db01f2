//! Beginnings of transactions of the host, made ahead ([`pando_tx::Prewarmed`]).
//!
//! None is made before the first transaction asks: a spare holds every mount of the machine busy, and has a hidden
//! directory at the root of each that can be written to. For the same reason all are thrown away as soon as anything is
//! mounted or unmounted, and when nobody has asked for a while.

use crate::runtime::readable::urgent;
use pando_guest::Places;
use pando_kernel::mount::watch::MountWatch;
use pando_tx::{HandedOver, Prewarmed, Remains, StateDirectory, Still};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::sync::{Notify, RwLock};
use tokio::time::Instant;

/// How many are kept ready.
const READY: usize = 3;

/// How long nobody must have taken one before others are made, unless none is left: on a machine with few processors
/// that is time added to a transaction.
const PAUSE: Duration = Duration::from_millis(15);

/// How long the mounts must have stayed the same.
const SETTLED: Duration = Duration::from_millis(500);

/// How often making one may fail before nobody tries again until the next is asked for. On a busy machine something
/// that a view is made of comes or goes meanwhile.
const FAILURES: u32 = 5;

/// How long they are kept when nobody asks.
const LINGER: Duration = Duration::from_secs(600);

/// The beginnings of transactions that are ready.
#[derive(Debug)]
pub(crate) struct TransactionReserve {
    home: StateDirectory,
    ready: RefCell<VecDeque<Prewarmed>>,
    /// Counts those that were made.
    made: Cell<u32>,
    /// Who need not be looked at when the next is made.
    still: RefCell<Still>,
    /// When one was last asked for.
    asked: Cell<Option<Instant>>,
    /// When anything was last mounted or unmounted.
    moved: Cell<Option<Instant>>,
    refilling: Cell<bool>,
    closed: Cell<bool>,
    /// Held, shared, by whatever makes one or clears away: the daemon does not end in the midst of it.
    underway: RwLock<()>,
    wanted: Notify,
}

impl TransactionReserve {
    pub(crate) fn new(places: &Places) -> Rc<Self> {
        Rc::new(Self {
            home: StateDirectory::new(places.root()),
            ready: RefCell::default(),
            made: Cell::new(0),
            still: RefCell::default(),
            asked: Cell::new(None),
            moved: Cell::new(None),
            refilling: Cell::new(false),
            closed: Cell::new(false),
            underway: RwLock::new(()),
            wanted: Notify::new(),
        })
    }

    /// One that is current, if there is one; others will be made.
    pub(crate) fn take(self: &Rc<Self>) -> Option<HandedOver> {
        self.asked.set(Some(Instant::now()));
        let mut stale = Vec::new();
        let mut current = None;
        while current.is_none()
            && let Some(spare) = self.next()
        {
            match spare.hand_over() {
                Ok(spare) => current = Some(spare),
                Err(spare) => stale.push(*spare),
            }
        }
        if !stale.is_empty() {
            tokio::task::spawn_local(discard(stale));
        }
        self.wanted.notify_one();
        self.refill();
        current
    }

    fn next(&self) -> Option<Prewarmed> {
        self.ready.borrow_mut().pop_front()
    }

    fn refill(self: &Rc<Self>) {
        if self.closed.get() || self.refilling.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let mut failures = 0;
            while this.is_wanted() && this.ready.borrow().len() < READY && failures < FAILURES {
                if let Some(due) = this.due().filter(|due| *due > Instant::now()) {
                    tokio::time::sleep_until(due).await;
                    continue;
                }
                if let Err(why) = this.make_one().await {
                    tracing::debug!(why, "making the beginning of a transaction ahead failed");
                    failures += 1;
                    tokio::time::sleep(SETTLED).await;
                }
            }
            this.refilling.set(false);
        });
    }

    /// When the next may be made.
    fn due(&self) -> Option<Instant> {
        let quiet = self.asked.get().filter(|_| !self.ready.borrow().is_empty()).map(|asked| asked + PAUSE);
        quiet.max(self.moved.get().map(|moved| moved + SETTLED))
    }

    async fn make_one(&self) -> Result<(), String> {
        let _underway = self.underway.read().await;
        if self.closed.get() {
            return Ok(());
        }
        let (home, number, moved) = (self.home.clone(), self.made.get(), self.moved.get());
        self.made.set(number.wrapping_add(1));
        let still = self.still.borrow().clone();
        let made = tokio::task::spawn_blocking(move || Prewarmed::make(&home, number, &still)).await;
        let spare = made.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        self.still.replace(spare.still().clone());
        if self.closed.get() || self.moved.get() != moved {
            discard([spare]).await;
        } else {
            self.ready.borrow_mut().push_back(spare);
        }
        Ok(())
    }

    fn is_wanted(&self) -> bool {
        !self.closed.get() && self.asked.get().is_some_and(|asked| asked.elapsed() < LINGER)
    }

    /// Throws away all that are ready.
    async fn clear(&self) {
        let all = self.ready.take();
        discard(all).await;
    }

    /// The same at the daemon's end, when nothing is underway any more.
    pub(crate) async fn close(&self) {
        self.closed.set(true);
        let _nothing = self.underway.write().await;
        self.clear().await;
    }

    /// Clears away what a client has left that took some, and has gone. Its own end comes first: there are few
    /// processors.
    pub(crate) async fn clear_after(&self, remains: Vec<Remains>) {
        const FIRST: Duration = Duration::from_millis(10);
        if remains.is_empty() {
            return;
        }
        let _underway = self.underway.read().await;
        tokio::time::sleep(FIRST).await;
        // What could not be deleted is by the next sweep.
        let _ = tokio::task::spawn_blocking(move || remains.into_iter().for_each(Remains::clear)).await;
    }
}

/// To remove one takes a while: the kernel waits for all processors when mounts go.
async fn discard(spares: impl IntoIterator<Item = Prewarmed> + Send + 'static) {
    // One that panicked has left something for the next recovery.
    let _ = tokio::task::spawn_blocking(move || spares.into_iter().for_each(drop)).await;
}

/// Watches the mounts for as long as spares are wanted.
pub(crate) async fn watch(spares: Rc<TransactionReserve>) {
    loop {
        spares.wanted.notified().await;
        let table = MountWatch::begin().map(OwnedFd::from).and_then(urgent);
        let Ok(table) = table else { return };
        while spares.is_wanted() {
            tokio::select! {
                ready = table.ready(Interest::PRIORITY) => match ready {
                    Ok(mut ready) => {
                        ready.clear_ready();
                        spares.moved.set(Some(Instant::now()));
                        spares.clear().await;
                        spares.refill();
                    }
                    Err(_) => return,
                },
                () = tokio::time::sleep(LINGER) => {}
            }
        }
        spares.clear().await;
    }
}

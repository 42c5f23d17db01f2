//! Beginnings of transactions of the host, made ahead ([`pando_tx::Prewarmed`]).
//!
//! None is made before the first transaction asks: a spare holds every mount of the machine busy, and has a hidden
//! directory at the root of each that can be written to. For the same reason all are thrown away as soon as anything is
//! mounted or unmounted, and when nobody has asked for a while.

use crate::runtime::readable::urgent;
use pando_guest::Places;
use pando_kernel::CallError;
use pando_kernel::mount::watch::MountWatch;
use pando_tx::{HandedOver, Hosted, Prewarmed, Remains, StateDirectory, Still};
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

/// How long making one may fail before a program that asks for one is told so: something may be mounted or unmounted
/// all the time.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long they are kept when nobody asks.
const LINGER: Duration = Duration::from_secs(600);

/// How one is made.
type Maker = fn(&StateDirectory, u32, &Still) -> Result<Prewarmed, CallError>;

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

    /// Begins a transaction for a program that enters its view by itself, on one that is made for it where none is
    /// ready.
    ///
    /// # Errors
    ///
    /// Why none can be made.
    pub(crate) async fn host(self: &Rc<Self>) -> Result<Hosted, String> {
        self.asked.set(Some(Instant::now()));
        self.wanted.notify_one();
        let asked = Instant::now();
        loop {
            let made = match self.next() {
                Some(ready) => Ok(ready),
                None => self.make(Prewarmed::make_now).await,
            };
            let why = match made {
                Err(why) => why,
                Ok(prewarmed) => match begin(prewarmed).await? {
                    Ok(Ok(hosted)) => {
                        self.refill();
                        return Ok(hosted);
                    }
                    Ok(Err(stale)) => {
                        self.let_go(stale);
                        continue;
                    }
                    Err(error) => error.to_string(),
                },
            };
            if self.closed.get() || asked.elapsed() > PATIENCE {
                return Err(why);
            }
        }
    }

    /// Drops what takes the kernel long to take apart, while nobody waits for that.
    pub(crate) fn let_go<T: Send + 'static>(self: &Rc<Self>, what: T) {
        self.let_go_after(what, |_| ());
    }

    /// The same once something else was done with it that takes long as well.
    pub(crate) fn let_go_after<T: Send + 'static>(self: &Rc<Self>, what: T, last: impl FnOnce(&T) + Send + 'static) {
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let _underway = this.underway.read().await;
            let dropped = tokio::task::spawn_blocking(move || {
                last(&what);
                drop(what);
            });
            // One that panicked has left something for the next recovery.
            let _ = dropped.await;
        });
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

    /// Makes one in either way, on a thread of its own.
    async fn make(&self, make: Maker) -> Result<Prewarmed, String> {
        let _underway = self.underway.read().await;
        if self.closed.get() {
            return Err("the daemon ends".to_owned());
        }
        let (home, number) = (self.home.clone(), self.made.get());
        self.made.set(number.wrapping_add(1));
        let still = self.still.borrow().clone();
        let made = tokio::task::spawn_blocking(move || make(&home, number, &still)).await;
        let made = made.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        self.still.replace(made.still().clone());
        Ok(made)
    }

    /// Makes one more that is ready.
    async fn make_one(&self) -> Result<(), String> {
        let moved = self.moved.get();
        let spare = self.make(Prewarmed::make).await?;
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

/// Begins a transaction on one for a program, on a thread of its own where that takes a tick of the clock.
async fn begin(prewarmed: Prewarmed) -> Result<Result<Result<Hosted, Box<Prewarmed>>, CallError>, String> {
    if prewarmed.begins_at_once() {
        return Ok(prewarmed.host());
    }
    let begun = tokio::task::spawn_blocking(move || prewarmed.host()).await;
    begun.map_err(|error| error.to_string())
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

//! Seeds made ahead, so that a start need not wait for one.

use crate::link::Link;
use crate::lull::Lull;
use crate::spawner_link::Spawner;
use pando_guest::Places;
use pando_guest::seed::SeedLink;
use pando_guest::spawner::SeedKind;
use pando_kernel::pidfd;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::sync::Mutex;

/// How many of a kind are kept ready once one of it was asked for.
const READY: usize = 4;

/// How often the spawner is started again for one seed.
const TRIES: usize = 3;

/// A seed that waits to be grown.
#[derive(Debug)]
pub(crate) struct ReadySeed {
    /// Its slot.
    pub(crate) slot: u32,
    /// Its process.
    pub(crate) process: OwnedFd,
    /// Its socket.
    pub(crate) link: Rc<Link>,
    /// Its user namespace.
    pub(crate) namespace: Option<OwnedFd>,
}

/// The seeds that are ready, and the spawner that makes more.
#[derive(Debug)]
pub(crate) struct Pool {
    places: Places,
    lull: Lull,
    ready: RefCell<HashMap<SeedKind, VecDeque<ReadySeed>>>,
    spawner: Mutex<Option<Spawner>>,
    refilling: Cell<bool>,
    closed: Cell<bool>,
}

impl Pool {
    pub(crate) fn new(places: &Places, lull: Lull) -> Rc<Self> {
        Rc::new(Self {
            places: places.clone(),
            lull,
            ready: RefCell::default(),
            spawner: Mutex::new(None),
            refilling: Cell::new(false),
            closed: Cell::new(false),
        })
    }

    /// A seed of a kind: a ready one, or one made now.
    pub(crate) async fn take(self: &Rc<Self>, kind: SeedKind) -> io::Result<ReadySeed> {
        loop {
            let ready = self.ready.borrow_mut().entry(kind).or_default().pop_front();
            match ready {
                // The spawner may have been killed, and its unused seeds with it.
                Some(seed) if pidfd::has_ended(&seed.process) => {}
                Some(seed) => {
                    self.refill(kind);
                    return Ok(seed);
                }
                None => {
                    let seed = self.make(kind).await?;
                    self.refill(kind);
                    return Ok(seed);
                }
            }
        }
    }

    /// Makes seeds until enough of each kind that was asked for are ready, in the background.
    pub(crate) fn refill(self: &Rc<Self>, kind: SeedKind) {
        self.ready.borrow_mut().entry(kind).or_default();
        if self.refilling.replace(true) {
            return;
        }
        let pool = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while let Some(kind) = pool.short_of() {
                if !pool.is_scarce(kind) {
                    pool.lull.come().await;
                }
                match pool.make(kind).await {
                    Ok(seed) => pool.ready.borrow_mut().entry(kind).or_default().push_back(seed),
                    Err(error) => {
                        tracing::warn!(%error, "making a seed ahead failed");
                        break;
                    }
                }
            }
            pool.refilling.set(false);
        });
    }

    /// Whether so many guests are being started that the next one would have to wait for its seed: then there is no lull to wait for.
    fn is_scarce(&self, kind: SeedKind) -> bool {
        const SCARCE: usize = READY / 2;
        self.ready.borrow().get(&kind).is_none_or(|seeds| seeds.len() < SCARCE)
    }

    /// A kind of which there are too few.
    fn short_of(&self) -> Option<SeedKind> {
        let ready = self.ready.borrow();
        ready.iter().find(|(_, seeds)| seeds.len() < READY && !self.closed.get()).map(|(kind, _)| *kind)
    }

    async fn make(&self, kind: SeedKind) -> io::Result<ReadySeed> {
        let mut spawner = self.spawner.lock().await;
        if self.closed.get() {
            return Err(io::Error::other("the daemon is ending"));
        }
        for _ in 0..TRIES {
            let mut current = match spawner.take() {
                Some(current) => current,
                None => Spawner::start(&self.places)?,
            };
            match current.ask(kind).await {
                Ok(answer) => {
                    *spawner = Some(current);
                    let (seed, namespace) = answer.map_err(io::Error::other)?;
                    let process = pidfd::open(seed.pid)?;
                    let link = Link::new(SeedLink::connect(&self.places.seed(seed.slot))?)?;
                    return Ok(ReadySeed { slot: seed.slot, process, link, namespace });
                }
                Err(error) => tracing::warn!(%error, pid = current.pid(), "the spawner has gone; starting another"),
            }
        }
        Err(io::Error::other("the spawner ends again and again; its last words are in the daemon's log"))
    }

    /// Lets every unused seed go, and the spawner. The slots that they held are returned, for their cgroups to be removed.
    pub(crate) async fn close(&self) -> Vec<(u32, OwnedFd)> {
        self.closed.set(true);
        // One that is being made is waited for: its groups have to go as well.
        *self.spawner.lock().await = None;
        let seeds: Vec<_> = self.ready.borrow_mut().drain().flat_map(|(_, seeds)| seeds).collect();
        let quit = |seed: ReadySeed| {
            seed.link.quit();
            (seed.slot, seed.process)
        };
        seeds.into_iter().map(quit).collect()
    }
}

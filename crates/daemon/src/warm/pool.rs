//! Shims made ahead, each grown into a prewarmed init as far as it can be without knowing the guest, so that a start
//! need not wait for that.

use crate::init::link::Link;
use crate::init::prewarmed::{PrewarmedInit, mounts};
use crate::init::slot_clearing::clear_slot;
use crate::resources::UNCOUNTED;
use crate::runtime::idle::Idle;
use crate::runtime::process_end::wait_for;
use crate::warm::spawner_link::Spawner;
use pando_guest::Places;
use pando_guest::launch::{Launched, Supplies, launch};
use pando_guest::plan::{self, PrewarmedKind};
use pando_guest::root::Owner;
use pando_guest::shim::ShimLink;
use pando_guest::slot;
use pando_guest::spawner::ShimKind;
use pando_guest::{device_list, devices};
use pando_kernel::cgroup::Field;
use pando_kernel::process::{held::HeldProcess, pidfd};
use pando_limit::process_bound;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How many of a kind are kept ready once one of it was asked for.
const READY: usize = 4;

/// How often the spawner is started again for one shim.
const TRIES: usize = 3;

/// Something that the pool must not be closed under.
struct Busy(Rc<Pool>);

impl Busy {
    fn new(pool: &Rc<Pool>) -> Self {
        pool.busy.set(pool.busy.get() + 1);
        Self(Rc::clone(pool))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get() - 1);
    }
}

/// A seed that nothing has grown from yet.
struct Shim {
    slot: u32,
    process: OwnedFd,
    link: Rc<Link>,
    namespace: Option<OwnedFd>,
}

/// The prewarmed inits that are ready, and the spawner that makes shims for more.
#[derive(Debug)]
pub(crate) struct Pool {
    places: Places,
    field: Field,
    unified: bool,
    idle: Idle,
    ready: RefCell<HashMap<PrewarmedKind, VecDeque<PrewarmedInit>>>,
    /// Who waits for one, the longest first.
    waiting: RefCell<HashMap<PrewarmedKind, VecDeque<oneshot::Sender<io::Result<PrewarmedInit>>>>>,
    spawner: RefCell<Option<Rc<Spawner>>>,
    refilling: Cell<bool>,
    /// There are too few of a kind to wait until the daemon idles.
    scarce: Notify,
    /// How many are being made or cleared away now.
    busy: Cell<usize>,
    closed: Cell<bool>,
}

impl Pool {
    pub(crate) fn new(places: &Places, field: &Field, unified: bool, idle: Idle) -> Rc<Self> {
        Rc::new(Self {
            places: places.clone(),
            field: field.clone(),
            unified,
            idle,
            ready: RefCell::default(),
            waiting: RefCell::default(),
            spawner: RefCell::default(),
            refilling: Cell::new(false),
            scarce: Notify::new(),
            busy: Cell::new(0),
            closed: Cell::new(false),
        })
    }

    /// A prewarmed init of a kind: a ready one, or the first that gets ready from now on.
    pub(crate) async fn take(self: &Rc<Self>, kind: PrewarmedKind) -> io::Result<PrewarmedInit> {
        loop {
            let ready = self.ready.borrow_mut().entry(kind).or_default().pop_front();
            match ready {
                Some(init) if init.has_ended() => self.discard(init),
                Some(init) => {
                    self.refill(kind);
                    return Ok(init);
                }
                None => return self.wait(kind).await,
            }
        }
    }

    /// Has one more made, and waits in line for the next that is.
    async fn wait(self: &Rc<Self>, kind: PrewarmedKind) -> io::Result<PrewarmedInit> {
        let (sender, init) = oneshot::channel();
        self.waiting.borrow_mut().entry(kind).or_default().push_back(sender);
        let pool = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let made = pool.make(kind).await;
            pool.hand_over(kind, made);
        });
        let init = init.await.unwrap_or_else(|_| Err(io::Error::other("the daemon is ending")));
        self.refill(kind);
        init
    }

    /// Gives what was made to who has waited longest, or puts it aside. As many are being made as are waited for, or
    /// more.
    fn hand_over(self: &Rc<Self>, kind: PrewarmedKind, mut made: io::Result<PrewarmedInit>) {
        while let Some(waits) = self.waiting.borrow_mut().get_mut(&kind).and_then(VecDeque::pop_front) {
            match waits.send(made) {
                Ok(()) => return,
                // It has stopped waiting.
                Err(back) => made = back,
            }
        }
        match made {
            Ok(init) if self.closed.get() => self.discard(init),
            Ok(init) => self.ready.borrow_mut().entry(kind).or_default().push_back(init),
            Err(error) => tracing::warn!(%error, "making an init ahead failed"),
        }
    }

    /// Makes prewarmed inits until enough of each kind that was asked for are ready, in the background.
    pub(crate) fn refill(self: &Rc<Self>, kind: PrewarmedKind) {
        self.ready.borrow_mut().entry(kind).or_default();
        if self.is_scarce(kind) {
            self.scarce.notify_one();
        }
        if self.refilling.replace(true) {
            return;
        }
        let pool = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while let Some(kind) = pool.short_of() {
                if !pool.is_scarce(kind) && !pool.idle.comes_before(&pool.scarce).await {
                    continue;
                }
                let made = pool.make(kind).await;
                let failed = made.is_err();
                pool.hand_over(kind, made);
                if failed {
                    break;
                }
            }
            pool.refilling.set(false);
        });
    }

    /// Whether so many guests are being started that the next one would have to wait for its prewarmed init: then there
    /// is no idle moment to wait for.
    fn is_scarce(&self, kind: PrewarmedKind) -> bool {
        const SCARCE: usize = READY / 2;
        self.ready.borrow().get(&kind).is_none_or(|inits| inits.len() < SCARCE)
    }

    /// The kind of which there are fewest, if they are too few.
    fn short_of(&self) -> Option<PrewarmedKind> {
        let ready = self.ready.borrow();
        let fewest = ready.iter().min_by_key(|(_, inits)| inits.len());
        fewest.filter(|(_, inits)| inits.len() < READY && !self.closed.get()).map(|(kind, _)| *kind)
    }

    /// A prewarmed init that is made now.
    pub(crate) async fn make(self: &Rc<Self>, kind: PrewarmedKind) -> io::Result<PrewarmedInit> {
        let _busy = Busy::new(self);
        let shim = self.shim(kind).await?;
        let (slot, link, process) = (shim.slot, Rc::clone(&shim.link), shim.process.try_clone()?);
        let init = self.grow(kind, shim).await;
        if init.is_err() {
            self.clear(slot, &link, process);
        }
        init
    }

    /// Lets one go that nobody needs.
    pub(crate) fn discard(self: &Rc<Self>, init: PrewarmedInit) {
        self.clear(init.slot, &init.link, init.shim);
    }

    fn clear(self: &Rc<Self>, slot: u32, link: &Link, shim: OwnedFd) {
        link.quit();
        let busy = Busy::new(self);
        tokio::task::spawn_local(async move {
            wait_for(&shim).await;
            clear_slot(&busy.0.places, &busy.0.field, slot).await;
        });
    }

    /// Has a shim's first process made and sent on its way to where it waits.
    async fn grow(&self, kind: PrewarmedKind, shim: Shim) -> io::Result<PrewarmedInit> {
        let Shim { slot, process, link, namespace } = shim;
        let plan = plan::of_prewarmed_init(kind, self.unified).map_err(io::Error::other)?;
        let (owner, socket) =
            (namespace.as_ref().map(OwnedFd::try_clone).transpose()?, link.shim().as_fd().try_clone_to_owned()?);
        let (cgroup, empty, stage) = (self.field.plot(slot).guest(), self.places.empty(), self.places.stage());
        let birth = link.expect_birth();
        let field = self.field.clone();
        let launched = tokio::task::spawn_blocking(move || {
            if let Err(error) = device_list::hold(kind.profile, &field, slot) {
                tracing::warn!(%error, "a guest is not held to a list of devices: capabilities and mounts alone keep it from others");
            }
            let pids = field.seat("pids").map(|seat| seat.of_plot(slot));
            if let Some(Err(error)) = pids.map(|seat| process_bound::hold(&seat, UNCOUNTED)) {
                tracing::warn!(%error, "a guest without --pids may take all process numbers of the machine");
            }
            let first_id = slot::first_id(slot);
            let owner = owner.as_ref().map(|owner| Owner { namespace: owner.as_fd(), first_id });
            let dev = devices::tree(owner.map_or(0, |owner| owner.first_id))?;
            let (empty, stage) = (Some(empty.as_path()), Some(stage.as_path()));
            let mut supplies = Supplies { owner, cgroup, dev: Some(&dev), empty, stage, ..Supplies::default() };
            launch(&ShimLink::from_connected(socket), &plan, &mut supplies).map(|launched| (launched, dev))
        });
        let (Launched { report }, dev) = launched.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
        let (pid, init) = birth.await.unwrap_or_else(|_| Err(io::Error::other("its shim has gone")))?;
        let first = HeldProcess::new(pid, init);
        let mounts = mounts(&first);
        Ok(PrewarmedInit { slot, shim: process, link, namespace, first, report, dev, mounts })
    }

    async fn shim(&self, kind: PrewarmedKind) -> io::Result<Shim> {
        let kind = ShimKind {
            user_namespace: kind.user_namespace,
            network_namespace: kind.network_namespace,
            scopes: kind.scopes,
        };
        for _ in 0..TRIES {
            if self.closed.get() {
                return Err(io::Error::other("the daemon is ending"));
            }
            let spawner = self.spawner()?;
            match spawner.ask(kind).await {
                Ok(answer) => {
                    let (shim, namespace) = answer.map_err(io::Error::other)?;
                    let process = pidfd::open(shim.pid)?;
                    let link = Link::new(ShimLink::connect(&self.places.shim(shim.slot))?)?;
                    return Ok(Shim { slot: shim.slot, process, link, namespace });
                }
                Err(error) => self.has_gone(&spawner, &error),
            }
        }
        Err(io::Error::other("the spawner ends again and again; its last words are in the daemon's log"))
    }

    fn spawner(&self) -> io::Result<Rc<Spawner>> {
        let mut current = self.spawner.borrow_mut();
        match &*current {
            Some(spawner) => Ok(Rc::clone(spawner)),
            None => Ok(Rc::clone(current.insert(Rc::new(Spawner::start(&self.places)?)))),
        }
    }

    /// Has the next one who needs a spawner start another. Of several who asked one that has gone the first says so.
    fn has_gone(&self, spawner: &Rc<Spawner>, error: &io::Error) {
        let is_it = self.spawner.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, spawner));
        if is_it {
            tracing::warn!(%error, pid = spawner.pid(), "the spawner has gone; starting another");
            *self.spawner.borrow_mut() = None;
        }
    }

    /// Lets every unused prewarmed init go, and the spawner. The slots that they held are returned, for their cgroups
    /// to be removed.
    pub(crate) async fn close(&self) -> Vec<(u32, OwnedFd)> {
        const MOMENT: Duration = Duration::from_millis(1);
        self.closed.set(true);
        self.spawner.take();
        // One that is being made is waited for: its groups have to go as well.
        while self.busy.get() > 0 {
            tokio::time::sleep(MOMENT).await;
        }
        let inits: Vec<_> = self.ready.borrow_mut().drain().flat_map(|(_, inits)| inits).collect();
        let quit = |init: PrewarmedInit| {
            init.link.quit();
            (init.slot, init.shim)
        };
        inits.into_iter().map(quit).collect()
    }
}

//! Clones made ahead: a *bud* is one all of whose processes stand at the gate, in a place without a name, before anybody asks for it.
//!
//! Most of what a clone takes is forking its processes, and none of that depends on who it will be. So while an image is in use, some of its clones are
//! made in the lulls between. What a bud holds, memory and all, is given back when nobody has asked for a while.

use crate::failure;
use crate::init::clone_slot::Nest;
use crate::init::hooks;
use crate::init::hooks::Hooks;
use crate::logs::Logs;
use crate::runtime::idle::Lull;
use crate::state::image::HeldImage;
use crate::state::processes;
use crate::state::record::LOG;
use crate::warm::ready_roots::{ReadyRoot, ReadyRoots};
use pando_api::{Fault, FaultKind, Network, Spec};
use pando_freeze::{Dormancy, Ready as Forked};
use pando_kernel::cgroup::Field;
use pando_kernel::pidfd;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long an image counts as in use after a clone of it.
const IN_USE: Duration = Duration::from_secs(30);

/// How many buds of an image are kept.
const READY: usize = 2;

/// What a bud may cost, threads and bytes. One that costs more is kept alone.
const CHEAP: (usize, u64) = (64, 8 << 20);

/// What all of them may cost; those of images asked for last come first.
const BUDGET: (usize, u64) = (1024, 256 << 20);

/// A clone that waits to be somebody.
#[derive(Debug)]
pub(crate) struct Bud {
    /// Its place.
    pub(crate) root: ReadyRoot,
    /// Its processes.
    pub(crate) forked: Forked,
    /// Its hooks.
    pub(crate) hooks: Hooks,
    /// Each of them that lived when it was made: one that was killed since is missed when the others run.
    pub(crate) alive: Vec<OwnedFd>,
}

impl Bud {
    /// Whether all of it is there still.
    fn is_whole(&self) -> bool {
        let Self { root, forked, alive, .. } = self;
        !root.ready.sprout.has_ended() && forked.waits() && !alive.iter().any(pidfd::has_ended)
    }
}

/// The buds of an image.
#[derive(Debug)]
struct Branch {
    image: Arc<HeldImage>,
    asked: Instant,
    /// How many there may be, and what each costs, threads and bytes.
    wish: Wish,
    /// Whether one could not be made since it was asked for: no other is tried. The next clone meets the same hindrance, and tells of it.
    barren: bool,
    buds: VecDeque<Bud>,
}

/// All of them, the image asked for last first.
#[derive(Debug)]
pub(crate) struct Buds {
    roots: Rc<ReadyRoots>,
    logs: Rc<Logs>,
    field: Field,
    lull: Lull,
    branches: RefCell<Vec<Branch>>,
    tending: Cell<bool>,
    /// There is less to do, or something else.
    changed: Notify,
    closed: Cell<bool>,
}

/// What an image would have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wish {
    buds: usize,
    threads: usize,
    bytes: u64,
}

/// The buds that an image would have. A name on a network, or a volume, is another's meanwhile.
fn wish(spec: &Spec, dormancy: Option<Dormancy>) -> Wish {
    let Some(dormancy) = dormancy else { return Wish::default() };
    let apart = match spec.network {
        Network::None => true,
        Network::Shared | Network::Host => !dormancy.networked,
        Network::Private => false,
    };
    let cheap = dormancy.threads <= CHEAP.0 && dormancy.bytes <= CHEAP.1;
    let buds = match apart && spec.volumes.is_empty() {
        true if cheap => READY,
        true => 1,
        false => 0,
    };
    Wish { buds, threads: dormancy.threads, bytes: dormancy.bytes }
}

/// What of some wishes, the most urgent first, all together can be had.
fn granted(wishes: impl Iterator<Item = Wish>) -> Vec<usize> {
    let (mut threads, mut bytes) = BUDGET;
    let grant = |wish: Wish| {
        let fits = |buds: &usize| wish.threads * buds <= threads && wish.bytes * *buds as u64 <= bytes;
        let buds = (0..=wish.buds).rev().find(fits).unwrap_or(0);
        threads -= wish.threads * buds;
        bytes -= wish.bytes * buds as u64;
        buds
    };
    wishes.map(grant).collect()
}

impl Buds {
    pub(crate) fn new(roots: &Rc<ReadyRoots>, logs: &Rc<Logs>, field: &Field, lull: &Lull) -> Rc<Self> {
        Rc::new(Self {
            roots: Rc::clone(roots),
            logs: Rc::clone(logs),
            field: field.clone(),
            lull: lull.clone(),
            branches: RefCell::default(),
            tending: Cell::new(false),
            changed: Notify::new(),
            closed: Cell::new(false),
        })
    }

    /// A bud of an image, if there is one. From here on there are going to be some, if there may.
    pub(crate) fn take(self: &Rc<Self>, image: &Arc<HeldImage>) -> Option<Bud> {
        let mut branch = self.remove(image).unwrap_or_else(|| {
            let dormancy = image.held().and_then(|frozen| frozen.image.dormancy());
            let wish = wish(&image.spec_of_clones(), dormancy);
            Branch { image: Arc::clone(image), asked: Instant::now(), wish, barren: false, buds: VecDeque::new() }
        });
        (branch.asked, branch.barren) = (Instant::now(), false);
        let mut taken = None;
        while let Some(bud) = branch.buds.pop_front() {
            if bud.is_whole() {
                taken = Some(bud);
                break;
            }
            self.discard(bud);
        }
        self.branches.borrow_mut().insert(0, branch);
        self.tend();
        taken
    }

    /// An image goes.
    pub(crate) fn give_up(&self, image: &Arc<HeldImage>) {
        let branch = self.remove(image);
        branch.into_iter().flat_map(|branch| branch.buds).for_each(|bud| self.discard(bud));
        self.changed.notify_one();
    }

    fn remove(&self, image: &Arc<HeldImage>) -> Option<Branch> {
        let mut branches = self.branches.borrow_mut();
        let found = branches.iter().position(|branch| Arc::ptr_eq(&branch.image, image));
        found.map(|found| branches.remove(found))
    }

    /// Makes buds where some are missing, and lets those go that nobody asked for, until there are none.
    fn tend(self: &Rc<Self>) {
        self.changed.notify_one();
        if self.closed.get() || self.tending.replace(true) {
            return;
        }
        let buds = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while !buds.closed.get() {
                buds.prune();
                if let Some(image) = buds.short_of() {
                    buds.lull.come().await;
                    if !buds.closed.get() && buds.short_of().is_some_and(|still| Arc::ptr_eq(&still, &image)) {
                        let made = buds.make(&image).await;
                        buds.keep(&image, made);
                    }
                    continue;
                }
                let Some(oldest) = buds.branches.borrow().iter().map(|branch| branch.asked).min() else { break };
                tokio::select! {
                    () = tokio::time::sleep_until(oldest + IN_USE) => {}
                    () = buds.changed.notified() => {}
                }
            }
            buds.tending.set(false);
        });
    }

    /// How many there are to be of each image.
    fn wanted(&self) -> Vec<usize> {
        granted(self.branches.borrow().iter().map(|branch| branch.wish))
    }

    /// Lets those go that nobody asked for lately, or that there is no room for any more.
    fn prune(&self) {
        let mut pruned = Vec::new();
        self.branches.borrow_mut().retain_mut(|branch| {
            let lapsed = branch.asked.elapsed() >= IN_USE;
            if lapsed {
                pruned.extend(branch.buds.drain(..));
            }
            !lapsed
        });
        let wanted = self.wanted();
        for (branch, wanted) in self.branches.borrow_mut().iter_mut().zip(wanted) {
            pruned.extend(branch.buds.drain(wanted.min(branch.buds.len())..));
        }
        pruned.into_iter().for_each(|bud| self.discard(bud));
    }

    /// The image asked for last of which there are too few.
    fn short_of(&self) -> Option<Arc<HeldImage>> {
        let wanted = self.wanted();
        let branches = self.branches.borrow();
        let mut short =
            branches.iter().zip(wanted).filter(|(branch, wanted)| branch.buds.len() < *wanted && !branch.barren);
        short.next().map(|(branch, _)| Arc::clone(&branch.image))
    }

    /// Keeps one that was made, if it is wanted still.
    fn keep(&self, image: &Arc<HeldImage>, made: Result<Bud, Fault>) {
        let mut branches = self.branches.borrow_mut();
        let branch =
            branches.iter_mut().find(|branch| Arc::ptr_eq(&branch.image, image)).filter(|_| !self.closed.get());
        match (branch, made) {
            (Some(branch), Ok(bud)) => branch.buds.push_back(bud),
            (None, Ok(bud)) => self.discard(bud),
            (branch, Err(fault)) => {
                tracing::debug!(%fault, image = image.name, "making a clone ahead failed");
                branch.into_iter().for_each(|branch| branch.barren = true);
            }
        }
    }

    /// Lets all of them go, and makes no more.
    pub(crate) async fn close(&self) {
        const MOMENT: Duration = Duration::from_millis(1);
        self.closed.set(true);
        self.changed.notify_one();
        while self.tending.get() {
            tokio::time::sleep(MOMENT).await;
        }
        self.branches.take().into_iter().flat_map(|branch| branch.buds).for_each(|bud| self.discard(bud));
    }

    fn discard(&self, Bud { root, forked, .. }: Bud) {
        drop(forked);
        self.roots.discard(root);
    }

    async fn make(&self, image: &Arc<HeldImage>) -> Result<Bud, Fault> {
        let inside =
            |what: String| Fault::new(FaultKind::Failed, &image.name, format!("making a clone ahead failed: {what}"));
        let frozen = image.held().ok_or_else(|| inside("the image is not held".into()))?;
        let root = self.roots.take_or_make(&image.roots()).await?;
        let pid = root.ready.sprout.pid;
        if root.ready.tree.is_some() {
            self.roots.discard(root);
            return Err(inside("its place is not complete".into()));
        }
        let nest =
            match Nest::new((&self.logs, &self.field), &root.ready, &root.files.path().join(LOG), &image.record.spec) {
                Ok(nest) => nest,
                Err(error) => {
                    self.roots.discard(root);
                    return Err(failure::call("making a clone ahead", &image.name, &error));
                }
            };
        let forking = tokio::task::spawn_blocking(move || {
            let forked = nest.fork(&frozen).map_err(|error| error.to_string())?;
            let hooks = Hooks::inside(pid, hooks::CLONE).map_err(|error| error.to_string())?;
            Ok((forked, hooks))
        });
        match forking.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok((forked, hooks)) => {
                crate::crash::point("clone.ahead");
                let alive = processes::pids(&self.field, root.ready.sprout.slot)
                    .into_iter()
                    .filter_map(|pid| pidfd::open(pid).ok());
                let alive = alive.filter(|process| !pidfd::has_ended(process)).collect();
                Ok(Bud { root, forked, hooks, alive })
            }
            Err(why) => {
                self.roots.discard(root);
                Err(inside(why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_may_want_is_not_held_ahead() {
        let cheap = Dormancy { threads: 5, bytes: 0, networked: false };
        let on = |network, dormancy| wish(&Spec { network, ..Spec::default() }, dormancy).buds;
        assert_eq!(on(Network::None, Some(cheap)), READY);
        assert_eq!(on(Network::None, None), 0);
        let networked = Some(Dormancy { networked: true, ..cheap });
        assert_eq!(on(Network::None, networked), READY);
        assert_eq!(on(Network::Shared, Some(cheap)), READY);
        assert_eq!(on(Network::Shared, networked), 0);
        assert_eq!(on(Network::Private, Some(cheap)), 0);
        assert_eq!(on(Network::None, Some(Dormancy { bytes: 128 << 20, ..cheap })), 1);
        assert_eq!(on(Network::None, Some(Dormancy { threads: 1000, ..cheap })), 1);
    }

    #[test]
    fn all_together_cost_no_more_than_there_is() {
        let wish = |buds, threads, bytes: u64| Wish { buds, threads, bytes: bytes << 20 };
        let had = |wishes: &[Wish]| granted(wishes.iter().copied());
        assert_eq!(had(&[wish(2, 5, 0), wish(1, 10, 150), wish(1, 10, 150), wish(2, 5, 0)]), [2, 1, 0, 2]);
        assert_eq!(had(&[wish(1, 2000, 0), wish(2, 600, 0)]), [0, 1]);
    }
}

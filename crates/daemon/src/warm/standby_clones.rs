//! Clones made ahead: a *standby clone* is one all of whose processes stand at the gate, in a place without a name,
//! before anybody asks for it.
//!
//! Most of what a clone takes is forking its processes, and none of that depends on who it will be. So while an image
//! is in use, some of its clones are made in the idle moments between. What a standby clone holds, memory and all, is
//! given back when nobody has asked for a while.

use crate::failure;
use crate::init::clone_slot::CloneSlot;
use crate::init::hooks;
use crate::init::hooks::Hooks;
use crate::logs::Logs;
use crate::runtime::idle::Idle;
use crate::state::image::HeldImage;
use crate::state::processes;
use crate::state::record::LOG;
use crate::warm::ready_roots::{ReadyRoot, ReadyRoots};
use pando_api::{Fault, FaultKind, Network, Spec};
use pando_freeze::{Dormancy, Ready as Forked};
use pando_guest::policy::grants;
use pando_kernel::cgroup::Field;
use pando_kernel::process::pidfd;
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

/// How many standby clones of an image are kept.
const READY: usize = 2;

/// What a standby clone may cost, threads and bytes. One that costs more is kept alone.
const CHEAP: (usize, u64) = (64, 8 << 20);

/// What all of them may cost; those of images asked for last come first.
const BUDGET: (usize, u64) = (1024, 256 << 20);

/// A clone that waits to be somebody.
#[derive(Debug)]
pub(crate) struct StandbyClone {
    /// The root and the init that it stands in.
    pub(crate) root: ReadyRoot,
    /// Its processes, which wait at the gate.
    pub(crate) forked: Forked,
    /// The hooks that run when it gets its name.
    pub(crate) hooks: Hooks,
    /// Each of them that lived when it was made: one that was killed since is missed when the others run.
    pub(crate) alive: Vec<OwnedFd>,
}

impl StandbyClone {
    /// Whether all of it is there still.
    fn is_whole(&self) -> bool {
        let Self { root, forked, alive, .. } = self;
        !root.ready.init.has_ended() && forked.waits() && !alive.iter().any(pidfd::has_ended)
    }
}

/// The standby clones of an image.
#[derive(Debug)]
struct Family {
    image: Arc<HeldImage>,
    asked: Instant,
    /// How many there may be, and what each costs, threads and bytes.
    wanted: Wanted,
    /// Whether one could not be made since it was asked for: no other is tried. The next clone meets the same
    /// hindrance, and tells of it.
    failed: bool,
    standby_clones: VecDeque<StandbyClone>,
}

/// All of them, the image asked for last first.
#[derive(Debug)]
pub(crate) struct StandbyClones {
    roots: Rc<ReadyRoots>,
    logs: Rc<Logs>,
    field: Field,
    idle: Idle,
    families: RefCell<Vec<Family>>,
    refilling: Cell<bool>,
    /// There is less to do, or something else.
    changed: Notify,
    closed: Cell<bool>,
}

/// What an image would have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    standby_clones: usize,
    threads: usize,
    bytes: u64,
}

/// The standby clones that an image would have. A name on a network, a volume, or room on the disk that
/// is set aside, is another's meanwhile.
fn wanted(spec: &Spec, dormancy: Option<Dormancy>) -> Wanted {
    let Some(dormancy) = dormancy else { return Wanted::default() };
    let apart = match spec.network {
        Network::None => true,
        Network::Shared | Network::Host => !dormancy.networked,
        Network::Private => false,
    };
    let cheap = dormancy.threads <= CHEAP.0 && dormancy.bytes <= CHEAP.1;
    let takes_room = grants::read(spec).is_ok_and(|grants| grants.disk.size.is_some());
    let standby_clones = match apart && spec.volumes.is_empty() && !takes_room {
        true if cheap => READY,
        true => 1,
        false => 0,
    };
    Wanted { standby_clones, threads: dormancy.threads, bytes: dormancy.bytes }
}

/// What of some requests, the most urgent first, all together can be had.
fn granted(all_wanted: impl Iterator<Item = Wanted>) -> Vec<usize> {
    let (mut threads, mut bytes) = BUDGET;
    let grant = |wanted: Wanted| {
        let fits = |standby_clones: &usize| {
            wanted.threads * standby_clones <= threads && wanted.bytes * *standby_clones as u64 <= bytes
        };
        let standby_clones = (0..=wanted.standby_clones).rev().find(fits).unwrap_or(0);
        threads -= wanted.threads * standby_clones;
        bytes -= wanted.bytes * standby_clones as u64;
        standby_clones
    };
    all_wanted.map(grant).collect()
}

impl StandbyClones {
    pub(crate) fn new(roots: &Rc<ReadyRoots>, logs: &Rc<Logs>, field: &Field, idle: &Idle) -> Rc<Self> {
        Rc::new(Self {
            roots: Rc::clone(roots),
            logs: Rc::clone(logs),
            field: field.clone(),
            idle: idle.clone(),
            families: RefCell::default(),
            refilling: Cell::new(false),
            changed: Notify::new(),
            closed: Cell::new(false),
        })
    }

    /// A standby clone of an image, if there is one. From here on there are going to be some, if there may.
    pub(crate) fn take(self: &Rc<Self>, image: &Arc<HeldImage>) -> Option<StandbyClone> {
        let mut family = self.remove(image).unwrap_or_else(|| {
            let dormancy = image.held().and_then(|frozen| frozen.image.dormancy());
            let wanted = wanted(&image.spec_of_clones(), dormancy);
            Family {
                image: Arc::clone(image),
                asked: Instant::now(),
                wanted,
                failed: false,
                standby_clones: VecDeque::new(),
            }
        });
        (family.asked, family.failed) = (Instant::now(), false);
        let mut taken = None;
        while let Some(standby) = family.standby_clones.pop_front() {
            if standby.is_whole() {
                taken = Some(standby);
                break;
            }
            self.discard(standby);
        }
        self.families.borrow_mut().insert(0, family);
        self.refill();
        taken
    }

    /// Gives up the standby clones of an image that goes.
    pub(crate) fn give_up(&self, image: &Arc<HeldImage>) {
        let family = self.remove(image);
        family.into_iter().flat_map(|family| family.standby_clones).for_each(|standby| self.discard(standby));
        self.changed.notify_one();
    }

    fn remove(&self, image: &Arc<HeldImage>) -> Option<Family> {
        let mut families = self.families.borrow_mut();
        let found = families.iter().position(|family| Arc::ptr_eq(&family.image, image));
        found.map(|found| families.remove(found))
    }

    /// Makes standby clones where some are missing, and lets those go that nobody asked for, until there are none.
    fn refill(self: &Rc<Self>) {
        self.changed.notify_one();
        if self.closed.get() || self.refilling.replace(true) {
            return;
        }
        let standby_clones = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while !standby_clones.closed.get() {
                standby_clones.prune();
                if let Some(image) = standby_clones.short_of() {
                    standby_clones.idle.come().await;
                    if !standby_clones.closed.get()
                        && standby_clones.short_of().is_some_and(|still| Arc::ptr_eq(&still, &image))
                    {
                        let made = standby_clones.make(&image).await;
                        standby_clones.keep(&image, made);
                    }
                    continue;
                }
                let Some(oldest) = standby_clones.families.borrow().iter().map(|family| family.asked).min() else {
                    break;
                };
                tokio::select! {
                    () = tokio::time::sleep_until(oldest + IN_USE) => {}
                    () = standby_clones.changed.notified() => {}
                }
            }
            standby_clones.refilling.set(false);
        });
    }

    /// How many there are to be of each image.
    fn wanted(&self) -> Vec<usize> {
        granted(self.families.borrow().iter().map(|family| family.wanted))
    }

    /// Lets those go that nobody asked for lately, or that there is no room for any more.
    fn prune(&self) {
        let mut pruned = Vec::new();
        self.families.borrow_mut().retain_mut(|family| {
            let lapsed = family.asked.elapsed() >= IN_USE;
            if lapsed {
                pruned.extend(family.standby_clones.drain(..));
            }
            !lapsed
        });
        let wanted = self.wanted();
        for (family, wanted) in self.families.borrow_mut().iter_mut().zip(wanted) {
            pruned.extend(family.standby_clones.drain(wanted.min(family.standby_clones.len())..));
        }
        pruned.into_iter().for_each(|standby| self.discard(standby));
    }

    /// The image asked for last of which there are too few.
    fn short_of(&self) -> Option<Arc<HeldImage>> {
        let wanted = self.wanted();
        let families = self.families.borrow();
        let mut short = families
            .iter()
            .zip(wanted)
            .filter(|(family, wanted)| family.standby_clones.len() < *wanted && !family.failed);
        short.next().map(|(family, _)| Arc::clone(&family.image))
    }

    /// Keeps one that was made, if it is wanted still.
    fn keep(&self, image: &Arc<HeldImage>, made: Result<StandbyClone, Fault>) {
        let mut families = self.families.borrow_mut();
        let family =
            families.iter_mut().find(|family| Arc::ptr_eq(&family.image, image)).filter(|_| !self.closed.get());
        match (family, made) {
            (Some(family), Ok(standby)) => family.standby_clones.push_back(standby),
            (None, Ok(standby)) => self.discard(standby),
            (family, Err(fault)) => {
                tracing::debug!(%fault, image = image.name, "making a clone ahead failed");
                family.into_iter().for_each(|family| family.failed = true);
            }
        }
    }

    /// Lets all of them go, and makes no more.
    pub(crate) async fn close(&self) {
        const MOMENT: Duration = Duration::from_millis(1);
        self.closed.set(true);
        self.changed.notify_one();
        while self.refilling.get() {
            tokio::time::sleep(MOMENT).await;
        }
        self.families
            .take()
            .into_iter()
            .flat_map(|family| family.standby_clones)
            .for_each(|standby| self.discard(standby));
    }

    fn discard(&self, StandbyClone { root, forked, .. }: StandbyClone) {
        drop(forked);
        self.roots.discard(root);
    }

    async fn make(&self, image: &Arc<HeldImage>) -> Result<StandbyClone, Fault> {
        let inside =
            |what: String| Fault::new(FaultKind::Failed, &image.name, format!("making a clone ahead failed: {what}"));
        let frozen = image.held().ok_or_else(|| inside("the image is not held".into()))?;
        let root = self.roots.take_or_make(&image.roots()).await?;
        let first = root.ready.init.first.clone();
        if root.ready.tree.is_some() {
            self.roots.discard(root);
            return Err(inside("its place is not complete".into()));
        }
        let clone_slot = match CloneSlot::new(
            (&self.logs, &self.field),
            &root.ready,
            &root.files.path().join(LOG),
            &image.record.spec,
        ) {
            Ok(clone_slot) => clone_slot,
            Err(error) => {
                self.roots.discard(root);
                return Err(failure::call("making a clone ahead", &image.name, &error));
            }
        };
        let forking = tokio::task::spawn_blocking(move || {
            let forked = clone_slot.fork(&frozen).map_err(|error| error.to_string())?;
            let hooks = Hooks::inside(&first, hooks::CLONE).map_err(|error| error.to_string())?;
            Ok((forked, hooks))
        });
        match forking.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok((forked, hooks)) => {
                crate::crash::point("clone.ahead");
                let alive = processes::pids(&self.field, root.ready.init.slot)
                    .into_iter()
                    .filter_map(|pid| pidfd::open(pid).ok());
                let alive = alive.filter(|process| !pidfd::has_ended(process)).collect();
                Ok(StandbyClone { root, forked, hooks, alive })
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
        let on = |network, dormancy| wanted(&Spec { network, ..Spec::default() }, dormancy).standby_clones;
        assert_eq!(on(Network::None, Some(cheap)), READY);
        assert_eq!(on(Network::None, None), 0);
        let networked = Some(Dormancy { networked: true, ..cheap });
        assert_eq!(on(Network::None, networked), READY);
        assert_eq!(on(Network::Shared, Some(cheap)), READY);
        assert_eq!(on(Network::Shared, networked), 0);
        assert_eq!(on(Network::Private, Some(cheap)), 0);
        let mut bounded = Spec { network: Network::None, ..Spec::default() };
        bounded.disk.size = Some(pando_api::Amount("1G".into()));
        assert_eq!(wanted(&bounded, Some(cheap)).standby_clones, 0);
        assert_eq!(on(Network::None, Some(Dormancy { bytes: 128 << 20, ..cheap })), 1);
        assert_eq!(on(Network::None, Some(Dormancy { threads: 1000, ..cheap })), 1);
    }

    #[test]
    fn all_together_cost_no_more_than_there_is() {
        let wanted = |standby_clones, threads, bytes: u64| Wanted { standby_clones, threads, bytes: bytes << 20 };
        let had = |all_wanted: &[Wanted]| granted(all_wanted.iter().copied());
        assert_eq!(had(&[wanted(2, 5, 0), wanted(1, 10, 150), wanted(1, 10, 150), wanted(2, 5, 0)]), [2, 1, 0, 2]);
        assert_eq!(had(&[wanted(1, 2000, 0), wanted(2, 600, 0)]), [0, 1]);
    }
}

//! Clones made ahead: a *bud* is one all of whose processes stand at the gate, in a place without a name, before anybody asks for it.
//!
//! Most of what a clone takes is forking its processes, and none of that depends on who it will be. So while an image is in use, some of its clones are
//! made in the lulls between. What a bud holds, memory and all, is given back when nobody has asked for a while.

use crate::daemon::Daemon;
use crate::failure;
use crate::image::HeldImage;
use crate::life::hooks::{self, Hooks};
use crate::life::nest::Nest;
use crate::ready_roots::ReadyRoot;
use crate::record::LOG;
use pando_api::{Fault, FaultKind, Network, Spec};
use pando_freeze::{Dormancy, Ready as Forked};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long an image counts as in use after a clone of it.
const IN_USE: Duration = Duration::from_secs(30);

/// How many buds of an image are kept, and of how many images.
const READY: usize = 2;
const IMAGES: usize = 4;

/// What a bud may cost, threads and bytes; one that costs more is kept alone, and of the image asked for last.
const CHEAP: (usize, u64) = (64, 8 << 20);
const DEAR: (usize, u64) = (512, 192 << 20);

/// A clone that waits to be somebody.
#[derive(Debug)]
pub(crate) struct Bud {
    /// Its place.
    pub(crate) root: ReadyRoot,
    /// Its processes.
    pub(crate) forked: Forked,
    /// Its hooks.
    pub(crate) hooks: Hooks,
}

/// The buds of an image.
#[derive(Debug)]
struct Branch {
    image: Arc<HeldImage>,
    asked: Instant,
    /// How many there are to be.
    wanted: usize,
    /// Whether one could not be made since it was asked for: no other is tried. The next clone meets the same hindrance, and tells of it.
    barren: bool,
    buds: VecDeque<Bud>,
}

/// All of them, the image asked for last first.
#[derive(Debug, Default)]
pub(crate) struct Buds {
    branches: RefCell<Vec<Branch>>,
    tending: Cell<bool>,
    /// There is less to do, or something else.
    changed: Notify,
    closed: Cell<bool>,
}

/// How many buds of an image there are to be. A name on a network, or a volume, is another's meanwhile.
fn wanted(spec: &Spec, dormancy: Option<Dormancy>) -> usize {
    let Some(dormancy) = dormancy else { return 0 };
    let apart = match spec.network {
        Network::None => true,
        Network::Shared | Network::Host => !dormancy.networked,
        Network::Private => false,
    };
    let within = |(threads, bytes)| dormancy.threads <= threads && dormancy.bytes <= bytes;
    match apart && spec.volumes.is_empty() {
        true if within(CHEAP) => READY,
        true if within(DEAR) => 1,
        _ => 0,
    }
}

impl Buds {
    /// A bud of an image, if there is one. From here on there are going to be some, if there may.
    pub(crate) fn take(&self, daemon: &Rc<Daemon>, image: &Arc<HeldImage>) -> Option<Bud> {
        let mut branch = self.remove(image).unwrap_or_else(|| {
            let dormancy = image.held().and_then(|frozen| frozen.image.dormancy());
            let wanted = wanted(&image.spec_of_clones(), dormancy);
            Branch { image: Arc::clone(image), asked: Instant::now(), wanted, barren: false, buds: VecDeque::new() }
        });
        (branch.asked, branch.barren) = (Instant::now(), false);
        let mut taken = None;
        while let Some(bud) = branch.buds.pop_front() {
            if !bud.root.ready.sprout.has_ended() && bud.forked.waits() {
                taken = Some(bud);
                break;
            }
            discard(daemon, bud);
        }
        self.branches.borrow_mut().insert(0, branch);
        self.tend(daemon);
        taken
    }

    /// An image goes.
    pub(crate) fn give_up(&self, daemon: &Daemon, image: &Arc<HeldImage>) {
        let branch = self.remove(image);
        branch.into_iter().flat_map(|branch| branch.buds).for_each(|bud| discard(daemon, bud));
        self.changed.notify_one();
    }

    fn remove(&self, image: &Arc<HeldImage>) -> Option<Branch> {
        let mut branches = self.branches.borrow_mut();
        let found = branches.iter().position(|branch| Arc::ptr_eq(&branch.image, image));
        found.map(|found| branches.remove(found))
    }

    /// Makes buds where some are missing, and lets those go that nobody asked for, until there are none.
    fn tend(&self, daemon: &Rc<Daemon>) {
        self.changed.notify_one();
        if self.closed.get() || self.tending.replace(true) {
            return;
        }
        let daemon = Rc::clone(daemon);
        tokio::task::spawn_local(async move {
            let buds = &daemon.buds;
            while !buds.closed.get() {
                buds.prune(&daemon);
                if let Some(image) = buds.short_of() {
                    daemon.lull.come().await;
                    if !buds.closed.get() && buds.short_of().is_some_and(|still| Arc::ptr_eq(&still, &image)) {
                        let made = make(&daemon, &image).await;
                        buds.keep(&daemon, &image, made);
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

    /// Lets those go that nobody asked for lately.
    fn prune(&self, daemon: &Daemon) {
        let mut pruned = Vec::new();
        let mut branches = self.branches.borrow_mut();
        let kept = branches.len().min(IMAGES);
        let late: Vec<_> = branches.drain(kept..).collect();
        pruned.extend(late.into_iter().flat_map(|branch| branch.buds));
        for (place, branch) in branches.iter_mut().enumerate() {
            let lapsed = branch.asked.elapsed() >= IN_USE;
            if lapsed || (place > 0 && branch.wanted < READY) {
                pruned.append(&mut Vec::from(std::mem::take(&mut branch.buds)));
            }
        }
        branches.retain(|branch| branch.asked.elapsed() < IN_USE);
        drop(branches);
        pruned.into_iter().for_each(|bud| discard(daemon, bud));
    }

    /// The image asked for last of which there are too few.
    fn short_of(&self) -> Option<Arc<HeldImage>> {
        let branches = self.branches.borrow();
        let is_short = |(place, branch): &(usize, &Branch)| {
            branch.buds.len() < branch.wanted && !branch.barren && (*place == 0 || branch.wanted == READY)
        };
        branches.iter().enumerate().find(is_short).map(|(_, branch)| Arc::clone(&branch.image))
    }

    /// Keeps one that was made, if it is wanted still.
    fn keep(&self, daemon: &Daemon, image: &Arc<HeldImage>, made: Result<Bud, Fault>) {
        let mut branches = self.branches.borrow_mut();
        let branch =
            branches.iter_mut().find(|branch| Arc::ptr_eq(&branch.image, image)).filter(|_| !self.closed.get());
        match (branch, made) {
            (Some(branch), Ok(bud)) => branch.buds.push_back(bud),
            (None, Ok(bud)) => discard(daemon, bud),
            (branch, Err(fault)) => {
                tracing::debug!(%fault, image = image.name, "making a clone ahead failed");
                branch.into_iter().for_each(|branch| branch.barren = true);
            }
        }
    }

    /// Lets all of them go, and makes no more.
    pub(crate) async fn close(&self, daemon: &Daemon) {
        const MOMENT: Duration = Duration::from_millis(1);
        self.closed.set(true);
        self.changed.notify_one();
        while self.tending.get() {
            tokio::time::sleep(MOMENT).await;
        }
        self.branches.take().into_iter().flat_map(|branch| branch.buds).for_each(|bud| discard(daemon, bud));
    }
}

fn discard(daemon: &Daemon, Bud { root, forked, .. }: Bud) {
    drop(forked);
    daemon.roots.discard(root);
}

async fn make(daemon: &Rc<Daemon>, image: &Arc<HeldImage>) -> Result<Bud, Fault> {
    let inside =
        |what: String| Fault::new(FaultKind::Failed, &image.name, format!("making a clone ahead failed: {what}"));
    let frozen = image.held().ok_or_else(|| inside("the image is not held".into()))?;
    let root = daemon.roots.take_or_make(&image.roots()).await?;
    let pid = root.ready.sprout.pid;
    if root.ready.tree.is_some() {
        daemon.roots.discard(root);
        return Err(inside("its place is not complete".into()));
    }
    let nest = match Nest::new(daemon, &root.ready, &root.files.path().join(LOG)) {
        Ok(nest) => nest,
        Err(error) => {
            daemon.roots.discard(root);
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
            Ok(Bud { root, forked, hooks })
        }
        Err(why) => {
            daemon.roots.discard(root);
            Err(inside(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_may_want_is_not_held_ahead() {
        let cheap = Dormancy { threads: 5, bytes: 0, networked: false };
        let on = |network, dormancy| wanted(&Spec { network, ..Spec::default() }, dormancy);
        assert_eq!(on(Network::None, Some(cheap)), READY);
        assert_eq!(on(Network::None, None), 0);
        let networked = Some(Dormancy { networked: true, ..cheap });
        assert_eq!(on(Network::None, networked), READY);
        assert_eq!(on(Network::Shared, Some(cheap)), READY);
        assert_eq!(on(Network::Shared, networked), 0);
        assert_eq!(on(Network::Private, Some(cheap)), 0);
        assert_eq!(on(Network::None, Some(Dormancy { bytes: 128 << 20, ..cheap })), 1);
        assert_eq!(on(Network::None, Some(Dormancy { threads: 1000, ..cheap })), 0);
    }
}

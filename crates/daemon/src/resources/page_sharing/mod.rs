//! Sharing equal pages again that clones have written apart.
//!
//! ```text
//!   clones, by image ─▶ scanner: samples, in idle time ─▶ choose ─▶ offer: by a thread of each process
//!                                                              └─▶ merger: runs until it finds no more
//! ```
//!
//! What each look and the merging after it have used, a rest follows that makes it the part of a processor which the
//! settings allow.

mod merger;
mod scanner;

use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::processes;
use merger::Merger;
use pando_api::{GuestState, Profile};
use pando_freeze::{Frozen, HeldPages, Offer, is_of_the_moment, offer};
use pando_guest::Places;
use pando_guest::settings::{Problem, Settings};
use pando_kernel::seccomp::unfiltered;
use pando_limit::page_sharing::{Family, Rules, Share, choose, rest};
use scanner::{Clone, Findings, Kin, Scanner, Worth};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, RwLock};

/// The daemon's part of it.
#[derive(Debug)]
pub(crate) struct PageSharing {
    rules: RefCell<Rules>,
    merger: Merger,
    scanner: Arc<Mutex<Scanner>>,
    /// Whether somebody else offered memory at the last look.
    strangers: Cell<bool>,
    /// Whoever stops threads of guests for longer has this to read; who offers their memory, to write: only one can
    /// trace a thread.
    pub(crate) tracing: Arc<RwLock<()>>,
    /// Told when it goes by other rules.
    changed: Notify,
}

/// The rules in pando.toml, and what is wrong with them. Of a file of which nothing is understood nobody knows what it
/// allows: then nothing is shared.
pub(crate) fn rules(settings: &Settings) -> (Rules, Vec<Problem>) {
    settings.table("memory")
}

impl PageSharing {
    pub(crate) fn new(places: &Places, boot: &str, settings: &Settings) -> Self {
        Self {
            rules: RefCell::new(rules(settings).0),
            merger: Merger::new(places, boot),
            scanner: Arc::default(),
            strangers: Cell::default(),
            tracing: Arc::default(),
            changed: Notify::new(),
        }
    }

    /// From now on pages are shared by these.
    pub(crate) fn go_by(&self, rules: Rules) {
        if *self.rules.borrow() != rules {
            *self.rules.borrow_mut() = rules;
            self.changed.notify_one();
        }
    }

    /// The kernel's merger is as it was found.
    pub(crate) fn close(&self) {
        self.merger.put_back();
    }

    fn rules(&self) -> Rules {
        self.rules.borrow().clone()
    }
}

/// Shares pages for as long as the daemon runs.
pub(crate) async fn share_pages(daemon: Rc<Daemon>) {
    loop {
        let rules = daemon.page_sharing.rules();
        if rules.share == Share::Off {
            daemon.page_sharing.changed.notified().await;
            continue;
        }
        let begun = Instant::now();
        let used = look_and_merge(&daemon, &rules).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "equal pages of clones are not shared now");
            Duration::ZERO
        });
        tokio::select! {
            () = tokio::time::sleep(rest(&rules, used, begun.elapsed())) => {}
            () = daemon.page_sharing.changed.notified() => {}
        }
    }
}

/// One round; the processor time that it took.
async fn look_and_merge(daemon: &Rc<Daemon>, rules: &Rules) -> std::io::Result<Duration> {
    let sharing = &daemon.page_sharing;
    let kin = kin(daemon);
    leave_those_without_clones(daemon, rules).await?;
    if kin.is_empty() {
        return Ok(Duration::ZERO);
    }
    let (findings, used, kin) = look(daemon, rules, kin).await?;
    let families: Vec<_> = findings.iter().map(|found| Family { image: &found.image, gain: found.gain }).collect();
    if families.iter().all(|family| family.gain == 0) {
        return Ok(used);
    }
    let strangers = rules.share == Share::Clones && has_strangers(daemon, &kin).await?;
    if sharing.strangers.replace(strangers) != strangers && strangers {
        tracing::info!(
            "somebody else offers memory to be merged: no pages of clones are, which would be merged with that"
        );
    }
    let chosen = choose(rules, &families, sharing.merger.image().as_deref(), strangers);
    let chosen: Vec<&Findings> = findings.iter().filter(|found| chosen.contains(&found.image.as_str())).collect();
    let pages: u64 = chosen.iter().map(|found| found.pages).sum();
    if pages == 0 {
        return Ok(used);
    }
    for found in chosen {
        sharing.merger.note_image(Some(&found.image))?;
        let Some(kin) = kin.iter().find(|kin| kin.image == found.image) else { continue };
        offer_all(daemon, Arc::clone(&kin.frozen), found.worth.clone()).await?;
    }
    Ok(used + sharing.merger.merge(pages).await?)
}

/// Whether others than the image and the clones of which memory is offered offer some: what is merged could be merged
/// with theirs.
async fn has_strangers(daemon: &Daemon, kin: &[Kin]) -> std::io::Result<bool> {
    let offered = daemon.page_sharing.merger.image();
    let mut own = HashSet::new();
    for kin in kin.iter().filter(|kin| Some(&kin.image) == offered.as_ref()) {
        own.insert(kin.frozen.holder.pid());
        own.extend(kin.clones.iter().flat_map(|clone| processes::pids(&daemon.field, clone.slot)));
    }
    tokio::task::spawn_blocking(move || Merger::has_strangers(&own)).await.map_err(std::io::Error::other)?
}

/// The images that are held, with those of their clones whose pages may be shared.
fn kin(daemon: &Daemon) -> Vec<Kin> {
    let mut by_image: BTreeMap<String, Vec<Clone>> = BTreeMap::new();
    for guest in daemon.guests.borrow().values() {
        let Some(image) = image_of(guest) else { continue };
        let running = guest.running.borrow().clone();
        let is_quiet = guest.state.get() == GuestState::Running && !guest.is_closed() && !guest.paused.get();
        let is_strict = guest.spec.borrow().profile == Some(Profile::Strict);
        if let Some(running) = running.filter(|_| is_quiet && !is_strict) {
            let clone = Clone { guest: guest.name.clone(), slot: running.slot, started: running.started };
            by_image.entry(image).or_default().push(clone);
        }
    }
    let images = daemon.images.borrow();
    let held = |image: &String| -> Option<Arc<Frozen>> { images.get(image)?.held() };
    by_image.into_iter().filter_map(|(image, clones)| Some(Kin { frozen: held(&image)?, image, clones })).collect()
}

/// The image that a guest is a clone of.
fn image_of(guest: &Guest) -> Option<String> {
    guest.record.borrow().source.strip_prefix("image:").map(str::to_owned)
}

/// Where no clone runs any more of the image of which memory is offered, that is taken back, and another may be.
async fn leave_those_without_clones(daemon: &Daemon, rules: &Rules) -> std::io::Result<()> {
    let merger = &daemon.page_sharing.merger;
    let Some(offered) = merger.image().filter(|_| rules.share == Share::Clones) else { return Ok(()) };
    let is_there = |guest: &Rc<Guest>| guest.running.borrow().is_some() && image_of(guest).as_ref() == Some(&offered);
    if daemon.guests.borrow().values().any(is_there) {
        return Ok(());
    }
    let held = daemon.images.borrow().get(&offered).and_then(|image| image.held());
    if let Some(frozen) = held {
        HeldPages::of(&frozen).and_then(|held| held.take_back()).map_err(|error| error.source)?;
    }
    merger.note_image(None)?;
    merger.settle().await.map(drop)
}

/// Has them looked at in a thread of its own, which must not be anybody's afterwards: it has given up its turn.
async fn look(daemon: &Daemon, rules: &Rules, kin: Vec<Kin>) -> std::io::Result<(Vec<Findings>, Duration, Vec<Kin>)> {
    let (scanner, field, rules) = (Arc::clone(&daemon.page_sharing.scanner), daemon.field.clone(), rules.clone());
    let (sender, done) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("page-sharing".into()).spawn(move || {
        let mut scanner = scanner.lock().unwrap_or_else(PoisonError::into_inner);
        let (findings, used) = scanner.look(&rules, &field, &kin);
        drop(scanner);
        let _ = sender.send((findings, used, kin));
    })?;
    done.await.map_err(std::io::Error::other)
}

/// Offers what is worth it. While guests are being frozen nothing is: it is found again in the next round.
async fn offer_all(daemon: &Rc<Daemon>, frozen: Arc<Frozen>, all: Vec<Worth>) -> std::io::Result<()> {
    let Ok(tracing) = Arc::clone(&daemon.page_sharing.tracing).try_write_owned() else { return Ok(()) };
    let worth = all.clone();
    // Who has a filter of his own may not suspend another's.
    let offering = move || {
        let _tracing = tracing;
        let held = HeldPages::of(&frozen);
        worth.iter().map(|worth| offer_one(held.as_ref().ok(), worth)).collect::<Vec<bool>>()
    };
    let made =
        tokio::task::spawn_blocking(move || unfiltered::run(offering)).await.map_err(std::io::Error::other)??;
    for (worth, _) in all.iter().zip(made).filter(|(_, made)| *made) {
        let kib: u64 = worth.ranges.iter().map(|(start, end)| (end - start) / 1024).sum();
        let detail = format!("{kib} KiB of process {} may be shared with its like", worth.pid);
        daemon.events.tell(worth.guest.as_ref(), "share", Some(detail));
    }
    Ok(())
}

/// Offers the mappings of one process, and the same of the image.
fn offer_one(held: Option<&HeldPages<'_>>, worth: &Worth) -> bool {
    match offer(worth.pid, &worth.ranges) {
        Ok(Offer::Made) => {}
        Ok(Offer::Busy) => return false,
        Err(error) => {
            if !is_of_the_moment(&error) {
                tracing::warn!(%error, guest = %worth.guest, "its memory is not shared again");
            }
            return false;
        }
    }
    for range in &worth.ranges {
        if let Some(Err(error)) = held.map(|held| held.offer(worth.pid, *range)) {
            tracing::debug!(%error, guest = %worth.guest, "the image's memory is not shared again");
        }
    }
    true
}

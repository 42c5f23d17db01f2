//! Guests out of an image: a first process as any guest's, and below it the frozen processes; or one that becomes the
//! frozen guest's own init.

use crate::clone::forking::{Failure, Forking, let_go};
use crate::clone::identity::Identity;
use crate::init::birth;
use crate::init::clone_slot::{CloneSlot, is_complete};
use crate::init::hooks::Hooks;
use crate::init::prewarmed::Ready;
use crate::launch::boot::{Task, boot};
use crate::lifecycle::kill;
use crate::network::named_networks;
use crate::resources::admission::{self, Wish};
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::guest::{Guest, Running};
use crate::state::image::HeldImage;
use crate::state::record::{GuestRecord, LOG, RECORD, SPEC};
use crate::warm::ready_roots::ReadyRoot;
use crate::warm::standby_clones::StandbyClone;
use crate::{crash, failure};
use pando_api::{Fault, FaultKind, Spec};
use pando_freeze::Frozen;
use pando_freeze::image::Image;
use pando_guest::GuestName;
use pando_kernel::{CallError, Context, namespace::uts};
use serde::Serialize;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// How many clones are made at a time. One holder forks one after the other; their places are made beside that.
const AT_ONCE: usize = 4;

/// Makes guests out of an image, one for each name. The first failure is told, once the others are made or have failed.
pub(crate) async fn clone_all(
    daemon: &Rc<Daemon>,
    image: &str,
    names: &[String],
    (identity, wish): (Identity, Wish),
) -> Result<(), Fault> {
    let held = crate::store::images::find(daemon, image)?;
    let spec = identity.spec(&held);
    crate::network::address::check(&spec)?;
    named_networks::check(daemon, &spec)?;
    // Before any of them is begun.
    admission::check_clones(daemon, image, &spec, names.len(), wish)?;
    let identity = Rc::new(identity);
    let frozen = crate::store::images::wake(daemon, &held).await?;
    if let [name] = names {
        return clone(daemon, &held, &frozen, (name, &identity)).await;
    }
    let waiting = Rc::new(std::cell::RefCell::new(Vec::from(names).into_iter()));
    let workers: Vec<_> = (0..AT_ONCE.min(names.len()))
        .map(|_| {
            let (daemon, held, waiting) = (Rc::clone(daemon), Arc::clone(&held), Rc::clone(&waiting));
            let (frozen, identity) = (Arc::clone(&frozen), Rc::clone(&identity));
            tokio::task::spawn_local(async move {
                loop {
                    let Some(name) = waiting.borrow_mut().next() else { return Ok(()) };
                    if let Err(fault) = clone(&daemon, &held, &frozen, (&name, &identity)).await {
                        // Nobody begins another one.
                        waiting.borrow_mut().by_ref().for_each(drop);
                        return Err(fault);
                    }
                }
            })
        })
        .collect();
    let mut outcome = Ok(());
    for worker in workers {
        let ended = worker.await.unwrap_or_else(|error| Err(inside(image, &error)));
        outcome = outcome.and(ended);
    }
    outcome
}

/// Makes a guest out of an image. On failure nothing is left.
pub(crate) async fn clone(
    daemon: &Rc<Daemon>,
    held: &Arc<HeldImage>,
    frozen: &Arc<Frozen>,
    (name, identity): (&str, &Identity),
) -> Result<(), Fault> {
    let name: GuestName = name.parse().map_err(|error| failure::bad_name(name, &error))?;
    let reservation = daemon.reserve(&name).await?;
    daemon.idle.disturb();
    let _cloning = daemon.cloning.one_more();
    let spec = identity.spec(held);
    let record = GuestRecord {
        source: format!("image:{}", held.name),
        created: now(),
        layers: held.record.layers.clone(),
        exit_code: None,
        oom_kills: None,
        up: !spec.restart.is_no(),
        restarts: 0,
        frozen_into: None,
        image_created: Some(held.record.created),
    };
    let (ReadyRoot { ready, files }, ahead) = match identity.standby(&daemon.standby_clones, held) {
        Some(StandbyClone { root, forked, hooks, .. }) => (root, Some((forked, hooks))),
        None => (identity.root(&daemon.roots, held).await?, None),
    };
    // It may have been removed meanwhile.
    if let Err(fault) = named_networks::check(daemon, &spec) {
        daemon.pool.discard(ready.init);
        return Err(fault);
    }
    let (forked, hooks) = ahead.unzip();
    let directory = daemon.places.guest(&name);
    let host_name = spec.hostname.clone().unwrap_or_else(|| name.to_string());
    // The frozen processes are forked up to where they wait, while all else is put in order here.
    let forking = match forked {
        Some(forked) => uts::set_host_name(&ready.init.first, &host_name).map(|()| Forking::Before(forked)),
        None => {
            CloneSlot::new((&daemon.logs, &daemon.field), &ready, &files.path().join(LOG), &spec).map(|clone_slot| {
                let at_once = is_complete(&ready, spec.network);
                Forking::begin(clone_slot, (ready.init.first.clone(), host_name), Arc::clone(frozen), at_once)
            })
        }
    };
    let moved = forking.and_then(|forking| {
        write(&files.path(), &record, &spec)?;
        files.become_those_of(&directory).context(|| format!("making {}", directory.display())).map(|()| forking)
    });
    let forking = match moved {
        Ok(forking) => forking,
        Err(error) => {
            daemon.pool.discard(ready.init);
            return Err(failure::call("making a clone", name.as_ref(), &error));
        }
    };
    crash::point("clone.named");
    let guest = Guest::new(name.clone(), record, spec);
    *guest.returning.borrow_mut() = identity.returns_from(&daemon.private, held);
    let _doing = guest.begin("started")?;
    daemon.guests.borrow_mut().insert(name, Rc::clone(&guest));
    drop(reservation);
    daemon.events.tell(guest.name.as_ref(), "clone", Some(held.name.clone()));
    let started = start(daemon, &guest, ready, Pending { held, image: &frozen.image, identity, forking, hooks }).await;
    match &started {
        Ok(()) => {
            daemon.unsettled.settle(directory);
            admission::learn(daemon, &guest);
        }
        Err(_) => crate::lifecycle::forget::throw_away(daemon, &guest),
    }
    started
}

/// What is known of the guest goes into its directory before that has its name. It need not be on the disk: see
/// [`Unsettled`](crate::state::unsettled::Unsettled).
fn write(directory: &Path, record: &GuestRecord, spec: &Spec) -> Result<(), CallError> {
    fn text(value: &impl Serialize) -> std::io::Result<String> {
        toml::to_string_pretty(value).map_err(std::io::Error::other)
    }
    for (file, text) in [(RECORD, text(record)), (SPEC, text(spec))] {
        let path = directory.join(file);
        text.and_then(|text| std::fs::write(&path, text)).context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn inside(name: &str, error: &tokio::task::JoinError) -> Fault {
    Fault::new(FaultKind::Failed, name, format!("making clone '{name}' failed inside Pando: {error}"))
}

/// A clone that has its name, and whose processes do not run yet.
struct Pending<'a> {
    held: &'a HeldImage,
    image: &'a Image,
    identity: &'a Identity,
    forking: Forking,
    /// Its hooks, where they were looked for ahead.
    hooks: Option<Hooks>,
}

async fn start(daemon: &Rc<Daemon>, guest: &Rc<Guest>, ready: Ready, pending: Pending<'_>) -> Result<(), Fault> {
    // Nobody enters it before it is itself.
    let closed = guest.close();
    let running = boot(daemon, guest, Task::Adopt(pending.held.heritage()), Vec::new(), Some(ready)).await?;
    crash::point("clone.booted");
    let outcome = finish(daemon, guest, &running, pending).await;
    drop(closed);
    if outcome.is_err() {
        let _ = kill::force(guest, &running).await;
    }
    outcome
}

/// Makes a clone itself, lets its processes run, and has the guest stay.
async fn finish(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Running, pending: Pending<'_>) -> Result<(), Fault> {
    let Pending { held, image, identity, mut forking, hooks } = pending;
    let name = guest.name.as_ref();
    let failed = |error: Failure| Fault::new(FaultKind::Failed, name, format!("cloning '{name}' failed: {error}"));
    let alone = daemon.cloning.is_one();
    forking.may_begin();
    let customization = identity.customization(guest, running, held, hooks).await;
    // Their pids are taken by then. A clone that is refused loses its first process, where that is of the image: who
    // looked for hooks in it knows less than who forked.
    let forked = forking.stand(alone).await.map_err(failed)?;
    let customization = customization?;
    if !customization.is_empty() {
        customization.perform(daemon, guest, image).await?;
    }
    let_go(forked, alone).await.map_err(failed)?;
    crash::point("clone.runs");
    birth::stay(&guest.name, &running.link)?;
    crash::point("clone.stays");
    Ok(())
}

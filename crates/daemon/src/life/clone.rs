//! Guests out of an image: a first process as any guest's, and below it the frozen processes; or one that becomes the frozen guest's own init.

use super::boot::{self, Ready, Task, boot};
use super::identity::Identity;
use super::stop;
use crate::daemon::Daemon;
use crate::events::now;
use crate::failure;
use crate::guest::{Guest, Running};
use crate::image::HeldImage;
use crate::ready_roots::ReadyRoot;
use crate::record::{GuestRecord, LOG, RECORD, SPEC};
use crate::{crash, unsettled};
use pando_api::{Fault, FaultKind, Network, Spec};
use pando_freeze::{CloneError, Cradle, Frozen, Ready as Forked, Target};
use pando_guest::GuestName;
use pando_kernel::cgroup::Plot;
use pando_kernel::{CallError, Context, uts};
use serde::Serialize;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use tokio::sync::oneshot;

/// How many clones are made at a time. One holder forks one after the other; their places are made beside that.
const AT_ONCE: usize = 4;

/// Makes guests out of an image, one for each name. The first failure is told, once the others are made or have failed.
pub(crate) async fn clone_all(
    daemon: &Rc<Daemon>,
    image: &str,
    names: &[String],
    identity: Identity,
) -> Result<(), Fault> {
    let held = super::image::find(daemon, image)?;
    super::address::check(&identity.spec(&held))?;
    let identity = Rc::new(identity);
    let frozen = super::image::wake(daemon, &held).await?;
    if let [name] = names {
        return clone(daemon, &held, frozen, (name, &identity)).await;
    }
    let waiting = Rc::new(std::cell::RefCell::new(Vec::from(names).into_iter()));
    let workers: Vec<_> = (0..AT_ONCE.min(names.len()))
        .map(|_| {
            let (daemon, held, waiting) = (Rc::clone(daemon), Arc::clone(&held), Rc::clone(&waiting));
            let (frozen, identity) = (Arc::clone(&frozen), Rc::clone(&identity));
            tokio::task::spawn_local(async move {
                loop {
                    let Some(name) = waiting.borrow_mut().next() else { return Ok(()) };
                    if let Err(fault) = clone(&daemon, &held, Arc::clone(&frozen), (&name, &identity)).await {
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
pub(super) async fn clone(
    daemon: &Rc<Daemon>,
    held: &HeldImage,
    frozen: Arc<Frozen>,
    (name, identity): (&str, &Identity),
) -> Result<(), Fault> {
    let name: GuestName = name.parse().map_err(|error| failure::bad_name(name, &error))?;
    let reservation = daemon.reserve(&name).await?;
    daemon.lull.disturb();
    let spec = identity.spec(held);
    let record = GuestRecord {
        source: format!("image:{}", held.name),
        created: now(),
        layers: held.record.layers.clone(),
        exit_code: None,
        frozen_into: None,
    };
    let ReadyRoot { ready, files } = identity.root(daemon, held).await?;
    let directory = daemon.places.guest(&name);
    // The frozen processes are forked up to where they wait, while all else is put in order here.
    let host_name = spec.hostname.clone().unwrap_or_else(|| name.to_string());
    let nest = Nest::new(daemon, host_name, (&ready, spec.network), files.path().join(LOG));
    let forking = nest.map(|nest| Forking::begin(nest, Arc::clone(&frozen)));
    let moved = forking.and_then(|forking| {
        write(&files.path(), &record, &spec)?;
        files.become_those_of(&directory).context(|| format!("making {}", directory.display())).map(|()| forking)
    });
    let forking = match moved {
        Ok(forking) => forking,
        Err(error) => {
            daemon.pool.discard(ready.sprout);
            return Err(failure::call("making a clone", name.as_ref(), &error));
        }
    };
    crash::point("clone.named");
    let guest = Guest::new(name.clone(), record, spec);
    let _doing = guest.begin("started")?;
    daemon.guests.borrow_mut().insert(name, Rc::clone(&guest));
    drop(reservation);
    daemon.events.tell(guest.name.as_ref(), "clone", Some(held.name.clone()));
    let started = start(daemon, &guest, held, ready, (forking, identity)).await;
    match &started {
        Ok(()) => unsettled::settle(daemon, directory),
        Err(_) => super::remove::throw_away(daemon, &guest),
    }
    started
}

/// What is known of the guest goes into its directory before that has its name. It need not be on the disk: see [`unsettled`].
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

/// No image of that name.
pub(crate) fn no_such_image(name: &str) -> Fault {
    Fault::new(
        FaultKind::NoSuchGuest,
        name,
        format!("there is no image '{name}'; 'pando images' lists those there are"),
    )
}

fn inside(name: &str, error: &tokio::task::JoinError) -> Fault {
    Fault::new(FaultKind::Failed, name, format!("making clone '{name}' failed inside Pando: {error}"))
}

async fn start(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    image: &HeldImage,
    ready: Ready,
    (forking, identity): (Forking, &Identity),
) -> Result<(), Fault> {
    // Nobody enters it before it is itself.
    let closed = guest.close();
    let running = boot(daemon, guest, Task::Adopt(image.heritage()), Vec::new(), Some(ready)).await?;
    crash::point("clone.booted");
    let outcome = finish(daemon, guest, &running, image, (forking, identity)).await;
    drop(closed);
    if outcome.is_err() {
        let _ = stop::force(guest, &running).await;
    }
    outcome
}

/// Makes it itself, lets the processes run, and the guest stay.
async fn finish(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    running: &Running,
    image: &HeldImage,
    (mut forking, identity): (Forking, &Identity),
) -> Result<(), Fault> {
    let name = guest.name.as_ref();
    let rites = identity.rites(guest, running, image).await?;
    if !rites.is_empty() {
        // Their pids are taken by then. One that could not be forked says so below.
        if let Some(frozen) = forking.stands().await {
            rites.perform(daemon, guest, &frozen.image).await?;
        }
    }
    let forked = forking.let_go().await.map_err(|error| inside(name, &error))?;
    forked.map_err(|error| Fault::new(FaultKind::Failed, name, format!("cloning '{name}' failed: {error}")))?;
    crash::point("clone.runs");
    boot::stay(&guest.name, &running.link)?;
    crash::point("clone.stays");
    Ok(())
}

/// The frozen processes being forked, on another thread. Dropped, they never run.
struct Forking {
    thread: tokio::task::JoinHandle<Result<(), CloneError>>,
    go: mpsc::Sender<()>,
    /// Whether it has to be told when they can be forked.
    early: bool,
    /// Where it says that they wait.
    standing: oneshot::Receiver<Arc<Frozen>>,
}

impl Forking {
    fn begin(nest: Nest, frozen: Arc<Frozen>) -> Self {
        let (go, gone) = mpsc::channel();
        let (stand, standing) = oneshot::channel();
        let early = !nest.at_once;
        let thread = tokio::task::spawn_blocking(move || {
            // Nobody is there to say so where the clone has come to nothing meanwhile.
            if early && gone.recv().is_err() {
                return Ok(());
            }
            let ready = nest.fork(&frozen)?;
            crash::point("clone.waits");
            let _ = stand.send(frozen);
            if gone.recv().is_ok() { ready.go() } else { Ok(()) }
        });
        Self { thread, go, early, standing }
    }

    /// Waits until all of them wait, in a guest that has its root file system. What they are; `None` where they could not be forked.
    async fn stands(&mut self) -> Option<Arc<Frozen>> {
        if std::mem::take(&mut self.early) {
            let _ = self.go.send(());
        }
        (&mut self.standing).await.ok()
    }

    /// Lets them run; they do when this returns.
    async fn let_go(self) -> Result<Result<(), CloneError>, tokio::task::JoinError> {
        // A word to be forked, if that was not given yet, and one for the gate.
        for _ in 0..=usize::from(self.early) {
            let _ = self.go.send(());
        }
        self.thread.await
    }
}

/// Where the frozen processes go: below a guest's first process that waits for them.
struct Nest {
    init: i32,
    /// Whether they can be forked at once: it has a root file system already, and there is no network that it must be let onto before they bind.
    at_once: bool,
    host_name: String,
    plot: Plot,
    log: OwnedFd,
    /// Where the first process is told what to become.
    cradle: Option<OwnedFd>,
}

impl Nest {
    fn new(
        daemon: &Daemon,
        host_name: String,
        (ready, network): (&Ready, Network),
        log: PathBuf,
    ) -> Result<Self, CallError> {
        let log = File::options().create(true).append(true).open(&log).context(|| format!("opening {}", log.display()));
        let log = log?;
        let cradle = ready.cradle.as_ref().map(|cradle| cradle.lay_out(&ready.sprout, &log)).transpose()?;
        Ok(Self {
            init: ready.sprout.pid,
            at_once: ready.tree.is_none() && matches!(network, Network::None | Network::Host),
            host_name,
            plot: daemon.field.plot(ready.sprout.slot),
            log: log.into(),
            cradle,
        })
    }

    /// Gives the guest its host name and its processes. Blocking.
    fn fork(&self, frozen: &Frozen) -> Result<Forked, CloneError> {
        uts::set_host_name(self.init, &self.host_name)?;
        let tasks = self.plot.entrances()?.tasks;
        let open = |path: PathBuf| File::open(&path).context(|| format!("opening {}", path.display()));
        let cgroup = self.plot.guest().map(open).transpose()?;
        let groups: Vec<BorrowedFd<'_>> = tasks.iter().map(AsFd::as_fd).collect();
        let target = Target {
            init: self.init,
            cgroup: cgroup.as_ref().map(AsFd::as_fd),
            groups: &groups,
            supplied: &[self.log.as_fd()],
            cradle: self.cradle.as_ref().map(|socket| Cradle(socket.as_fd())),
        };
        frozen.clone_into(&target)
    }
}

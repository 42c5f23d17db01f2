//! From a guest at rest to a running one: a sprout, a root file system, a plan.

use crate::init::birth::{grown, stay};
use crate::init::console;
use crate::init::handoff::Cradle;
use crate::init::launch_builder::{Sent, Site, SiteWish};
use crate::init::prewarmed::{Ready, Sprout};
use crate::init::program::Wish;
use crate::launch::admission::{admit, build_beside, send_ahead};
use crate::network::private_network;
use crate::runtime::descriptors::owned;
use crate::runtime::spin_wait::stay_awake;
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::guest::{Guest, Running};
use crate::state::record;
use crate::{crash, failure};
use pando_api::{Fault, GuestState, Network, Spec};
use pando_guest::launch::rouse;
use pando_guest::plan::{Heritage, SproutKind, Stdio};
use pando_guest::policy::profile;
use pando_kernel::mount::Tree;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use tokio::sync::watch;

/// What a guest's first process is to do.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// Wait.
    Idle,
    /// Run a command, and end with it.
    Run(Wish),
    /// The same for an errand of Pando's, in a guest that is at rest otherwise: with its files and limits, and nothing of its own that runs.
    Errand(Wish),
    /// What comes out of an image.
    Adopt(Heritage),
}

/// How far a guest's first process has come before the guest is known.
enum Growth {
    /// It waits for a root file system.
    Bare,
    /// That waits for it, and perhaps for what it is to become.
    Rooted(Tree, Option<Cradle>),
    /// It stands in it, and waits for what it is to adopt.
    Standing,
}

/// Starts a guest's first process, and what it is to run below. A command without standard descriptors prints into the guest's log. On failure nothing is left.
pub(crate) async fn boot(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    task: Task,
    stdio: Vec<OwnedFd>,
    ready: Option<Ready>,
) -> Result<Rc<Running>, Fault> {
    guest.state.set(GuestState::Starting);
    daemon.lull.disturb();
    let starting = daemon.starting.one_more();
    let booted = attempt(daemon, guest, task, stdio, ready).await;
    let alone = daemon.starting.is_one();
    drop(starting);
    match &booted {
        Ok(running) => {
            crash::point("start.born");
            *guest.running.borrow_mut() = Some(Rc::clone(running));
            guest.state.set(GuestState::Running);
            daemon.events.tell(guest.name.as_ref(), "start", None);
            daemon.lives.tell(guest, running);
            if alone && guest.ephemeral {
                let running = Rc::clone(running);
                tokio::task::spawn_local(stay_awake(move || running.over.borrow().is_some()));
            }
            crate::store::hot_layers::note_when_settled(daemon, guest, running);
        }
        Err(_) => guest.state.set(GuestState::Stopped),
    }
    booted
}

async fn attempt(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    task: Task,
    stdio: Vec<OwnedFd>,
    ready: Option<Ready>,
) -> Result<Rc<Running>, Fault> {
    let mut spec = profile::completed(&guest.spec.borrow());
    let errand = matches!(task, Task::Errand(_));
    if errand {
        spec = Spec { init: None, network: Network::None, addresses: Vec::new(), publish: Vec::new(), ..spec };
    }
    let (sprout, growth) = match ready {
        Some(Ready { sprout, tree: Some(tree), cradle }) => (sprout, Growth::Rooted(tree, cradle)),
        Some(Ready { sprout, tree: None, .. }) => (sprout, Growth::Standing),
        None => {
            let sprout = daemon.pool.take(SproutKind::of(&spec)).await;
            let doing = "making a place for the guest";
            (sprout.map_err(|error| failure::io(doing, guest.name.as_ref(), &error))?, Growth::Bare)
        }
    };
    crash::point("start.seed");
    if matches!(growth, Growth::Rooted(..))
        && daemon.starting.is_one()
        && let Err(error) = rouse(&sprout.report, sprout.pid)
    {
        tracing::debug!(%error, "a guest's first process could not be woken ahead");
    }
    let outcome = grow(daemon, guest, spec, &sprout, growth, task, stdio).await;
    match outcome {
        Ok(word) => Ok(Rc::new(Running {
            slot: sprout.slot,
            link: sprout.link,
            seed: sprout.seed,
            pid: sprout.pid,
            trunk: sprout.trunk,
            mounts: RefCell::new(sprout.mounts),
            namespace: sprout.namespace,
            started: now(),
            errand,
            started_by_clients: RefCell::new(HashSet::from([sprout.pid])),
            word: RefCell::new(word),
            oom_kills: Cell::new(0),
            over: watch::Sender::new(None),
        })),
        Err(fault) => {
            daemon.resources.leave(&guest.name);
            sprout.link.quit();
            daemon.clear_slot(sprout.slot).await;
            record::remove_run(&daemon.places, &guest.name);
            Err(fault)
        }
    }
}

async fn grow(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    spec: Spec,
    sprout: &Sprout,
    growth: Growth,
    task: Task,
    stdio: Vec<OwnedFd>,
) -> Result<Option<OwnedFd>, Fault> {
    let errand = matches!(task, Task::Errand(_));
    let (ahead, cradle) = match growth {
        Growth::Standing => {
            // Such a guest stays once all of it runs.
            admit(daemon, guest, &spec, sprout, errand).await?;
            return show(daemon, guest, sprout).map(|()| None);
        }
        Growth::Rooted(tree, cradle) => (Some(tree), cradle),
        Growth::Bare => (None, None),
    };
    let (wish, heritage) = match task {
        Task::Idle => (None, Heritage::None),
        Task::Run(wish) | Task::Errand(wish) => (Some(wish), Heritage::None),
        Task::Adopt(heritage) => (None, heritage),
    };
    let no_log = |error: std::io::Error| failure::io("making the guest's log", guest.name.as_ref(), &error);
    let (stdio, feed) = match &wish {
        Some(Wish { stdio: Stdio::Console, .. }) => {
            (vec![console::lay(&daemon.logs, (&guest.name, &guest.log(&daemon.places)), &sprout.link)?], None)
        }
        Some(Wish { stdio: Stdio::Given, .. }) if stdio.is_empty() => {
            daemon.logs.stdio(sprout.root(), &guest.log(&daemon.places)).map_err(no_log)?
        }
        _ => (stdio, None),
    };
    let wish = wish.map(SiteWish::of).transpose()?;
    let names = (spec.network == Network::Private).then(|| {
        let directory = private_network::directory(&daemon.places);
        (directory.join("hosts"), private_network::resolver_path(&directory, sprout.slot))
    });
    let mut site = Site::of(sprout, guest.name.as_ref(), spec.clone(), (&daemon.store, daemon.unified), heritage)?;
    // Whoever gave the command waits for it; a guest that lasts may end when it likes.
    site.word = (guest.ephemeral && wish.is_some()).then(word).transpose()?;
    site.first_run = guest.record.borrow().exit_code.is_none();
    let heard = site.word.as_ref().map(|word| owned(word.as_fd())).transpose()?;
    // One that goes away with its command had none before.
    site.transactions =
        if guest.ephemeral { None } else { crate::init::transactions::kept(&daemon.places, &guest.name) };
    (site.stdio, site.wish, site.names) = (stdio, wish, names);
    if let Some(fittings) = cradle.and_then(|mut cradle| cradle.take_fittings()) {
        site.fit(fittings);
    }
    let Sent { plan, report, parts } = match ahead {
        Some(tree) => send_ahead(daemon, guest, &spec, sprout, (site, tree), errand).await?,
        None => build_beside(daemon, guest, site, admit(daemon, guest, &spec, sprout, errand)).await?,
    };
    crash::point("start.sent");
    let outcome = grown(guest.name.as_ref(), &plan, report, daemon.starting.is_one()).await;
    daemon.lull.close_later(parts);
    outcome?;
    crash::point("start.launched");
    if heritage == Heritage::None {
        // Both at once: to wake it twice takes longer than either.
        feed.map_or(Ok(()), |feed| feed.begin(sprout.link.seed())).map_err(no_log)?;
        stay(&guest.name, &sprout.link)?;
    }
    Ok(heard)
}

/// A descriptor that a first process says over that its command has ended.
fn word() -> Result<OwnedFd, Fault> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| failure::io("making a descriptor", "daemon", &error.into()))
}

/// Shows a guest that stands what its limits make of /proc.
fn show(daemon: &Daemon, guest: &Guest, sprout: &Sprout) -> Result<(), Fault> {
    let trees = daemon.resources.views.trees(&guest.name);
    let Some(mounts) = sprout.mounts.as_ref().filter(|_| !trees.is_empty()) else { return Ok(()) };
    crate::resources::views::attach(trees, sprout.pid, mounts.as_fd())
        .map_err(|error| failure::call("showing the guest its limits", guest.name.as_ref(), &error))
}

//! From a guest at rest to a running one: a sprout, a root file system, a plan.

use crate::init::birth::grown;
use crate::init::handoff::Cradle;
use crate::init::launch_builder::{Sent, Site, SiteWish};
use crate::init::link::Link;
use crate::launch::admission::{admit, build_beside, send_ahead};
use crate::network::private_network;
use crate::runtime::idle::Lull;
use crate::runtime::spin_wait::stay_awake;
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::guest::{Guest, Running};
use crate::state::record;
use crate::warm::pool::Sprout;
use crate::{crash, failure};
use pando_api::{Fault, GuestState, Network, PartOf, Spec};
use pando_guest::account::Account;
use pando_guest::launch::rouse;
use pando_guest::plan::{Heritage, Program, SproutKind, Stdio};
use pando_guest::policy::profile;
use pando_guest::root::{LayerStore, Mounted};
use pando_kernel::mount::Tree;
use pando_seed::Request;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What a guest is to run, before its user is looked up.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) command: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) workdir: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) stdio: Stdio,
    /// The program, if it does not lie in the guest's files.
    pub(crate) program: Option<Rc<OwnedFd>>,
    /// The transaction that it is part of.
    pub(crate) transaction: Option<PartOf>,
}

impl Wish {
    /// The program of this wish, run by `account`.
    pub(crate) fn program(&self, account: Account) -> Program {
        Program {
            command: self.command.clone(),
            env: self.env.clone(),
            workdir: self.workdir.clone(),
            account,
            stdio: self.stdio,
            sent_along: self.program.is_some(),
        }
    }
}

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

/// What was made ahead for a start.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The first process.
    pub(crate) sprout: Sprout,
    /// The root file system, over the guest's own files; `None` where it stands in it already: see [`stand_ahead`].
    pub(crate) tree: Option<Tree>,
    /// Where it waits to become the init of a frozen guest.
    pub(crate) cradle: Option<Cradle>,
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
            crate::lifecycle::end::watch(daemon, guest, running);
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

/// The mount namespace of a process, if it still has one.
pub(crate) fn mounts(pid: i32) -> Option<OwnedFd> {
    std::fs::File::open(format!("/proc/{pid}/ns/mnt")).ok().map(OwnedFd::from)
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
            (vec![crate::init::console::lay(daemon, guest, &sprout.link)?], None)
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
    close_later(&daemon.lull, parts);
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

/// Has a first process go into a root file system and stand there, before it is known whose it is: all that its guest's name is needed for, the host
/// name, is set later. It waits for processes out of an image.
pub(crate) async fn stand_ahead(
    sprout: &Sprout,
    tree: Tree,
    spec: Spec,
    store: &Arc<LayerStore>,
    unified: bool,
    (heritage, cradle): (Heritage, Option<&mut Cradle>),
) -> Result<(), Fault> {
    let mut site = Site::of(sprout, crate::warm::ready_roots::NAME, spec, (store, unified), heritage)?;
    if let Some(fittings) = cradle.and_then(Cradle::take_fittings) {
        site.fit(fittings);
    }
    let Sent { plan, report, .. } = site.send(Mounted { tree, parts: Vec::new() }, Vec::new())?;
    grown(crate::warm::ready_roots::NAME, &plan, report, false).await
}

/// From here on the seed has to outlive this daemon. Until it knows, the daemon's death is the guest's, whose start is then undone.
pub(crate) fn stay(name: &pando_guest::GuestName, link: &Link) -> Result<(), Fault> {
    let settled = link.seed().send(Request::Settle, &[]);
    settled.map_err(|error| failure::io("starting a process", name.as_ref(), &error))
}

/// Closing a tree that was never attached waits for a grace period, which on a machine with few processors is time taken from the guest that just
/// began. A lull may be long in coming where guests start all the time.
pub(crate) fn close_later(lull: &Lull, parts: Vec<Tree>) {
    const LATEST: Duration = Duration::from_millis(500);
    let lull = lull.clone();
    tokio::task::spawn_local(async move {
        let _ = tokio::time::timeout(LATEST, lull.come()).await;
        drop(tokio::task::spawn_blocking(move || drop(parts)));
    });
}

pub(crate) fn owned(fd: BorrowedFd<'_>) -> Result<OwnedFd, Fault> {
    fd.try_clone_to_owned().map_err(|error| failure::io("copying a descriptor", "daemon", &error))
}

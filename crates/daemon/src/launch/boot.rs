//! From a guest at rest to a running one, top down: an init, a root file system, a plan.
//!
//! ```text
//!   boot ─▶ attempt: takes an init ─▶ Launch::run ─▶ builder: all that the init is to get
//!                                       ├─▶ a root made ahead: admit, send the plan
//!                                       ├─▶ no root yet: put one together in a thread, admit meanwhile, send the plan
//!                                       └─▶ the init stands in its root already: admit
//!                                     ─▶ wait for the report ─▶ Running
//! ```

use crate::init::birth::{grown, stay};
use crate::init::handoff::Handoff;
use crate::init::launch_builder::{LaunchBuilder, SendableProgram, Sent};
use crate::init::prewarmed::{PrewarmedInit, Ready};
use crate::init::program::ProgramRequest;
use crate::init::{console, kept_input, transactions};
use crate::launch::host_devices;
use crate::logs::Feed;
use crate::network::{address, private_network};
use crate::resources::views;
use crate::runtime::descriptors::owned;
use crate::runtime::spin_wait::stay_awake;
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::guest::{Guest, Running};
use crate::state::record::{self, EphemeralRecord, RunRecord};
use crate::store::{hot_layers, layers, volumes};
use crate::{crash, failure};
use pando_api::{Fault, FaultKind, GuestState, Network, Spec};
use pando_guest::launch;
use pando_guest::plan::{Heritage, PrewarmedKind, Stdio};
use pando_guest::policy::profile;
use pando_guest::root::Mounted;
use pando_kernel::mount::Tree;
use pando_limit::view::View;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::mpsc;
use tokio::sync::watch;

/// What a guest's first process is to do.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// Wait, with nothing to run.
    Idle,
    /// Run a command, and end with it.
    Run(ProgramRequest),
    /// The same for an errand of Pando's, in a guest that is at rest otherwise: with its files and limits, and nothing
    /// of its own that runs.
    Errand(ProgramRequest),
    /// What comes out of an image.
    Adopt(Heritage),
}

/// How far a guest's first process has come before the guest is known.
enum Progress {
    /// It waits for a root file system.
    Bare,
    /// A root file system waits for it, and perhaps what it is to become.
    Rooted(Tree, Option<Handoff>),
    /// It stands in its root file system, and waits for what it is to adopt.
    Standing,
}

/// Starts a guest's first process, and what it is to run below. A command without standard descriptors prints into the
/// guest's log. On failure nothing is left.
pub(crate) async fn boot(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    task: Task,
    stdio: Vec<OwnedFd>,
    ready: Option<Ready>,
) -> Result<Rc<Running>, Fault> {
    guest.state.set(GuestState::Starting);
    guest.restarts.begins();
    guest.is_doomed.set(false);
    daemon.idle.disturb();
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
            hot_layers::note_when_settled(daemon, guest, running);
        }
        Err(_) => guest.state.set(GuestState::Stopped),
    }
    booted
}

/// Takes an init, has it become the guest's, and describes the life that has begun; or clears away what came of it.
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
        spec = Spec {
            init: None,
            network: Network::None,
            addresses: Vec::new(),
            publish: Vec::new(),
            sysctl: BTreeMap::new(),
            devices: Vec::new(),
            // It is Pando that changes them.
            read_only: false,
            ..spec
        };
    }
    let (init, progress) = match ready {
        Some(Ready { init, tree: Some(tree), handoff }) => (init, Progress::Rooted(tree, handoff)),
        Some(Ready { init, tree: None, .. }) => (init, Progress::Standing),
        None => {
            let init = daemon.pool.take(PrewarmedKind::of(&spec)).await;
            let doing = "making a place for the guest";
            (init.map_err(|error| failure::io(doing, guest.name.as_ref(), &error))?, Progress::Bare)
        }
    };
    crash::point("start.shim");
    if matches!(progress, Progress::Rooted(..))
        && daemon.starting.is_one()
        && let Err(error) = launch::rouse(&init.report, &init.first)
    {
        tracing::debug!(%error, "a guest's first process could not be woken ahead");
    }
    let _beginning = guest.begins_with(init.first.clone());
    let given = host_devices::give(daemon, &guest.name, &spec, &init);
    let launch = Launch { daemon, guest, spec, init: &init, errand };
    let run = match given {
        Ok(()) => launch.run(progress, task, stdio).await,
        Err(fault) => Err(fault),
    };
    match run {
        Ok(word) => Ok(Rc::new(Running {
            slot: init.slot,
            link: init.link,
            shim: init.shim,
            started_by_clients: RefCell::new(HashMap::from([(init.first.pid(), init.first.clone())])),
            first: init.first,
            mounts: RefCell::new(init.mounts),
            namespace: init.namespace,
            started: now(),
            errand,
            word: RefCell::new(word),
            oom_kills: Cell::new(0),
            over: watch::Sender::new(None),
        })),
        Err(fault) => {
            daemon.resources.leave(&guest.name);
            init.link.quit();
            daemon.clear_slot(init.slot).await;
            record::remove_run(&daemon.places, &guest.name);
            Err(fault)
        }
    }
}

/// A guest's launch that is under way.
struct Launch<'a> {
    daemon: &'a Rc<Daemon>,
    guest: &'a Rc<Guest>,
    spec: Spec,
    init: &'a PrewarmedInit,
    errand: bool,
}

impl Launch<'_> {
    /// Has the init become the guest's. Returns the descriptor over which it says that its command has ended, where
    /// somebody waits for that.
    async fn run(&self, progress: Progress, task: Task, stdio: Vec<OwnedFd>) -> Result<Option<OwnedFd>, Fault> {
        let (daemon, name, init) = (self.daemon, &self.guest.name, self.init);
        let (root, handoff) = match progress {
            Progress::Standing => {
                // Such a guest stays once all of it runs.
                self.admit().await?;
                return self.show_limits().map(|()| None);
            }
            Progress::Rooted(root, handoff) => (Some(root), handoff),
            Progress::Bare => (None, None),
        };
        let (request, heritage) = match task {
            Task::Idle => (None, Heritage::None),
            Task::Run(request) | Task::Errand(request) => (Some(request), Heritage::None),
            Task::Adopt(heritage) => (None, heritage),
        };
        let (stdio, feed) = self.stdio(request.as_ref(), stdio)?;
        let mut builder = self.builder(request, stdio, heritage)?;
        if let Some(parts) = handoff.and_then(|mut handoff| handoff.take_parts()) {
            builder.hand_off(parts);
        }
        let heard = builder.word.as_ref().map(|word| owned(word.as_fd())).transpose()?;
        let Sent { plan, report, parts } = match root {
            Some(root) => self.send_with_root(builder, root).await?,
            None => self.build_while_admitted(builder).await?,
        };
        crash::point("start.sent");
        let outcome = grown(name.as_ref(), &plan, report, daemon.starting.is_one()).await;
        daemon.idle.close_later(parts);
        outcome?;
        crash::point("start.launched");
        if heritage == Heritage::None {
            // Both at once: to wake it twice takes longer than either.
            feed.map_or(Ok(()), |feed| feed.begin(init.link.shim())).map_err(|error| self.no_log(&error))?;
            stay(name, &init.link)?;
        }
        Ok(heard)
    }

    /// The standard descriptors of what is run, and what the shim is to carry into the log once it runs.
    fn stdio(
        &self,
        request: Option<&ProgramRequest>,
        given: Vec<OwnedFd>,
    ) -> Result<(Vec<OwnedFd>, Option<Feed>), Fault> {
        let (logs, log) = (&self.daemon.logs, self.guest.log(&self.daemon.places));
        match request {
            Some(ProgramRequest { stdio: Stdio::Console, .. }) => {
                Ok((vec![console::lay(logs, (&self.guest.name, &log), &self.init.link)?], None))
            }
            Some(ProgramRequest { stdio: Stdio::Given, .. }) if given.is_empty() => {
                let (mut stdio, feed) = logs.stdio(self.init.root(), &log).map_err(|error| self.no_log(&error))?;
                if self.spec.stdin_open && !self.errand {
                    let doing = "making the guest's input";
                    let input = kept_input::make(self.init.root());
                    stdio[0] = input.map_err(|error| failure::io(doing, self.guest.name.as_ref(), &error))?;
                }
                Ok((stdio, feed))
            }
            _ => Ok((given, None)),
        }
    }

    fn no_log(&self, error: &std::io::Error) -> Fault {
        failure::io("making the guest's log", self.guest.name.as_ref(), error)
    }

    /// All that a thread needs to put the root file system together and to send the plan.
    fn builder(
        &self,
        request: Option<ProgramRequest>,
        stdio: Vec<OwnedFd>,
        heritage: Heritage,
    ) -> Result<LaunchBuilder, Fault> {
        let Self { daemon, guest, spec, init, .. } = self;
        let request = request.map(SendableProgram::of).transpose()?;
        let network = (spec.network == Network::Private).then(|| daemon.private.of(spec)).transpose();
        let network = network.map_err(|error| failure::bad(guest.name.as_ref(), error.to_string()))?;
        let names = network.map(|network| {
            let directory = &network.definition().directory;
            let hosts = private_network::hosts_path(directory, Some(init.slot).filter(|_| !spec.add_host.is_empty()));
            (hosts, private_network::resolver_path(directory, init.slot))
        });
        let store = (&daemon.store, daemon.unified);
        let mut builder = LaunchBuilder::of(init, guest.name.as_ref(), spec.clone(), store, heritage)?;
        // Whoever gave the command waits for it; a guest that lasts may end when it likes.
        builder.word = (guest.ephemeral && request.is_some()).then(word).transpose()?;
        builder.first_run = guest.record.borrow().exit_code.is_none();
        // One that goes away with its command had none before.
        builder.transactions = if guest.ephemeral { None } else { transactions::kept(&daemon.places, &guest.name) };
        builder.shared = volumes::shared(daemon, spec);
        (builder.stdio, builder.request, builder.names) = (stdio, request, names);
        Ok(builder)
    }

    /// Admits a guest whose root stands, and sends it its plan. All that is left of that is a message: another thread
    /// would take longer to be woken. One on the host's network is admitted there while it takes its first steps, and
    /// goes on to its own programs when it has been told so.
    async fn send_with_root(&self, mut builder: LaunchBuilder, root: Tree) -> Result<Sent, Fault> {
        let Self { daemon, guest, spec, .. } = self;
        // On a private network its files tell the names of the others, which are there once it is on it.
        builder.admitted = !spec.network.is_the_hosts();
        let waits = !builder.admitted;
        self.enroll()?;
        if !waits {
            self.connect().await?;
        }
        crash::point("start.noted");
        builder.recover(&root)?;
        if !spec.add_host.is_empty() {
            builder.name_others(&root)?;
        }
        let mounted = Mounted { tree: root, parts: Vec::new() };
        let sent = builder.send(mounted, daemon.resources.views.trees(&guest.name))?;
        if waits {
            self.connect().await?;
            match launch::admit(&sent.report) {
                // One that could not take a step has said so, which is read next.
                Err(error) if matches!(error.source.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
                told => told.map_err(|error| failure::call("starting the guest", guest.name.as_ref(), &error))?,
            }
        }
        Ok(sent)
    }

    /// Has a root put together by a thread while the guest is admitted here: either takes up to a millisecond. The plan
    /// is sent, or the root taken down, when both are done. The thread does not wait for that: there are only so many,
    /// and what a guest is admitted to may need one.
    async fn build_while_admitted(&self, builder: LaunchBuilder) -> Result<Sent, Fault> {
        let Self { daemon, guest, .. } = self;
        let root = layers::root(&daemon.places, guest);
        let (tell, told) = mpsc::sync_channel::<Admitted>(1);
        let building = in_thread(guest, move || {
            let mounted = builder.mount(&root)?;
            match told.try_recv() {
                Ok(admitted) => builder.send(mounted, admitted?).map(Built::Sent),
                Err(_) => Ok(Built::Early(Box::new((builder, mounted)), told)),
            }
        });
        let admitted = self.admit().await.map(|()| daemon.resources.views.trees(&guest.name));
        // Where the thread has failed nobody hears it.
        let _ = tell.send(admitted);
        match building.await? {
            Built::Sent(sent) => Ok(sent),
            Built::Early(early, told) => {
                // Volumes may lie where it takes long to get at them, and so may what a root that nobody gets was made
                // of.
                let sending = in_thread(guest, move || {
                    let (builder, mounted) = *early;
                    let unknown = |_| {
                        Err(Fault::new(FaultKind::Failed, "daemon", "it is not known whether the guest is admitted"))
                    };
                    builder.send(mounted, told.recv().unwrap_or_else(unknown)?)
                });
                sending.await
            }
        }
    }

    /// Gives the guest what it needs besides its files: its limits, its note, its network.
    async fn admit(&self) -> Result<(), Fault> {
        let network = self.connect();
        self.enroll()?;
        network.await?;
        crash::point("start.noted");
        Ok(())
    }

    /// Lets the guest onto its network.
    fn connect(&self) -> impl Future<Output = Result<(), Fault>> {
        address::admit(self.daemon, self.guest, &self.spec, (self.init.slot, &self.init.first))
    }

    /// Gives the guest its limits, and writes down that it starts.
    fn enroll(&self) -> Result<(), Fault> {
        let Self { daemon, guest, spec, init, errand } = self;
        daemon.resources.enter(&guest.name, spec, init.slot)?;
        daemon.resources.born(&guest.name, (&init.first, init.root()))?;
        let ephemeral = guest.ephemeral.then(|| EphemeralRecord {
            record: guest.record.borrow().clone(),
            spec: guest.spec.borrow().clone(),
            home: guest.home.clone(),
        });
        let (slot, boot, errand) = (init.slot, daemon.boot.clone(), *errand);
        let run = RunRecord { slot, boot, started: now(), errand, paused: false, log_is_kept: true, ephemeral };
        record::write_run(&daemon.places, &guest.name, &run)
            .map_err(|error| failure::call("noting that the guest starts", guest.name.as_ref(), &error))
    }

    /// Shows a guest that stands in its root already what its limits make of /proc.
    fn show_limits(&self) -> Result<(), Fault> {
        let trees = self.daemon.resources.views.trees(&self.guest.name);
        let Some(mounts) = self.init.mounts.as_ref().filter(|_| !trees.is_empty()) else { return Ok(()) };
        views::attach(trees, &self.init.first, mounts.as_fd())
            .map_err(|error| failure::call("showing the guest its limits", self.guest.name.as_ref(), &error))
    }
}

/// Whether a guest was admitted, and what its limits make of files in /proc then.
type Admitted = Result<Vec<(View, Tree)>, Fault>;

/// What came of putting a root together beside the guest's admission.
enum Built {
    /// The guest had been admitted, and its plan was sent.
    Sent(Sent),
    /// It was not known yet whether it is: here is what can be sent then, and where that is told.
    Early(Box<(LaunchBuilder, Mounted)>, mpsc::Receiver<Admitted>),
}

/// Begins something of a start that may take long, in a thread.
fn in_thread<T: Send + 'static>(
    guest: &Guest,
    act: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> impl Future<Output = Result<T, Fault>> {
    let (doing, name) = (tokio::task::spawn_blocking(act), guest.name.clone());
    async move {
        doing.await.unwrap_or_else(|error| {
            let message = format!("starting guest '{name}' failed inside Pando: {error}");
            Err(Fault::new(FaultKind::Failed, name.as_ref(), message))
        })
    }
}

/// A descriptor over which a first process says that its command has ended.
fn word() -> Result<OwnedFd, Fault> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| failure::io("making a descriptor", "daemon", &error.into()))
}

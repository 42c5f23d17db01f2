//! Freezing a running guest: its processes, their memory, and its files, at one instant.

use crate::clone::generation;
use crate::failure;
use crate::freeze::files_ahead::Ahead;
use crate::freeze::trial::{Trial, trial};
use crate::init::hooks;
use crate::init::hooks::Hooks;
use crate::init::launch_builder::LEGACY;
use crate::launch::hook_runs;
use crate::logs::Printed;
use crate::network::connections::Keeping;
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use crate::state::image::{Checkpoint, HeldImage, ImageRecord};
use crate::state::processes;
use crate::store::{layers, trash};
use pando_api::{Fault, FaultKind, Link, Network, Spec};
use pando_freeze::{
    Ends, FreezeError, Frozen, Given, GivenNetwork, GivenPlace, Manner, Outside, Subject, TaskIterator, Touched,
    freeze_and_end, freeze_with as freeze_processes,
};
use pando_guest::GuestName;
use pando_guest::Places;
use pando_guest::plan::{self, Mounted};
use pando_guest::root::{self, Layer, LayerStore, Root};
use pando_kernel::file::confined::Links;
use pando_kernel::file::tree_removal::remove_tree;
use pando_kernel::mount::{self, Tree};
use pando_kernel::process::held::HeldProcess;
use pando_kernel::{CallError, Context, process::pidfd, seccomp::unfiltered};
use pando_limit::disk::Image;
use pando_net::private::{GUEST_DEVICE, Place};
use pando_store::StoreError;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// How a guest is to be frozen.
#[derive(Debug)]
pub(crate) struct Order {
    /// The image's name, if it is not to be the guest's.
    pub(crate) image: Option<String>,
    /// Whether the guest ends where it was frozen.
    pub(crate) stop: bool,
    /// Whether the image is held in memory alone.
    pub(crate) memory: bool,
    /// Whether no clone of it is compared with what was frozen.
    pub(crate) unchecked: bool,
    /// Where a process of the guest waits to hear of it, if that asked for it.
    pub(crate) answer: Option<u32>,
}

/// What a thread needs to freeze a guest.
struct Scene {
    first: HeldProcess,
    /// What it prints into: device and inode.
    printed: Option<(u64, u64)>,
    /// Its own files, or the disk that they lie on.
    files: PathBuf,
    disk: Option<Image>,
    layer: PathBuf,
    manner: Manner,
    /// What the image's files are put together from, once the layer is there.
    root: Root,
    store: Arc<LayerStore>,
    caption: Caption,
    /// For a guest that is to end.
    end: Option<End>,
    keeping: Keeping,
    /// Whether this host has a unified cgroup hierarchy.
    unified: bool,
    /// What its device on the private network was given: addresses and routers, a hardware address.
    place: Option<(Place, [u8; 6])>,
    task_iterator: Arc<LazyLock<Option<TaskIterator>>>,
    touched: Arc<LazyLock<Option<Touched>>>,
}

/// What the record of an image says that its processes do not.
struct Caption {
    guest: String,
    spec: Spec,
    layers: Vec<String>,
    answer: Option<u32>,
    unchecked: bool,
}

/// How long a shim may take to answer. One that stands still is frozen by what is known of it.
const SHIMS_PATIENCE: Duration = Duration::from_secs(2);

/// How a guest ends where it was frozen.
struct End {
    /// Where its image is written before, and what that is called then: after this it is all that is left.
    kept: (PathBuf, PathBuf),
    /// The image that most of its memory may be of, on the disk.
    parent: Option<PathBuf>,
    /// What shows before that a guest comes of it again.
    trial: Option<Trial>,
}

/// Freezes a guest into an image.
pub(crate) async fn freeze(daemon: &Rc<Daemon>, guest: &Rc<Guest>, order: Order) -> Result<Arc<HeldImage>, Fault> {
    let name = crate::store::images::free_name(daemon, order.image.as_deref().unwrap_or(guest.name.as_ref()))?;
    if order.stop && order.memory {
        return Err(lost_with_the_daemon(&guest.name));
    }
    let _doing = guest.begin("frozen")?;
    let running = guest.life()?;
    guest.goes()?;
    // Its answer comes behind all that the shim was told before: right after a start it may not have heard of the log
    // yet, by which that is known here.
    let _ = tokio::time::timeout(SHIMS_PATIENCE, running.link.status()).await;
    let hooks = Hooks::find(guest, &running, hooks::FREEZE).await?;
    let was_up = guest.record.borrow().up;
    if order.stop {
        // Its restart policy has nothing to do with this end, which may come before all is done here.
        guest.is_wanted(&daemon.places, false);
    }
    let held = match hook_runs::run_before(&hooks, daemon, guest).await {
        Ok(()) => capture(daemon, guest, (name, &running), &order).await,
        Err(fault) => Err(fault),
    };
    if held.is_err() && was_up && guest.life().is_ok() {
        guest.is_wanted(&daemon.places, true);
    }
    if order.stop
        && let Ok(held) = &held
    {
        guest.record.borrow_mut().frozen_into = Some(held.name.clone());
        crate::lifecycle::kill::has_ended(guest).await?;
        guest.remember(&daemon.places)?;
    } else {
        hook_runs::run_after(&hooks, daemon, guest).await;
    }
    held
}

/// The same, when the guest has been told.
async fn capture(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    (name, running): (GuestName, &Running),
    order: &Order,
) -> Result<Arc<HeldImage>, Fault> {
    let (trial, places) = trial();
    let parent = guest.checkpoint();
    let end = order.stop.then(|| End::of(daemon, (&name, parent.as_ref()), Some(trial).filter(|_| !order.unchecked)));
    let name = name.to_string();
    let mut scene = Scene::of(daemon, guest, &name, running, end)?;
    (scene.caption.answer, scene.caption.unchecked) = (order.answer, order.unchecked);
    let (files, path) = (scene.root.files.clone(), scene.layer.clone());
    let _tracing = daemon.page_sharing.tracing.read().await;
    // Who has a filter of his own may not look behind another's.
    let freezing = tokio::task::spawn_blocking(move || unfiltered::run(move || scene.freeze()));
    let (frozen, ()) = tokio::join!(freezing, places.serve(daemon));
    let frozen = frozen.map_err(std::io::Error::other).and_then(|frozen| frozen).map_err(|error| {
        Fault::new(FaultKind::Failed, guest.name.as_ref(), format!("freezing the guest failed inside Pando: {error}"))
    });
    // It is there for nothing but the mount that has been made by now.
    crate::store::trash::discard(&daemon.places, &files);
    let frozen = frozen.and_then(|frozen| frozen.map_err(|error| fault(guest, &error))).inspect_err(|_| {
        crate::store::trash::discard(&daemon.places, &path);
    });
    let (frozen, record) = frozen?;
    let held = HeldImage::frozen(name.clone(), (record, frozen), parent);
    *guest.frozen_as.borrow_mut() = Some(held.checkpoint());
    if order.stop {
        held.note_kept();
    }
    daemon.images.borrow_mut().insert(name.clone(), Arc::clone(&held));
    daemon.roots.foresee(&held.roots());
    daemon.events.tell(guest.name.as_ref(), "freeze", Some(name));
    Ok(held)
}

/// The pid of what the guest's first process ran: its oldest child, in a guest that has a command.
fn command(frozen: &Frozen, command: &[String]) -> Option<i32> {
    let image = &frozen.image;
    let children = image.processes.iter().filter(|process| process.parent == image.init);
    children.map(|process| process.pid).min().filter(|_| !command.is_empty())
}

pub(crate) fn fault(guest: &Guest, error: &FreezeError) -> Fault {
    let name = guest.name.as_ref();
    match error {
        FreezeError::Call(error) => failure::call(&format!("freezing guest '{name}'"), name, error),
        FreezeError::Refused(_) => Fault::new(FaultKind::BadRequest, name, format!("guest '{name}' {error}")),
        other => Fault::new(FaultKind::Failed, name, format!("freezing guest '{name}' failed: {other}")),
    }
}

/// An image in memory alone goes with the daemon, and would be all that is left of a guest that has ended.
fn lost_with_the_daemon(guest: &GuestName) -> Fault {
    let message = format!(
        "guest '{guest}' is not frozen: held in memory alone its image goes with the daemon, and the guest with it, which is to end; leave out --memory, or --stop"
    );
    failure::bad(guest.as_ref(), message)
}

impl End {
    fn of(daemon: &Daemon, (name, parent): (&GuestName, Option<&Checkpoint>), trial: Option<Trial>) -> Self {
        Self {
            parent: parent.and_then(|parent| crate::store::images::directory_of(daemon, parent)),
            kept: (crate::store::images::new_directory(&daemon.places), daemon.places.images().join(name.as_ref())),
            trial,
        }
    }

    /// Keeps the image on the disk, where it is to be, if a guest comes of it again. Blocking.
    fn keep(self, frozen: &Frozen, record: &ImageRecord) -> Result<(), FreezeError> {
        if let Some(trial) = self.trial {
            trial.make(frozen, record)?;
        }
        let (new, settled) = &self.kept;
        let written = crate::state::image::keep(new, (record, frozen), self.parent.as_deref())
            .and_then(|()| settle(new, settled));
        if written.is_err() {
            drop(remove_tree(new));
        }
        written?;
        crate::crash::point("freeze.kept");
        Ok(())
    }
}

/// Gives an image its name for good, unless there is one of that name by now.
fn settle(new: &Path, settled: &Path) -> Result<(), CallError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let what = || format!("writing {}", settled.display());
    renameat_with(CWD, new, CWD, settled, RenameFlags::NOREPLACE).context(what)?;
    let images = settled.parent().unwrap_or(settled);
    std::fs::File::open(images).and_then(|directory| directory.sync_all()).context(what)
}

/// The path of a tree that is mounted nowhere, for programs that we start, too.
fn seen(tree: &Tree) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), tree.as_fd().as_raw_fd()))
}

impl Scene {
    fn of(daemon: &Daemon, guest: &Guest, name: &str, running: &Running, end: Option<End>) -> Result<Self, Fault> {
        let (first, slot) = (running.first.clone(), running.slot);
        let spec = guest.spec.borrow().clone();
        refuse_around(&daemon.places, guest)?;
        let layer = format!("{name}-{}", trash::unique());
        let path = daemon.places.layers().join(&layer);
        let mut below = layers::root(&daemon.places, guest);
        let files = below.files.clone();
        // The copy of its files has all the room there is.
        below.bounded = None;
        let disk = below.disk.take();
        below.layers.insert(0, Layer::Tree(path.clone()));
        below.files = path.with_file_name(format!("{layer}.files"));
        below.passing = true;
        let mut layers = guest.record.borrow().layers.clone();
        layers.insert(0, layer);
        Ok(Self {
            first,
            printed: printed(daemon, guest, running),
            files,
            disk,
            layer: path,
            // What it writes to while its memory is copied is there twice, which a limit might not allow.
            manner: if spec.memory.limit.is_none() { Manner::Snapshots } else { Manner::AtRest },
            root: below,
            store: Arc::clone(&daemon.store),
            keeping: Keeping::of(daemon, &spec, (slot, name)),
            unified: daemon.unified,
            place: daemon.private.place(slot),
            task_iterator: Arc::clone(&daemon.task_iterator),
            touched: Arc::clone(&daemon.touched),
            caption: Caption { guest: guest.name.to_string(), spec, layers, answer: None, unchecked: false },
            end,
        })
    }

    /// Freezes the guest. Blocking.
    fn freeze(mut self) -> Result<(Frozen, ImageRecord), FreezeError> {
        let outside = Vec::from_iter(self.printed.map(|(device, inode)| Outside { device, inode }));
        let whole = self.caption.spec.init.is_some();
        let network = given_network(&self.caption.spec, self.place.as_ref());
        let (given, host_devices) = (given(&self.caption.spec, self.unified), host_devices()?);
        let own_memory = self.caption.spec.tmpfs.iter().map(|tmpfs| tmpfs.target.as_str());
        let in_memory: Vec<&str> = ["/dev", "/dev/shm"].into_iter().chain(own_memory).collect();
        let subject = Subject {
            init: self.first.pid(),
            held: Some(&self.first),
            whole,
            console: whole.then(|| console(&self.first)).flatten(),
            outside: &outside,
            in_memory: &in_memory,
            own_files: &[generation::PATH],
            given: &given,
            host_devices: &host_devices,
            network: network.as_ref(),
            task_iterator: self.task_iterator.as_ref().as_ref(),
        };
        root::prepare(&self.root.files)?;
        let disk = self.disk.as_ref().map(Image::look).transpose()?;
        let files = disk.as_ref().map_or_else(|| self.files.clone(), seen);
        let ahead = Ahead::begin(&files.join("upper"), &self.layer, || {
            // What will be refused need not be copied for it.
            let free = pando_freeze::survey(&subject).is_ok_and(|refusals| refusals.is_empty());
            free.then(|| pando_freeze::written_mappings(&subject).ok()).flatten()
        });
        // Loaded while the guest runs, if it is not yet.
        let touched = self.touched.as_ref().as_ref();
        let root = || {
            let mounted = self.root.mount(None, &self.store);
            mounted.map(|mounted| OwnedFd::from(mounted.tree)).map_err(StoreError::into_call)
        };
        let frozen = match self.end.take() {
            None => freeze_processes(&subject, self.manner, || ahead.finish(touched), |()| root())?,
            Some(end) => {
                let at_rest = || ahead.finish(touched).and_then(|()| root());
                let mut withheld = Vec::new();
                let withhold = |all: &[Ends]| {
                    withheld = all.to_vec();
                    self.keeping.begin(all)
                };
                let keep = |frozen: &Frozen| end.keep(frozen, &self.record(frozen));
                freeze_and_end(&subject, withhold, at_rest, keep).inspect_err(|_| self.keeping.give_up(&withheld))?
            }
        };
        let record = self.record(&frozen);
        if record.unchecked {
            frozen.take_as_alike();
        }
        Ok((frozen, record))
    }

    fn record(&self, frozen: &Frozen) -> ImageRecord {
        let connections = self.keeping.good(&frozen.connections);
        ImageRecord { connections, ..self.caption.record(frozen) }
    }
}

/// An image's files are laid over the layers of its guest: over none in which they would lie themselves, as below the
/// host's own root.
fn refuse_around(places: &Places, guest: &Guest) -> Result<(), Fault> {
    let own = places.layers();
    let device = |path: &Path| std::fs::metadata(path).map(|about| about.dev()).ok();
    let lies_in = |layer: &String| {
        let layer = layers::path(places, layer);
        own.starts_with(&layer) && device(&own) == device(&layer)
    };
    let record = guest.record.borrow();
    if !record.layers.iter().any(lies_in) {
        return Ok(());
    }
    let name = &guest.name;
    let message = format!(
        "guest '{name}' cannot be frozen: it runs over the host's own files, and {}, where its image would lie, is among them; \
             use 'pando create --from host', which takes a copy, or keep Pando's state on a disk of its own",
        own.display()
    );
    Err(failure::bad(name.as_ref(), message))
}

/// What a guest prints into, of which each clone has its own: device and inode. It is the log itself where an earlier
/// Pando started the guest.
pub(crate) fn printed(daemon: &Daemon, guest: &Guest, running: &Running) -> Option<(u64, u64)> {
    let printed = if pidfd::has_ended(&running.shim) {
        Printed::orphaned(&processes::pids(&daemon.field, running.slot))
    } else {
        Printed::of(&running.shim).ok().flatten()
    };
    match printed {
        Some(printed) => Some(printed.identity),
        None => std::fs::metadata(guest.log(&daemon.places)).map(|log| (log.dev(), log.ino())).ok(),
    }
}

/// The number of the terminal that a guest has for a console.
fn console(first: &HeldProcess) -> Option<u32> {
    const TERMINALS: u32 = 136;
    let place = first.root().ok()?.place("/dev/console", Links::Followed).ok()?;
    let device = place.about().ok()?.st_rdev;
    (rustix::fs::major(device) == TERMINALS).then(|| rustix::fs::minor(device))
}

/// What is mounted in any guest of a spec. Where its plan cannot be made nobody can say, and nothing is compared.
fn given(spec: &Spec, unified: bool) -> Vec<Given> {
    let one = |mounted: Mounted| Given {
        path: mounted.path,
        kind: mounted.kind,
        attributes: mounted.attributes.map(|all| u64::from(all.bits())),
        always: mounted.always,
    };
    plan::mounted(spec, unified, &LEGACY).unwrap_or_default().into_iter().map(one).collect()
}

/// What is given to a guest of a spec in a network namespace of its own, if it has one.
fn given_network(spec: &Spec, place: Option<&(Place, [u8; 6])>) -> Option<GivenNetwork> {
    // As a guest's shim sets them.
    const OPEN: [(&str, &str); 2] =
        [("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"), ("/proc/sys/net/ipv4/ping_group_range", "0 65535")];
    if spec.network.is_the_hosts() {
        return None;
    }
    let connected = spec.network == Network::Private;
    let of_pair = |(place, hardware): &(Place, [u8; 6])| GivenPlace {
        addresses: place.own.iter().map(|own| (own.ip, own.prefix)).collect(),
        gateways: place.gateways.clone(),
        hardware: hardware.to_vec(),
    };
    let place = (spec.link != Link::Macvlan).then(|| place.map(of_pair).unwrap_or_default());
    let settings = OPEN.map(|(path, value)| (path.to_owned(), value.to_owned())).to_vec();
    Some(GivenNetwork { device: connected.then(|| GUEST_DEVICE.to_owned()), place, settings })
}

/// The devices that the host's file systems are on.
fn host_devices() -> Result<Vec<String>, CallError> {
    let devices: BTreeSet<String> = mount::mounts()?.into_iter().map(|mount| mount.device).collect();
    Ok(devices.into_iter().collect())
}

impl Caption {
    fn record(&self, frozen: &Frozen) -> ImageRecord {
        let command = command(frozen, &self.spec.command);
        let record = ImageRecord::new(self.guest.clone(), self.spec.clone(), self.layers.clone(), command, frozen);
        ImageRecord { answer: self.answer, unchecked: self.unchecked, ..record }
    }
}

//! Making a guest that lasts: its layer first, then its directory, which appears by one rename.

use crate::launch::host_devices;
use crate::lifecycle::start;
use crate::network::{free_port, named_networks};
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::guest::Guest;
use crate::state::record;
use crate::state::record::{GuestRecord, RECORD, SPEC};
use crate::store::layers::{MadeLayer, Maker};
use crate::store::{exposed, layers, pulled_images, volumes};
use crate::{crash, failure};
use pando_api::{Fault, FaultKind, GuestState, Link, Network, Progress, Spec, is_volume_name};
use pando_guest::Places;
use pando_guest::account::Account;
use pando_guest::plan::{self, Facts, Heritage, Program, Stdio};
use pando_guest::root::{LayerStore, Root};
use pando_guest::source::Source;
use pando_guest::{GuestName, root};
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_kernel::mount::Tree;
use pando_limit::limits::Disk;
use pando_store::StoreError;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

/// What `create` was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) source: Option<String>,
    pub(crate) spec: Spec,
    pub(crate) start: bool,
}

/// Makes the guest, and starts it if that is wanted. Answers what of its source it has not, a sentence each.
pub(crate) async fn create(
    daemon: &Rc<Daemon>,
    order: Order,
    progress: mpsc::Sender<Progress>,
) -> Result<Vec<String>, Fault> {
    let name: GuestName = order.name.parse().map_err(|error| failure::bad_name(&order.name, &error))?;
    let source = layers::parse(order.source.as_deref())?;
    check(&name, &order.spec)?;
    let limits = daemon.resources.borne(&order.spec)?;
    let _name = daemon.reserve(&name).await?;
    crash::point("create.begun");
    let mut spec = order.spec;
    resolve(daemon, &mut spec)?;
    let made = layer(daemon, &name, &source, &spec, progress).await?;
    crash::point("create.layered");
    layers::complete(&mut spec, &made.suggested);
    // Its network may have been removed meanwhile.
    let checked = check(&name, &spec).and_then(|()| named_networks::check(daemon, &spec));
    if let Err(fault) = checked.and_then(|()| free_port::choose(daemon, &mut spec)) {
        crate::store::unused_layers::discard_layer(daemon, &made.name);
        return Err(fault);
    }
    let record = GuestRecord {
        source: source.to_string(),
        created: now(),
        layers: vec![made.name.clone()],
        exit_code: None,
        oom_kills: None,
        up: false,
        restarts: 0,
        frozen_into: None,
        image_created: None,
    };
    if let Err(fault) = settle(&daemon.places, &name, &record, &spec, &limits.disk) {
        crate::store::unused_layers::discard_layer(daemon, &made.name);
        return Err(fault);
    }
    crash::point("create.settled");
    let guest = Guest::new(name.clone(), record, spec);
    daemon.guests.borrow_mut().insert(name, Rc::clone(&guest));
    drop(made.lease);
    daemon.events.tell(guest.name.as_ref(), "create", Some(source.to_string()));
    if order.start {
        start::start(daemon, &guest).await?;
    }
    Ok(made.warnings)
}

/// Looks for what a spec names of this Pando's and of the host's, and makes the volumes that are missing.
pub(crate) fn resolve(daemon: &Daemon, spec: &mut Spec) -> Result<(), Fault> {
    named_networks::check(daemon, spec)?;
    host_devices::check(daemon, spec)?;
    volumes::resolve(daemon, spec)
}

/// How many seconds a guest may take to stop: a day.
const LONGEST_GRACE: u32 = 24 * 60 * 60;

/// Looks for everything in a spec that would keep the guest from starting, before anything is made.
pub(crate) fn check(name: &GuestName, spec: &Spec) -> Result<(), Fault> {
    check_plan(name, spec)?;
    check_words(spec)
}

/// The same for an image's, which is a guest's later, and perhaps on another machine.
pub(crate) fn check_image(name: &GuestName, spec: &Spec) -> Result<(), Fault> {
    check_plan(name, spec)?;
    check_sense(spec)
}

/// Whether the spec can be turned into a plan.
pub(crate) fn check_plan(name: &GuestName, spec: &Spec) -> Result<(), Fault> {
    let facts = Facts {
        name: name.to_string(),
        unified: true,
        legacy: Vec::new(),
        file_volumes: Vec::new(),
        heritage: Heritage::None,
        views: Vec::new(),
        awaited: false,
        admitted: true,
    };
    let command: Vec<_> = spec.init.iter().cloned().chain(spec.command.iter().cloned()).collect();
    let program = (!command.is_empty()).then(|| Program {
        command,
        env: BTreeMap::new(),
        workdir: None,
        account: Account::root(),
        stdio: Stdio::Given,
        sent_along: false,
    });
    plan::of_init(spec, &facts, program.as_ref()).map(drop).map_err(|error| failure::bad_plan(name, &error))
}

/// Whether what no plan holds makes sense, here and now.
pub(crate) fn check_words(spec: &Spec) -> Result<(), Fault> {
    check_sense(spec)?;
    // Those that are known by a name are made.
    for volume in spec.volumes.iter().filter(|volume| !is_volume_name(&volume.source)) {
        if !volume.source.starts_with('/') {
            let message = format!("volume {}: the host's path is not absolute; write it from / on", volume.source);
            return Err(failure::bad(&volume.source, message));
        }
        std::fs::metadata(&volume.source).map_err(|error| {
            let message =
                format!("volume {}: the host's path cannot be used: {}", volume.source, failure::reason(&error));
            Fault::new(FaultKind::BadRequest, volume.source.as_str(), message)
        })?;
    }
    Ok(())
}

/// Whether what no plan holds makes sense, wherever the guest is to run.
pub(crate) fn check_sense(spec: &Spec) -> Result<(), Fault> {
    crate::network::address::check(spec)?;
    if let Some(init) = spec.init.as_ref().filter(|init| !init.starts_with('/')) {
        return Err(failure::bad(
            init,
            format!("--init '{init}' is not an absolute path inside the guest; for example /sbin/init"),
        ));
    }
    if spec.publish_all && (spec.network != Network::Private || spec.link == Link::Macvlan) {
        let message = "ports can be published (publish_all) only for a guest behind the host; use --net private";
        return Err(failure::bad("publish_all", message));
    }
    if spec.entrypoint.is_some() && spec.init.is_some() {
        let message = "a guest runs its own init (init) or a program with arguments (entrypoint), and not both; what stands after the options is the init's arguments";
        return Err(failure::bad("entrypoint", message));
    }
    if let Some(text) = spec.stop_signal.as_ref().filter(|text| pando_kernel::process::signal::number(text).is_none()) {
        return Err(failure::bad(
            text,
            format!("'{text}' is not a signal; use a name such as TERM, a number from 1 to 64, or RTMIN+N"),
        ));
    }
    if let Some(seconds) = spec.stop_grace.filter(|seconds| *seconds > LONGEST_GRACE) {
        let message = format!("a stop timeout of {seconds} s is longer than a day; use {LONGEST_GRACE} or less");
        return Err(failure::bad("stop_grace", message));
    }
    Ok(())
}

/// Makes the guest's layer on another thread.
pub(crate) async fn layer(
    daemon: &Rc<Daemon>,
    name: &GuestName,
    source: &Source,
    spec: &Spec,
    progress: mpsc::Sender<Progress>,
) -> Result<MadeLayer, Fault> {
    if let Source::Docker(reference) = source {
        return pulled_images::layer(daemon, reference.clone(), progress).await;
    }
    let other = match source {
        Source::Guest(other) => Some(at_rest(daemon, other).await?),
        _ => None,
    };
    let tree = other.as_ref().map(|(_, tree)| tree);
    // As it is found now. One that cannot be found is told of when it is taken.
    let source = &match source {
        Source::Directory(path) if path.exists() => {
            Source::Directory(exposed::directory_of(daemon, path)?.path().to_owned())
        }
        source => source.clone(),
    };
    let exposed = exposed::paths(daemon, source, spec)?;
    let exposed = exposed.into_iter().filter_map(|path| path.into_os_string().into_string().ok()).collect();
    let maker = Maker {
        places: daemon.places.clone(),
        source: source.clone(),
        // Where that leads counts as well.
        spec: Spec { expose: exposed, ..spec.clone() },
        name: name.to_string(),
        owner: format!("guest '{name}'"),
        layout: None,
        guest_tree: tree.map(|tree| PathBuf::from(format!("/proc/self/fd/{}", tree.as_fd().as_raw_fd()))),
        store: Arc::clone(&daemon.store),
        progress,
    };
    let made = tokio::task::spawn_blocking(move || maker.make()).await;
    drop(other);
    made.map_err(|error| {
        Fault::new(FaultKind::Failed, name.as_ref(), format!("making guest '{name}' failed inside Pando: {error}"))
    })?
}

/// The files of another guest that does not run, and the promise that it will not for as long as they are held.
pub(crate) async fn at_rest(daemon: &Rc<Daemon>, name: &str) -> Result<(crate::state::guest::Doing, Tree), Fault> {
    let guest = daemon.guest(name)?;
    let doing = guest.begin("copied")?;
    if guest.state.get() != GuestState::Stopped {
        return Err(failure::running(
            &guest.name,
            "stop it first: the files of a running guest change while they are copied",
        ));
    }
    let root = layers::root(&daemon.places, &guest);
    let store = Arc::clone(&daemon.store);
    // Not on this thread: it may be this one that lets go of the guest's disk, which is waited for.
    let tree = tokio::task::spawn_blocking(move || whole(&root, &store)).await.map_err(|error| {
        Fault::new(FaultKind::Failed, name, format!("opening the files of guest '{name}' failed inside Pando: {error}"))
    })?;
    let tree = tree.map_err(|error| failure::store("opening the guest's files", name, &error))?;
    Ok((doing, tree))
}

fn whole(root: &Root, store: &LayerStore) -> Result<Tree, StoreError> {
    root::prepare(&root.files)?;
    root.mount(None, store).map(|mounted| mounted.tree)
}

/// The guest's directory, with all that makes it one.
pub(crate) fn settle(
    places: &Places,
    name: &GuestName,
    record: &GuestRecord,
    spec: &Spec,
    disk: &Disk,
) -> Result<(), Fault> {
    let make = |new: &Path| -> Result<(), pando_kernel::CallError> {
        use pando_kernel::Context;
        record::write_kept(&new.join(RECORD), record)?;
        record::write_kept(&new.join(SPEC), spec)?;
        if let Some(size) = disk.size {
            // Who is root on the host inside as well could take his files out of their project.
            record::room(new).make(size, disk.inodes, spec.user_namespace)?;
        }
        root::prepare(&new.join(record::FILES))?;
        crash::point("create.written");
        let guest = places.guest(name);
        std::fs::rename(new, &guest).context(|| format!("making {}", guest.display()))?;
        let guests =
            std::fs::File::open(places.guests()).context(|| format!("opening {}", places.guests().display()))?;
        guests.sync_all().context(|| format!("writing {}", places.guests().display()))
    };
    let new = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(places.guests())
        .map_err(|error| failure::io("making the guest's directory", name.as_ref(), &error))?;
    let mut new = TemporaryDirectory::of(new.keep());
    make(new.path()).map_err(|error| failure::call(&format!("creating guest '{name}'"), name.as_ref(), &error))?;
    let _renamed = new.keep();
    Ok(())
}

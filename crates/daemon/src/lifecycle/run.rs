//! A fresh guest for one command, gone with it.

use crate::failure;
use crate::init::prewarmed::Ready;
use crate::init::program::{ProgramRequest, program_request};
use crate::launch::boot::{Task, boot};
use crate::launch::mounts_below;
use crate::lifecycle::create;
use crate::network::{free_port, named_networks};
use crate::state::daemon::Daemon;
use crate::state::ending;
use crate::state::events::now;
use crate::state::guest::{Guest, Running};
use crate::state::record::GuestRecord;
use crate::store::{exposed, layers};
use crate::warm::ready_files::Files;
use crate::warm::ready_roots::{ReadyRoot, RootKind};
use pando_api::{Fault, Process, Profile, SeccompProfile, Spec};
use pando_guest::GuestName;
use pando_guest::plan::{PrewarmedKind, Stdio};
use pando_guest::source::{Source, Suggested};
use pando_store::Lease;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;

/// What `run` was asked for.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) name: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) spec: Spec,
    pub(crate) process: Process,
    pub(crate) stdio: Vec<OwnedFd>,
}

/// A guest that was started, with what its user has to know of it.
pub(crate) struct Started {
    pub(crate) guest: Rc<Guest>,
    pub(crate) running: Rc<Running>,
    pub(crate) note: Option<String>,
}

/// Starts it. It ends by itself.
pub(crate) async fn run(daemon: &Rc<Daemon>, order: Order) -> Result<Started, Fault> {
    let Order { name, source, mut spec, process, stdio } = order;
    let name = match name {
        Some(name) => name.parse().map_err(|error| failure::bad_name(&name, &error))?,
        None => daemon.invent_name(),
    };
    let source = layers::parse(source.as_deref())?;
    be_strict(&source, &mut spec);
    create::check_words(&spec)?;
    if spec.disk.size.is_some() {
        let message = "a guest that goes away with its command has no disk of its own; give --disk to 'pando create'";
        return Err(failure::bad("disk.size", message));
    }
    if !spec.restart.is_no() || spec.boot.autostart {
        let message = "a guest of 'run' goes away with its command, and nothing is left to be started again; 'pando create NAME --start --restart POLICY' makes one that lasts";
        return Err(failure::bad("restart", message));
    }
    let reservation = daemon.reserve(&name).await?;
    create::resolve(daemon, &mut spec)?;
    let found = exposed::of_source(daemon, &source)?;
    let note = found.as_ref().map(|found| mounts_below::show(found.path(), &mut spec)).transpose()?.flatten();
    let exposed = exposed::paths(daemon, &source, &spec)?;
    let (layers, lease) = match layers::live(&source, found.as_ref(), &exposed)? {
        // Its plan is made at once, before anything that would have to be undone.
        Some(layers) => {
            layers::complete(&mut spec, &Suggested::default());
            (layers, None)
        }
        None => {
            create::check_plan(&name, &spec)?;
            unpacked(daemon, &name, &source, &mut spec).await?
        }
    };
    free_port::choose(daemon, &mut spec)?;
    let request = request(&spec, process, &stdio)?;
    let record = GuestRecord {
        source: source.to_string(),
        created: now(),
        layers,
        exit_code: None,
        oom_kills: None,
        up: false,
        restarts: 0,
        frozen_into: None,
        image_created: None,
    };
    let shown = request.command.clone();
    spec.command = if spec.init.is_some() { Vec::new() } else { shown };
    let (files, ready) = files(daemon, (&source, &exposed), &record.layers, &mut spec).await?;
    let guest = Guest::passing(name.clone(), files.keep(), record, spec);
    let _doing = guest.begin("started")?;
    daemon.guests.borrow_mut().insert(name, Rc::clone(&guest));
    drop(reservation);
    drop(lease);
    // Its network may have been removed meanwhile; from here on that sees it.
    let admitted = named_networks::check(daemon, &guest.spec.borrow());
    let admitted = admitted.and_then(|()| crate::resources::admission::check_guest(daemon, &guest));
    let booted = match admitted {
        Ok(()) => boot(daemon, &guest, Task::Run(request), stdio, ready).await,
        Err(fault) => {
            ready.into_iter().for_each(|ready| daemon.pool.discard(ready.init));
            Err(fault)
        }
    };
    match booted {
        Ok(running) => Ok(Started { guest, running, note }),
        Err(fault) => {
            crate::lifecycle::forget::forget(daemon, &guest);
            Err(fault)
        }
    }
}

/// What runs over the host's own files for one command is held as code that nobody vouches for, unless whoever runs it
/// says otherwise: by a profile, by more capabilities, without the filter, or with an init.
fn be_strict(source: &Source, spec: &mut Spec) {
    let says_otherwise = spec.profile.is_some()
        || spec.init.is_some()
        || !spec.cap_add.is_empty()
        || spec.seccomp != SeccompProfile::Default;
    if *source == Source::Host && !says_otherwise {
        spec.profile = Some(Profile::Strict);
    }
}

/// The guest's own files, and the root file system over them if one was made ahead.
async fn files(
    daemon: &Rc<Daemon>,
    (source, exposed): (&Source, &[PathBuf]),
    layers: &[String],
    spec: &mut Spec,
) -> Result<(Files, Option<Ready>), Fault> {
    let kind = daemon.files.kind(source, exposed, spec);
    let live = matches!(source, Source::Host | Source::Directory(_));
    let root = live.then(|| RootKind::new(&daemon.places, PrewarmedKind::of(spec), layers, &kind)).flatten();
    match root.and_then(|root| daemon.roots.take(root)) {
        Some(ReadyRoot { ready, files }) => Ok((files, Some(ready))),
        None => Ok((daemon.files.take(kind).await?, None)),
    }
}

/// A source that has to be unpacked is unpacked for this guest alone.
async fn unpacked(
    daemon: &Rc<Daemon>,
    name: &GuestName,
    source: &Source,
    spec: &mut Spec,
) -> Result<(Vec<String>, Option<Lease>), Fault> {
    let (progress, _nobody) = mpsc::channel();
    let made = create::layer(daemon, name, source, spec, progress).await?;
    layers::complete(spec, &made.suggested);
    Ok((vec![made.name], made.lease))
}

fn request(spec: &Spec, process: Process, stdio: &[OwnedFd]) -> Result<ProgramRequest, Fault> {
    let given = if process.command.is_empty() { spec.command.clone() } else { process.command.clone() };
    let command: Vec<_> = spec.init.iter().cloned().chain(given).collect();
    if command.is_empty() {
        return Err(failure::bad("command", "there is nothing to run; name a command, for example: pando run -- sh"));
    }
    let detached = process.detached;
    let request = ProgramRequest { command, ..program_request(process, stdio)? };
    Ok(match detached && spec.init.is_some() {
        // A system expects a console, which is its log then.
        true => ProgramRequest { stdio: Stdio::Console, ..request },
        false => request,
    })
}

/// How it ended, told before it is cleared away.
pub(crate) async fn outcome(running: &Running) -> Option<i32> {
    let mut over = running.over.subscribe();
    let ending = over.wait_for(Option::is_some).await;
    ending.ok().and_then(|ending| *ending).and_then(ending::Ending::exit_code)
}

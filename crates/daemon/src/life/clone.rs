//! Guests out of an image: a first process as any guest's, and below it the frozen processes.

use super::boot::{Task, boot};
use super::{create, stop};
use crate::daemon::Daemon;
use crate::events::now;
use crate::failure;
use crate::guest::{Guest, Running};
use crate::image::HeldImage;
use crate::record::GuestRecord;
use pando_api::{Fault, FaultKind};
use pando_freeze::{CloneError, Target};
use pando_guest::{GuestName, slot};
use pando_kernel::fs_owner::FsOwner;
use pando_kernel::{CallError, Context};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// Makes a guest out of an image. On failure nothing is left.
pub(crate) async fn clone(daemon: &Rc<Daemon>, image: &str, name: &str) -> Result<(), Fault> {
    let held = daemon.images.borrow().get(image).cloned().ok_or_else(|| no_such_image(image))?;
    let name: GuestName = name.parse().map_err(|error| failure::bad_name(name, &error))?;
    let _name = daemon.reserve(&name).await?;
    let mut spec = held.spec.clone();
    // The host name, the addresses and the ports that were chosen for the frozen guest are the frozen guest's.
    spec.hostname = None;
    spec.addresses.clear();
    spec.publish.clear();
    let limits = daemon.resources.borne(&spec)?;
    let record =
        GuestRecord { source: format!("image:{image}"), created: now(), layers: held.layers.clone(), exit_code: None };
    create::settle(daemon, &name, &record, &spec, &limits.disk)?;
    let guest = Guest::new(name.clone(), false, record, spec);
    daemon.guests.borrow_mut().insert(name, Rc::clone(&guest));
    daemon.events.tell(guest.name.as_ref(), "clone", Some(image.to_owned()));
    let started = start(daemon, &guest, held).await;
    if started.is_err() {
        let _ = super::remove::remove(daemon, &guest, true).await;
    }
    started
}

/// No image of that name.
pub(crate) fn no_such_image(name: &str) -> Fault {
    Fault::new(
        FaultKind::NoSuchGuest,
        name,
        format!("there is no image '{name}'; 'pando images' lists those there are"),
    )
}

async fn start(daemon: &Rc<Daemon>, guest: &Rc<Guest>, held: Arc<HeldImage>) -> Result<(), Fault> {
    let task = held.command.map_or(Task::Idle, Task::Adopt);
    let running = boot(daemon, guest, task, Vec::new(), None).await?;
    let nest = Nest::new(daemon, guest, &running)
        .map_err(|error| failure::call("making a clone", guest.name.as_ref(), &error))?;
    let outcome = tokio::task::spawn_blocking(move || nest.fill(&held)).await;
    let fault = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => {
            Fault::new(FaultKind::Failed, guest.name.as_ref(), format!("cloning '{}' failed: {error}", guest.name))
        }
        Err(error) => {
            let message = format!("making clone '{}' failed inside Pando: {error}", guest.name);
            Fault::new(FaultKind::Failed, guest.name.as_ref(), message)
        }
    };
    let _ = stop::force(guest, &running).await;
    Err(fault)
}

/// A guest whose first process waits for the frozen processes.
struct Nest {
    init: i32,
    cgroup: Option<OwnedFd>,
    tasks: Vec<OwnedFd>,
    log: PathBuf,
    first_id: Option<u32>,
}

impl Nest {
    fn new(daemon: &Daemon, guest: &Guest, running: &Running) -> Result<Self, CallError> {
        let plot = daemon.field.plot(running.slot);
        let open =
            |path: PathBuf| File::open(&path).map(OwnedFd::from).context(|| format!("opening {}", path.display()));
        Ok(Self {
            init: running.pid,
            cgroup: plot.guest().map(open).transpose()?,
            tasks: plot.entrances()?.tasks,
            log: guest.log(&daemon.places),
            first_id: running.namespace.as_ref().map(|_| slot::first_id(running.slot)),
        })
    }

    /// Gives the guest its identity and its processes. Blocking.
    fn fill(&self, held: &HeldImage) -> Result<(), CloneError> {
        self.name_machine()?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .context(|| format!("opening {}", self.log.display()))?;
        let groups: Vec<BorrowedFd<'_>> = self.tasks.iter().map(AsFd::as_fd).collect();
        let target = Target {
            init: self.init,
            cgroup: self.cgroup.as_ref().map(AsFd::as_fd),
            groups: &groups,
            supplied: &[log.as_fd()],
        };
        let ready = held.frozen.holder.clone_into(&target)?;
        Ok(ready.go()?)
    }

    /// A machine id of its own (machine-id(5)), where the guest has one.
    fn name_machine(&self) -> Result<(), CallError> {
        let what = || "giving the clone a machine id".to_owned();
        let root = File::open(format!("/proc/{}/root", self.init)).context(what)?;
        let _as_owner = self.first_id.map(FsOwner::assume).transpose().context(what)?;
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat2(&root, "etc/machine-id", flags, Mode::empty(), confined) {
            // A guest without one, or one that keeps it elsewhere.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => return Ok(()),
            opened => opened.context(what)?,
        };
        if !rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file).context(what)?.st_mode).is_file() {
            return Ok(());
        }
        let mut random = [0_u8; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).context(what)?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        rustix::fs::ftruncate(&file, 0).context(what)?;
        File::from(file).write_all(format!("{id}\n").as_bytes()).context(what)
    }
}

/// Forgets an image. Clones that were made of it live on.
pub(crate) fn remove_image(daemon: &Rc<Daemon>, name: &str) -> Result<(), Fault> {
    let held = daemon.images.borrow_mut().remove(name).ok_or_else(|| no_such_image(name))?;
    super::remove::discard_unused(daemon, &held.layers);
    daemon.events.tell(name, "image-remove", None);
    super::remove::empty_trash(daemon.places.clone());
    // The holder may have gigabytes to give back.
    drop(tokio::task::spawn_blocking(move || drop(held)));
    Ok(())
}

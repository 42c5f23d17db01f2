//! From a guest at rest to a running one: a seed, a root file system, a plan, and the first process.

use crate::daemon::Daemon;
use crate::events::now;
use crate::guest::{Guest, Running};
use crate::pool::ReadySeed;
use crate::record::{self, EphemeralRecord, RunRecord};
use crate::{crash, failure};
use pando_api::{Fault, FaultKind, GuestState, Network, Spec};
use pando_guest::account::{self, Account};
use pando_guest::launch::{Launched, Supplies, launch};
use pando_guest::plan::{self, Facts, Plan, Program, Stdio};
use pando_guest::root::{self, Mounted, Owner, Root};
use pando_guest::seed::{SeedLink, read_report};
use pando_guest::spawner::SeedKind;
use pando_guest::{slot, volume};
use pando_kernel::mount::Tree;
use pando_seed::Report;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
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

/// Everything that a thread needs to put a guest's first process together.
struct Site {
    name: String,
    spec: Spec,
    root: Root,
    owner: Option<(OwnedFd, u32)>,
    cgroup: Option<PathBuf>,
    empty: PathBuf,
    stdio: Vec<OwnedFd>,
    wish: Option<SiteWish>,
    seed: SeedLink,
}

/// A wish without what cannot go to another thread.
struct SiteWish {
    wish: Program,
    user: String,
    program: Option<OwnedFd>,
}

/// Starts a guest's first process, and what it is to run below. On failure nothing is left.
pub(crate) async fn boot(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    wish: Option<Wish>,
    stdio: Vec<OwnedFd>,
) -> Result<Rc<Running>, Fault> {
    guest.state.set(GuestState::Starting);
    daemon.lull.disturb();
    let booted = attempt(daemon, guest, wish, stdio).await;
    match &booted {
        Ok(running) => {
            crash::point("start.born");
            *guest.running.borrow_mut() = Some(Rc::clone(running));
            guest.state.set(GuestState::Running);
            daemon.events.tell(guest.name.as_ref(), "start", None);
            super::end::watch(daemon, guest, running);
        }
        Err(_) => guest.state.set(GuestState::Stopped),
    }
    booted
}

async fn attempt(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    wish: Option<Wish>,
    stdio: Vec<OwnedFd>,
) -> Result<Rc<Running>, Fault> {
    let name = guest.name.to_string();
    let spec = guest.spec.borrow().clone();
    let kind = SeedKind { user_namespace: spec.user_namespace, network_namespace: spec.network == Network::None };
    let seed =
        daemon.pool.take(kind).await.map_err(|error| failure::io("making a place for the guest", &name, &error))?;
    crash::point("start.seed");
    let outcome = grow(daemon, guest, spec, &seed, wish, stdio).await;
    match outcome {
        Ok((pid, trunk)) => Ok(Rc::new(Running {
            slot: seed.slot,
            link: seed.link,
            seed: seed.process,
            pid,
            trunk,
            mounts: RefCell::new(mounts(pid)),
            namespace: seed.namespace,
            started: now(),
            started_by_clients: RefCell::new(HashSet::from([pid])),
            over: watch::Sender::new(None),
        })),
        Err(fault) => {
            seed.link.quit();
            daemon.clear_slot(seed.slot).await;
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
    seed: &ReadySeed,
    wish: Option<Wish>,
    stdio: Vec<OwnedFd>,
) -> Result<(i32, OwnedFd), Fault> {
    note(daemon, guest, seed.slot)?;
    crash::point("start.noted");
    let site = Site {
        name: guest.name.to_string(),
        root: super::layers::root(daemon, guest)?,
        owner: seed
            .namespace
            .as_ref()
            .map(|fd| owned(fd.as_fd()))
            .transpose()?
            .map(|fd| (fd, slot::first_id(seed.slot))),
        cgroup: daemon.field.plot(seed.slot).guest(),
        empty: daemon.places.empty(),
        stdio,
        wish: wish.map(site_wish).transpose()?,
        seed: SeedLink::from_connected(owned(seed.link.seed().as_fd())?),
        spec,
    };
    let unified = daemon.unified;
    let name = guest.name.clone();
    let birth = seed.link.expect_birth();
    let built = tokio::task::spawn_blocking(move || site.build(unified)).await.map_err(|error| {
        Fault::new(FaultKind::Failed, name.as_ref(), format!("starting guest '{name}' failed inside Pando: {error}"))
    });
    let (plan, launched, parts) = match built.and_then(|built| built) {
        Ok(built) => built,
        Err(fault) => {
            seed.link.cancel_birth();
            return Err(fault);
        }
    };
    crash::point("start.launched");
    let outcome = born(&guest.name, birth, &plan, launched).await;
    drop(tokio::task::spawn_blocking(move || drop(parts)));
    outcome
}

/// Waits for a launched process to exist and to have taken its steps.
pub(crate) async fn born(
    name: &pando_guest::GuestName,
    birth: tokio::sync::oneshot::Receiver<crate::link::Birth>,
    plan: &Plan,
    launched: Launched,
) -> Result<(i32, OwnedFd), Fault> {
    let birth = birth.await.unwrap_or_else(|_| Err(std::io::Error::other("its seed has gone")));
    let (pid, pidfd) = birth.map_err(|error| failure::io("starting a process", name.as_ref(), &error))?;
    let report = report(launched).await.map_err(|error| failure::call("starting a process", name.as_ref(), &error))?;
    match report {
        None => Ok((pid, pidfd)),
        Some(report) => Err(step_failed(name.as_ref(), plan, report)),
    }
}

async fn report(launched: Launched) -> Result<Option<Report>, pando_kernel::CallError> {
    use pando_kernel::Context;
    let fd = &launched.report;
    rustix::io::ioctl_fionbio(fd, true).context(|| "waiting for a report".into())?;
    let socket = crate::readable::readable(launched.report).context(|| "waiting for a report".into())?;
    loop {
        let mut ready = socket.readable().await.context(|| "waiting for a report".into())?;
        let read = ready.try_io(|socket| match read_report(socket.get_ref()) {
            Err(error) if error.source.kind() == std::io::ErrorKind::WouldBlock => {
                Err(std::io::ErrorKind::WouldBlock.into())
            }
            other => Ok(other),
        });
        if let Ok(Ok(report)) = read {
            return report;
        }
    }
}

/// A step that failed, as a fault: what the shell tells apart by 126 and 127 is told apart here too.
fn step_failed(name: &str, plan: &Plan, report: Report) -> Fault {
    let label = plan.label(report.step);
    let error = std::io::Error::from_raw_os_error(report.errno);
    let running = label.strip_prefix("running ");
    match (running, report.errno) {
        (Some(command), libc::ENOENT) => Fault::new(
            FaultKind::CommandNotFound,
            command,
            format!(
                "guest '{name}' has no command '{command}': it is not in the guest's PATH, or the interpreter that it names is missing"
            ),
        ),
        (Some(command), libc::EACCES | libc::ENOEXEC | libc::EISDIR | libc::EPERM) => Fault::new(
            FaultKind::CommandNotExecutable,
            command,
            format!("'{command}' in guest '{name}' cannot be executed: {}", failure::reason(&error)),
        ),
        _ => failure::io(&format!("{label} in guest '{name}'"), name, &error),
    }
}

fn note(daemon: &Daemon, guest: &Guest, slot: u32) -> Result<(), Fault> {
    let ephemeral = guest
        .ephemeral
        .then(|| EphemeralRecord { record: guest.record.borrow().clone(), spec: guest.spec.borrow().clone() });
    let run = RunRecord { slot, boot: daemon.boot.clone(), started: now(), ephemeral };
    record::write_run(&daemon.places, &guest.name, &run)
        .map_err(|error| failure::call("noting that the guest starts", guest.name.as_ref(), &error))
}

pub(crate) fn owned(fd: BorrowedFd<'_>) -> Result<OwnedFd, Fault> {
    fd.try_clone_to_owned().map_err(|error| failure::io("copying a descriptor", "daemon", &error))
}

fn site_wish(wish: Wish) -> Result<SiteWish, Fault> {
    let program = wish.program.as_ref().map(|fd| owned(fd.as_fd())).transpose()?;
    Ok(SiteWish { user: wish.user.clone().unwrap_or_default(), wish: wish.program(Account::root()), program })
}

impl Site {
    /// Puts everything together and sends it off. Blocking. What the root was put together from is given back, to be closed later.
    fn build(mut self, unified: bool) -> Result<(Plan, Launched, Vec<Tree>), Fault> {
        let name = self.name.clone();
        let fault = |error| failure::call(&format!("starting guest '{name}'"), &name, &error);
        let owner = self.owner.as_ref().map(|(fd, first_id)| Owner { namespace: fd.as_fd(), first_id: *first_id });
        root::prepare(&self.root.files).map_err(fault)?;
        let Mounted { tree, parts } = self.root.mount(owner).map_err(fault)?;
        let program = self.wish.take().map(|wish| self.resolve(wish, &tree)).transpose()?;
        let (program, sent) = program.map_or((None, None), |(program, sent)| (Some(program), sent));
        let facts = self.facts(unified).map_err(fault)?;
        let plan = plan::trunk(&self.spec, &facts, program.as_ref()).map_err(|error| {
            Fault::new(
                FaultKind::BadRequest,
                name.as_str(),
                format!("guest '{name}' cannot be started as asked: {error}"),
            )
        })?;
        let mut supplies = Supplies {
            spec: &self.spec,
            owner,
            root: Some(tree),
            cgroup: self.cgroup.take(),
            empty: &self.empty,
            stdio: &self.stdio,
            trunk: None,
            program: sent.as_ref(),
        };
        let launched = launch(&self.seed, &plan, &mut supplies).map_err(fault)?;
        Ok((plan, launched, parts))
    }

    fn facts(&self, unified: bool) -> Result<Facts, pando_kernel::CallError> {
        let mut file_volumes = Vec::new();
        for (number, one) in self.spec.volumes.iter().enumerate() {
            if volume::is_file(one)? {
                file_volumes.push(number);
            }
        }
        Ok(Facts { name: self.name.clone(), unified, file_volumes })
    }

    /// Looks the program's user up in the guest's own files.
    fn resolve(&self, wish: SiteWish, tree: &Tree) -> Result<(Program, Option<OwnedFd>), Fault> {
        let wanted = if wish.user.is_empty() { self.spec.user.clone().unwrap_or_default() } else { wish.user };
        let account = find_account(&self.name, &wanted, tree.as_fd())?;
        Ok((Program { account, ..wish.wish }, wish.program))
    }
}

/// The user that a process is to run as. `root` is the guest's root directory.
pub(crate) fn find_account(name: &str, wanted: &str, root: BorrowedFd<'_>) -> Result<Account, Fault> {
    if Account::is_plain_root(wanted) {
        return Ok(Account::root());
    }
    let read = |path: &str| {
        root::read_inside(root, path, account::LONGEST)
            .map(Option::unwrap_or_default)
            .map_err(|error| failure::io(&format!("reading /{path} of guest '{name}'"), name, &error))
    };
    let (passwd, group) = (read("etc/passwd")?, read("etc/group")?);
    Account::resolve(wanted, &passwd, &group)
        .map_err(|error| failure::bad(wanted, format!("in guest '{name}': {error}")))
}

//! A further process in a running guest.

use crate::failure;
use crate::init::birth::{born, grown_in_group};
use crate::init::launch_builder::find_account;
use crate::init::link::Birth;
use crate::init::program::{ProgramRequest, program_request};
use crate::resources::Resources;
use crate::runtime::descriptors::owned;
use crate::runtime::spin_wait::stay_awake;
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use pando_api::{Fault, FaultKind, PartOf, Process, Spec};
use pando_guest::GuestName;
use pando_guest::launch::{Launched, Supplies, launch};
use pando_guest::plan::{self, Plan, Program};
use pando_guest::shim::ShimLink;
use pando_kernel::process::held::HeldProcess;
use pando_kernel::process::{self, identity::ProcessId};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tokio::sync::oneshot;

/// A process that was started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) running: Rc<Running>,
    pub(crate) pid: i32,
    process: HeldProcess,
    /// How many processes of its guest the kernel had killed for want of memory before.
    pub(crate) kills: u64,
}

/// How many processes of a guest whose memory is bounded the kernel has killed for want of it.
pub(crate) fn kills(resources: &Resources, guest: &Guest) -> u64 {
    let is_bounded = guest.spec.borrow().memory.limit.is_some();
    if is_bounded { resources.oom_kills(&guest.name) } else { 0 }
}

/// Starts a process as a client asked.
pub(crate) async fn exec(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    process: Process,
    stdio: Vec<OwnedFd>,
) -> Result<Started, Fault> {
    if process.command.is_empty() {
        return Err(failure::bad(
            "command",
            "there is nothing to run; name a command, for example: pando exec NAME -- sh",
        ));
    }
    let stdio = if process.detached { null_devices(guest)? } else { stdio };
    let request = program_request(Process { detached: false, ..process }, &stdio)?;
    enter(daemon, guest, request, stdio).await
}

/// The standard descriptors of a process that nobody gives any.
fn null_devices(guest: &Guest) -> Result<Vec<OwnedFd>, Fault> {
    let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    let stdio = (0..3).map(|_| null()).collect::<Result<Vec<_>, _>>();
    stdio.map_err(|error| failure::io("opening the null device", guest.name.as_ref(), &error))
}

/// Starts a command of the guest's that nobody listens to.
pub(crate) async fn quietly(daemon: &Rc<Daemon>, guest: &Rc<Guest>, command: &[&str]) -> Result<(), Fault> {
    let process = Process {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        user: Some("0:0".to_owned()),
        detached: true,
        ..Process::default()
    };
    let started = exec(daemon, guest, process, Vec::new()).await?;
    tokio::task::spawn_local(async move { outcome(&started).await });
    Ok(())
}

/// Starts a process, where the guest may be entered.
pub(crate) async fn enter(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    request: ProgramRequest,
    stdio: Vec<OwnedFd>,
) -> Result<Started, Fault> {
    if guest.is_closed() {
        return Err(failure::busy(&guest.name, "made"));
    }
    begin(daemon, guest, request, stdio).await
}

/// Starts a process, whether or not the guest may be entered by others.
pub(crate) async fn begin(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    request: ProgramRequest,
    mut stdio: Vec<OwnedFd>,
) -> Result<Started, Fault> {
    let running = guest.life()?;
    guest.goes()?;
    let kills = kills(&daemon.resources, guest);
    let builder = ExecBuilder {
        name: guest.name.clone(),
        spec: guest.spec.borrow().clone(),
        first: running.first.clone(),
        guest_cgroup: daemon.field.plot(running.slot).guest(),
        transaction: request.transaction.clone(),
        supervisor: supervisor(request.transaction.as_ref(), &mut stdio),
        stdio,
        user: request.user.clone().unwrap_or_default(),
        sent: request.program.as_ref().map(|fd| owned(fd.as_fd())).transpose()?,
        program: request.program(pando_guest::account::Account::root()),
        shim: ShimLink::from_connected(owned(running.link.shim().as_fd())?),
    };
    let group = builder.guest_cgroup.clone();
    crate::crash::point("exec.begun");
    // One launch at a time on a shim's socket, so that answers find the right one. Not for longer: a process that is
    // born into a frozen group takes no step until a transaction has ended, and that may be just about to be started.
    let turn = running.link.turn().await;
    let birth = running.link.expect_birth();
    // What is put together for plain root reads no file of the guest's: a thread would cost more than it.
    let built = match builder.is_quick() {
        true => builder.build(),
        false => {
            let built = tokio::task::spawn_blocking(move || builder.build()).await;
            built.map_err(|error| inside(&guest.name, &error)).and_then(|built| built)
        }
    };
    let (plan, launched) = match built {
        Ok(built) => built,
        Err(fault) => {
            running.link.cancel_birth();
            return Err(ended_meanwhile(guest, &running).unwrap_or(fault));
        }
    };
    crate::crash::point("exec.launched");
    // A guest that ended just now takes no process, for reasons that name anything but that.
    let instead = |fault| ended_meanwhile(guest, &running).unwrap_or(fault);
    let (pid, process) = born_in(&running, &guest.name, birth).await.map_err(instead)?;
    drop(turn);
    let process = HeldProcess::new(pid, process);
    running.started_by_clients.borrow_mut().insert(pid, process.clone());
    let place = (&process, group.as_deref());
    if let Err(fault) = grown_in_group(&guest.name, &plan, launched.report, daemon.starting.is_none(), place).await {
        let instead = instead(fault);
        let started = Started { running, pid, process, kills };
        // Its end is nobody's to hear of.
        tokio::task::spawn_local(async move { outcome(&started).await });
        return Err(instead);
    }
    crate::crash::point("exec.born");
    if daemon.starting.is_none() {
        let running = Rc::clone(&running);
        tokio::task::spawn_local(stay_awake(move || !running.started_by_clients.borrow().contains_key(&pid)));
    }
    daemon.events.tell(guest.name.as_ref(), "exec", Some(shown(&plan)));
    Ok(Started { running, pid, process, kills })
}

/// Waits for a launched process to exist, as long as its guest does.
async fn born_in(
    running: &Running,
    name: &GuestName,
    birth: oneshot::Receiver<Birth>,
) -> Result<(i32, OwnedFd), Fault> {
    let mut over = running.over.subscribe();
    tokio::select! {
        born = born(name, birth) => born,
        _ = over.wait_for(Option::is_some) => Err(failure::not_running(name)),
    }
}

fn ended_meanwhile(guest: &Guest, running: &Running) -> Option<Fault> {
    running.first.has_ended().then(|| failure::not_running(&guest.name))
}

fn shown(plan: &Plan) -> String {
    plan.last_label().strip_prefix("running ").unwrap_or_default().to_owned()
}

fn inside(name: &GuestName, error: &tokio::task::JoinError) -> Fault {
    Fault::new(
        FaultKind::Failed,
        name.as_ref(),
        format!("starting a process in guest '{name}' failed inside Pando: {error}"),
    )
}

/// Waits for its end: its exit code, 128 + signal for a death by signal.
pub(crate) async fn outcome(started: &Started) -> Option<i32> {
    let status = match started.running.link.ended(started.pid).await {
        Some(status) => Some(status),
        None => crate::runtime::process_end::status_without_shim(started.process.descriptor()?).await,
    };
    started.running.started_by_clients.borrow_mut().remove(&started.pid);
    crate::state::ending::Ending::from_status(status, false).exit_code()
}

/// Has a process end that takes too long, and waits for that apart.
pub(crate) fn end(started: Started) {
    // That it has ended already is as well.
    let _ = started.process.signal(libc::SIGKILL);
    tokio::task::spawn_local(async move { outcome(&started).await });
}

/// Everything that a thread needs to put the process together.
struct ExecBuilder {
    name: GuestName,
    spec: Spec,
    first: HeldProcess,
    guest_cgroup: Option<PathBuf>,
    transaction: Option<PartOf>,
    supervisor: Option<OwnedFd>,
    stdio: Vec<OwnedFd>,
    user: String,
    program: Program,
    sent: Option<OwnedFd>,
    shim: ShimLink,
}

impl ExecBuilder {
    fn user(&self) -> String {
        if self.user.is_empty() { self.spec.user.clone().unwrap_or_default() } else { self.user.clone() }
    }

    /// Whether nobody's account has to be looked for in the guest's files.
    fn is_quick(&self) -> bool {
        pando_guest::account::Account::is_plain_root(&self.user()) && self.spec.group_add.is_empty()
    }

    /// Blocking, unless it is quick.
    fn build(mut self) -> Result<(Plan, Launched), Fault> {
        let name = self.name.to_string();
        let wanted = self.user();
        if !self.is_quick() {
            let root = self.first.root();
            let root = root.map_err(|error| failure::io(&format!("looking into guest '{name}'"), &name, &error))?;
            self.program.account = find_account(&name, (&wanted, &self.spec.group_add), root.as_fd())?;
        }
        let transaction = self.transaction.take();
        let cgroup = self.guest_cgroup.as_deref().map(|guest| match &transaction {
            Some(transaction) => group_of(transaction, guest),
            None => Ok(cgroup_of(&self.first, guest)),
        });
        let cgroup = cgroup.transpose()?;
        let supervised = transaction.as_ref().filter(|transaction| transaction.supervised).map(filter).transpose()?;
        let plan = plan::exec(&self.spec, &self.program, cgroup.is_some(), supervised.as_deref())
            .map_err(|error| failure::bad_plan(&self.name, &error))?;
        let mut supplies = Supplies {
            cgroup,
            stdio: &self.stdio,
            first: Some(&self.first),
            view_of: transaction.map(|part| ProcessId { pid: part.holder, started: part.holder_started }),
            program: self.sent.as_ref(),
            supervisor: self.supervisor.as_ref(),
            ..Supplies::default()
        };
        // Of a guest that has just ended no namespace is opened, whoever has its first process's number by now: with
        // the host's ids its shim may enter the host's.
        let launched = launch(&self.shim, &plan, &mut supplies)
            .map_err(|error| failure::call(&format!("starting a process in guest '{name}'"), &name, &error))?;
        Ok((plan, launched))
    }
}

/// The socket that the caller hears of system calls over, where there is one: the last of his descriptors.
fn supervisor(transaction: Option<&PartOf>, descriptors: &mut Vec<OwnedFd>) -> Option<OwnedFd> {
    transaction.filter(|transaction| transaction.supervised).and_then(|_| descriptors.pop())
}

/// The program by which a transaction's system calls wait for answers.
fn filter(transaction: &PartOf) -> Result<Vec<u8>, Fault> {
    let network = if transaction.refuse_network { pando_tx::Network::Refuse } else { pando_tx::Network::Pass };
    let missing = || failure::bad(&transaction.name, "there are too many system calls to be caught".to_owned());
    pando_tx::filter(network).ok_or_else(missing)
}

/// The group of a transaction, beside the guest's own.
fn group_of(transaction: &PartOf, guest: &Path) -> Result<PathBuf, Fault> {
    let name = format!("tx-{}", transaction.name);
    let beside = guest.with_file_name(&name);
    // A name with a slash leads elsewhere.
    if beside.file_name().is_some_and(|last| last == name.as_str()) && beside.parent() == guest.parent() {
        Ok(beside)
    } else {
        Err(failure::bad(&transaction.name, format!("'{}' is no name of a transaction", transaction.name)))
    }
}

/// Where the guest's first process is, inside the guest's group: an init that manages groups leaves the top one empty,
/// and the kernel then takes no process there. Anything but a path below the guest's own group is not believed.
fn cgroup_of(first: &HeldProcess, guest: &Path) -> PathBuf {
    let text = first.opened(|pid| process::read(pid, "cgroup")).unwrap_or_default();
    let inner = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    let below = guest.ancestors().find_map(|ancestor| {
        let tail = guest.strip_prefix(ancestor).ok()?;
        let found = Path::new(inner).strip_prefix(Path::new("/").join(tail)).ok()?;
        (tail.components().count() >= 3).then(|| found.to_owned())
    });
    match below {
        Some(rest) if rest.components().all(|part| matches!(part, std::path::Component::Normal(_))) => guest.join(rest),
        _ => guest.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_born_in_the_guests_group_and_nowhere_else() {
        let guest = Path::new("/nowhere/pando/7/guest");
        assert_eq!(cgroup_of(&HeldProcess::ended(i32::MAX), guest), guest);
    }
}

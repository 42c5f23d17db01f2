//! Waiting for a process to be born: for its shim's word that it exists, and for its own that it has taken the steps of
//! its plan.

use crate::failure;
use crate::init::link::{Birth, Link};
use crate::runtime::spin_wait::spin;
use pando_api::{Fault, FaultKind};
use pando_guest::GuestName;
use pando_guest::plan::Plan;
use pando_guest::shim::read_report;
use pando_kernel::{CallError, Context, process::held::HeldProcess};
use pando_shim::Report;
use pando_shim::Request;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// How long a process may stand still in a frozen group before it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a launched process to exist. It may not have taken a single step of its plan: one that is born into a
/// frozen group does so when that is thawed.
pub(crate) async fn born(
    name: &GuestName,
    birth: tokio::sync::oneshot::Receiver<Birth>,
) -> Result<(i32, OwnedFd), Fault> {
    let birth = birth.await.unwrap_or_else(|_| Err(std::io::Error::other("its shim has gone")));
    birth.map_err(|error| match error.raw_os_error() {
        Some(libc::EAGAIN) => full(name),
        _ => failure::io("starting a process", name.as_ref(), &error),
    })
}

/// Refuses a process in a guest that has as many as it may.
fn full(name: &GuestName) -> Fault {
    let message = format!(
        "guest '{name}' takes no further process: it has as many as its limit (pids) allows, or 256 commands of 'pando exec' run in it; end some ('pando ps {name}'), or raise the limit ('pando set {name} pids=N')"
    );
    Fault::new(FaultKind::Unavailable, name.as_ref(), message)
}

/// Waits for a process to have taken the steps of its plan, for a minute at most where its group stands still for a
/// transaction. One that is given up is killed.
pub(crate) async fn grown_in_group(
    name: &GuestName,
    plan: &Plan,
    report: OwnedFd,
    alone: bool,
    (process, group): (&HeldProcess, Option<&Path>),
) -> Result<(), Fault> {
    let mut grown = std::pin::pin!(grown(name.as_ref(), plan, report, alone));
    loop {
        if let Ok(grown) = tokio::time::timeout(PATIENCE, &mut grown).await {
            return grown;
        }
        if group.is_some_and(stands_still) {
            let _ = process.signal(libc::SIGKILL);
            return Err(failure::stands_still(name));
        }
    }
}

/// Whether a control group was told to stand still.
fn stands_still(group: &Path) -> bool {
    std::fs::read_to_string(group.join("cgroup.freeze")).is_ok_and(|text| text.trim_end() == "1")
}

/// Waits for a process to have taken the steps of its plan. One that is the only one to be started is worth spinning
/// for.
pub(crate) async fn grown(name: &str, plan: &Plan, report: OwnedFd, alone: bool) -> Result<(), Fault> {
    let soon = if alone { spin(|| present_report(&report)) } else { None };
    let report = match soon {
        Some(report) => report,
        None => heard(report).await,
    };
    match report.map_err(|error| failure::call("starting a process", name, &error))? {
        None => Ok(()),
        Some(report) => Err(step_failed(name, plan, report)),
    }
}

/// A process's report, if it has come: `None` in it says that all went well.
fn present_report(socket: &OwnedFd) -> Option<Result<Option<Report>, CallError>> {
    match read_report(socket) {
        Err(error) if error.source.kind() == std::io::ErrorKind::WouldBlock => None,
        report => Some(report),
    }
}

async fn heard(fd: OwnedFd) -> Result<Option<Report>, CallError> {
    let socket = crate::runtime::readable::readable(fd).context(|| "waiting for a report".into())?;
    loop {
        let mut ready = socket.readable().await.context(|| "waiting for a report".into())?;
        let read = ready.try_io(|socket| {
            present_report(socket.get_ref()).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::WouldBlock))
        });
        if let Ok(Ok(report)) = read {
            return report;
        }
    }
}

/// A step that failed, as a fault: what the shell tells apart by 126 and 127 is told apart here too.
pub(crate) fn step_failed(name: &str, plan: &Plan, report: Report) -> Fault {
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

/// From here on the shim has to outlive this daemon. Until it knows, the daemon's death is the guest's, whose start is
/// then undone.
pub(crate) fn stay(name: &GuestName, link: &Link) -> Result<(), Fault> {
    let settled = link.shim().send(Request::Settle, &[]);
    settled.map_err(|error| failure::io("starting a process", name.as_ref(), &error))
}

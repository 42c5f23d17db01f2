//! Waiting for a process to be born: for its seed's word that it exists, and for its own that it has taken the steps of its plan.

use crate::failure;
use crate::linger::linger;
use crate::link::Birth;
use pando_api::{Fault, FaultKind};
use pando_guest::GuestName;
use pando_guest::launch::Launched;
use pando_guest::plan::Plan;
use pando_guest::seed::read_report;
use pando_kernel::{CallError, Context};
use pando_seed::Report;
use std::os::fd::OwnedFd;

/// Waits for a launched process to exist and to have taken its steps.
pub(crate) async fn born(
    name: &GuestName,
    birth: tokio::sync::oneshot::Receiver<Birth>,
    plan: &Plan,
    launched: Launched,
    alone: bool,
) -> Result<(i32, OwnedFd), Fault> {
    let birth = birth.await.unwrap_or_else(|_| Err(std::io::Error::other("its seed has gone")));
    let born = birth.map_err(|error| failure::io("starting a process", name.as_ref(), &error))?;
    grown(name.as_ref(), plan, launched.report, alone).await.map(|()| born)
}

/// Waits for a process to have taken the steps of its plan. One that is the only one to be started is worth lingering for.
pub(super) async fn grown(name: &str, plan: &Plan, report: OwnedFd, alone: bool) -> Result<(), Fault> {
    let soon = if alone { linger(|| present_report(&report)) } else { None };
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
    let socket = crate::readable::readable(fd).context(|| "waiting for a report".into())?;
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
pub(super) fn step_failed(name: &str, plan: &Plan, report: Report) -> Fault {
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

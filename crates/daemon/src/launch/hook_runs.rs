//! Running a guest's hooks.

use crate::failure;
use crate::init::hooks::Hooks;
use crate::init::program::ProgramRequest;
use crate::launch::exec;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use pando_api::{Fault, FaultKind};
use pando_guest::plan::Stdio;
use rustix::fs::MemfdFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::Duration;

/// How long one may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How much of what one said is told.
const MOST_TOLD: u64 = 2048;

/// Runs them in a clone. The first that fails is the last that runs.
pub(crate) async fn run_in_clone(hooks: &Hooks, daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    for hook in hooks.paths() {
        let env = BTreeMap::from([("PANDO_CLONE_NAME".to_owned(), guest.name.to_string())]);
        run(daemon, guest, vec![hook.clone()], env).await?;
    }
    Ok(())
}

/// Runs them before a guest is frozen. The first that fails is the last that runs.
pub(crate) async fn run_before(hooks: &Hooks, daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    for hook in hooks.paths() {
        run(daemon, guest, vec![hook.clone(), "before".to_owned()], BTreeMap::new()).await?;
    }
    Ok(())
}

/// Runs all of them after that, whatever came of it. What fails now is told as an event: the guest is frozen, or is
/// not, all the same.
pub(crate) async fn run_after(hooks: &Hooks, daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    for hook in hooks.paths() {
        if let Err(fault) = run(daemon, guest, vec![hook.clone(), "after".to_owned()], BTreeMap::new()).await {
            daemon.events.tell(guest.name.as_ref(), "hook-failed", Some(fault.message));
        }
    }
}

/// Runs one, as the guest's root, and waits for its end.
async fn run(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    command: Vec<String>,
    env: BTreeMap<String, String>,
) -> Result<(), Fault> {
    let name = guest.name.as_ref();
    let shown = command.join(" ");
    let output = rustix::fs::memfd_create("pando-hook", MemfdFlags::CLOEXEC).map(File::from);
    let output = output.map_err(|error| failure::io("making a file for what a hook says", name, &error.into()))?;
    let stdio = stdio(&output).map_err(|error| failure::io("preparing a hook", name, &error))?;
    let user = Some("0:0".to_owned());
    let request = ProgramRequest {
        command,
        env,
        workdir: Some("/".into()),
        user,
        stdio: Stdio::Given,
        program: None,
        transaction: None,
    };
    let started = exec::begin(daemon, guest, request, stdio).await?;
    let why = match tokio::time::timeout(LIMIT, exec::outcome(&started)).await {
        Ok(Some(0)) => return Ok(()),
        Ok(Some(code)) => format!("failed with exit code {code}"),
        Ok(None) => "ended along with the guest".to_owned(),
        Err(_) => {
            exec::end(started);
            format!("did not end within {} seconds, and was killed", LIMIT.as_secs())
        }
    };
    let message = format!("the hook '{shown}' in guest '{name}' {why}{}", told(&output));
    Err(Fault::new(FaultKind::Failed, name, message))
}

fn stdio(output: &File) -> std::io::Result<Vec<OwnedFd>> {
    Ok(vec![File::open("/dev/null")?.into(), output.try_clone()?.into(), output.try_clone()?.into()])
}

/// The end of what a hook said, in one line.
fn told(output: &File) -> String {
    let length = output.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = vec![0; MOST_TOLD.min(length) as usize];
    let read = output.read_at(&mut bytes, length.saturating_sub(MOST_TOLD)).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..read]);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { String::new() } else { format!("; it said: {}", lines.join(" / ")) }
}

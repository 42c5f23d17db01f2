//! Starting a guest that lasts.

use super::boot::{Task, Wish, boot};
use crate::daemon::Daemon;
use crate::failure;
use crate::guest::Guest;
use pando_api::{Fault, GuestState};
use pando_guest::plan::Stdio;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Starts it.
pub(crate) async fn start(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    let _doing = guest.begin("started")?;
    if guest.state.get() != GuestState::Stopped {
        return Err(failure::running(&guest.name, "'pando restart' starts it anew"));
    }
    super::unify::before_start(daemon, guest).await;
    again(daemon, guest).await
}

/// Starts it, when it is known to be at rest.
pub(crate) async fn again(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    super::connections::give_up_of(daemon, guest);
    guest.goes_on(&daemon.places)?;
    let (wish, stdio) = {
        let spec = guest.spec.borrow();
        let command: Vec<_> = spec.init.iter().cloned().chain(spec.command.iter().cloned()).collect();
        let wish = (!command.is_empty()).then(|| Wish {
            command,
            env: BTreeMap::new(),
            workdir: None,
            user: if spec.init.is_some() { Some("0:0".to_owned()) } else { None },
            stdio: if spec.init.is_some() { Stdio::Console } else { Stdio::Given },
            program: None,
            transaction: None,
        });
        let stdio = match &wish {
            Some(Wish { stdio: Stdio::Given, .. }) => log_stdio(daemon, guest)?,
            _ => Vec::new(),
        };
        (wish, stdio)
    };
    boot(daemon, guest, wish.map_or(Task::Idle, Task::Run), stdio, None).await.map(drop)
}

/// Standard input from nowhere; output and errors straight into the log, so that they do not depend on the daemon.
fn log_stdio(daemon: &Daemon, guest: &Guest) -> Result<Vec<OwnedFd>, Fault> {
    let open = || -> std::io::Result<Vec<OwnedFd>> {
        let null = File::open("/dev/null")?;
        let log = super::console::log(daemon, guest)?;
        Ok(vec![null.into(), log.try_clone()?.into(), log.into()])
    };
    open().map_err(|error| failure::io("opening the guest's log", guest.name.as_ref(), &error))
}

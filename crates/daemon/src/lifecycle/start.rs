//! Starting a guest that lasts.

use crate::failure;
use crate::init::program::ProgramRequest;
use crate::launch::boot::{Task, boot};
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use pando_api::{Fault, GuestState};
use pando_guest::plan::Stdio;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Starts a guest that lasts.
pub(crate) async fn start(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    let _doing = guest.begin("started")?;
    crate::lifecycle::quarantine::look_again(daemon, guest);
    guest.is_sound()?;
    if guest.state.get() != GuestState::Stopped {
        return Err(failure::running(&guest.name, "'pando restart' starts it anew"));
    }
    crate::store::unify::before_start(daemon, guest).await;
    again(daemon, guest).await
}

/// Starts a guest that is known to be at rest.
pub(crate) async fn again(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    crate::network::connections::give_up_of(daemon, guest);
    guest.goes_on(&daemon.places)?;
    let request = {
        let spec = guest.spec.borrow();
        let command: Vec<_> = spec.init.iter().cloned().chain(spec.command.iter().cloned()).collect();
        (!command.is_empty()).then(|| ProgramRequest {
            command,
            env: BTreeMap::new(),
            workdir: None,
            user: if spec.init.is_some() { Some("0:0".to_owned()) } else { None },
            stdio: if spec.init.is_some() { Stdio::Console } else { Stdio::Given },
            program: None,
            transaction: None,
        })
    };
    boot(daemon, guest, request.map_or(Task::Idle, Task::Run), Vec::new(), None).await.map(drop)
}

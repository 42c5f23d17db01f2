//! Starting a guest that lasts.

use crate::failure;
use crate::init::program::ProgramRequest;
use crate::launch::boot::{Task, boot};
use crate::resources::admission;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use pando_api::{Fault, GuestState};
use pando_guest::plan::Stdio;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Starts a guest that lasts, as somebody asked.
pub(crate) async fn start(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    let _doing = guest.begin("started")?;
    prepare(daemon, guest).await?;
    anew(daemon, guest).await
}

/// Starts one as the machine boots. That it fails now does not mean that nobody wants it any more.
pub(crate) async fn at_boot(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    let _doing = guest.begin("started")?;
    prepare(daemon, guest).await?;
    guest.is_wanted(&daemon.places, true);
    again(daemon, guest).await
}

/// Starts one because its restart policy has it so. What counts its lives goes on.
pub(crate) async fn by_policy(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    let _doing = guest.begin("started")?;
    prepare(daemon, guest).await?;
    again(daemon, guest).await?;
    guest.restarts.give_up();
    Ok(())
}

async fn prepare(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    crate::lifecycle::quarantine::look_again(daemon, guest);
    guest.is_sound()?;
    if guest.state.get() != GuestState::Stopped {
        return Err(failure::running(&guest.name, "'pando restart' starts it anew"));
    }
    crate::store::unify::before_start(daemon, guest).await;
    Ok(())
}

/// Starts a guest at rest that somebody wants to run. Where that fails he has heard of it, and it stays at rest.
pub(crate) async fn anew(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    guest.is_wanted(&daemon.places, true);
    guest.restarts.short_lives.set(0);
    let started = again(daemon, guest).await;
    if started.is_err() {
        guest.is_wanted(&daemon.places, false);
    }
    started
}

/// Starts a guest that is known to be at rest.
pub(crate) async fn again(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<(), Fault> {
    admission::check_guest(daemon, guest)?;
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
    boot(daemon, guest, request.map_or(Task::Idle, Task::Run), Vec::new(), None).await?;
    admission::learn(daemon, guest);
    Ok(())
}

//! `run`: create and start, and wait for the end.

use super::create::{attended, console, make};
use super::{delete, start};
use crate::agent::Agent;
use crate::bundle::Bundle;
use crate::command_line::{Creation, Global};
use crate::container::{Home, Status};
use crate::log::Log;
use crate::session::with_size;
use anyhow::Result;

pub(crate) fn run(global: &Global, creation: &Creation, detach: bool, keep: bool, log: &Log) -> Result<u8> {
    let mut bundle = Bundle::read(&creation.bundle, log)?;
    let terminal = bundle.process()?.terminal().unwrap_or(false);
    let hooks = bundle.spec.hooks().as_ref().and_then(|hooks| hooks.start_container().as_ref());
    let waits = hooks.is_some_and(|hooks| !hooks.is_empty());
    let (session, console) = if detach || creation.console_socket.is_some() {
        (None, console(creation.console_socket.as_deref(), terminal)?)
    } else {
        let (session, console) = attended(terminal)?;
        let process = bundle.spec.process().clone().map(with_size);
        bundle.spec.set_process(process);
        (Some(session), console)
    };
    let made = make(global, creation, &bundle, console, waits, log)?;
    let begun = if waits {
        start::start(&made.home, &made.record)
    } else {
        let filter = bundle.spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
        let agent = Agent::of(filter, made.record.state(Status::Creating))?;
        made.launched.wait_for_program(agent.as_ref()).and_then(|()| start::started(&made.record))
    };
    if let Err(error) = begun {
        delete::clear(made.home, &made.record, log)?;
        if let Some(session) = session {
            session.carry_rest();
        }
        return Err(error);
    }
    let (pid, process) = (made.launched.pid, made.launched.process);
    let Some(session) = session.filter(|_| !detach) else {
        return Ok(0);
    };
    // Others may look at it meanwhile.
    drop(made.home);
    let code = session.wait(pid, &process)?;
    if !keep
        && let Some(home) = Home::open(&global.root, &creation.id)?
        && let Some(record) = home.record()?.filter(|record| record.pid == pid)
    {
        delete::clear(home, &record, log)?;
    }
    Ok(code)
}

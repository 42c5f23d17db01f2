//! A signal for a process that a client started.

use crate::failure;
use crate::state::daemon::Daemon;
use pando_api::{Fault, Reply};

/// Sends a signal to a process that a client started.
pub(crate) fn send(daemon: &Daemon, name: &str, pid: i32, signal: i32) -> Result<Reply, Fault> {
    let guest = daemon.guest(name)?;
    let running = guest.life()?;
    let Some(process) = running.started_by_clients.borrow().get(&pid).cloned() else {
        return Err(failure::bad(
            &pid.to_string(),
            format!("process {pid} was not started by 'run' or 'exec' in guest '{name}', or has ended"),
        ));
    };
    if !(1..=64).contains(&signal) {
        return Err(failure::bad(
            &signal.to_string(),
            format!("{signal} is not a signal's number; they go from 1 to 64"),
        ));
    }
    crate::crash::point("signal.found");
    process.signal(signal).map_err(|error| failure::io("sending a signal", name, &error))?;
    Ok(Reply::Done {})
}

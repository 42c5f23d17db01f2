//! A signal for a process that a client started.

use crate::failure;
use crate::state::daemon::Daemon;
use pando_api::{Fault, Reply};
use pando_kernel::process::pidfd;

/// Sends a signal to a process that a client started.
pub(crate) fn send(daemon: &Daemon, name: &str, pid: i32, signal: i32) -> Result<Reply, Fault> {
    let guest = daemon.guest(name)?;
    let running = guest.life()?;
    if !running.started_by_clients.borrow().contains(&pid) {
        return Err(failure::bad(
            &pid.to_string(),
            format!("process {pid} was not started by 'run' or 'exec' in guest '{name}', or has ended"),
        ));
    }
    if !(1..=64).contains(&signal) {
        return Err(failure::bad(
            &signal.to_string(),
            format!("{signal} is not a signal's number; they go from 1 to 64"),
        ));
    }
    let sent = if pid == running.pid {
        pidfd::send_signal(&running.process, signal)
    } else {
        pidfd::open(pid).and_then(|process| pidfd::send_signal(&process, signal))
    };
    sent.map_err(|error| failure::io("sending a signal", name, &error))?;
    Ok(Reply::Done {})
}

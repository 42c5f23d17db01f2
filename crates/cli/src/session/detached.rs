//! Processes that are started and left alone: `-d`.

use super::master;
use crate::replies::Noticed;
use crate::state_root::StateRoot;
use anyhow::{Context, bail};
use pando_api::{Method, Process, ProcessNotice};
use std::os::unix::net::UnixStream;

/// Starts the process of `method`, and leaves it. With a terminal, that is kept open for it, as if its user had
/// detached.
pub(crate) fn start_detached(
    root: &StateRoot,
    terminal: bool,
    process: Process,
    method: impl FnOnce(Process) -> Method,
) -> anyhow::Result<ProcessNotice> {
    let mut client = crate::daemon_start::connected(root)?;
    if !terminal {
        let process = Process { detached: true, ..process };
        client.send(method(process), true, Vec::new())?;
        return Ok(client.receive::<Noticed>()?.reply.notice);
    }
    let (arrival, guests) = UnixStream::pair().context("cannot make a socket for the terminal")?;
    let size = master::callers_size();
    let mut process = Process { terminal: true, rows: size.ws_row, columns: size.ws_col, ..process };
    if let Ok(term) = std::env::var("TERM") {
        process.env.entry("TERM".to_owned()).or_insert(term);
    }
    client.send(method(process), true, vec![guests.into()])?;
    let notice = client.receive::<Noticed>()?.reply.notice;
    let Some(master) = master::take(&arrival)? else { bail!("the command runs, and its terminal did not arrive") };
    crate::verb::hold(master)?;
    Ok(notice)
}

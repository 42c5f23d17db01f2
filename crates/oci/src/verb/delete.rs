//! `delete`: nothing is left of a container.

use crate::container::{Home, Record, Status};
use crate::groups::freezer;
use crate::hook;
use crate::log::Log;
use anyhow::{Result, bail};
use pando_kernel::process::pidfd;
use std::path::Path;
use std::time::Duration;

pub(crate) fn run(root: &Path, id: &str, force: bool, log: &Log) -> Result<()> {
    let Some(home) = Home::open(root, id)? else {
        if force {
            return Ok(());
        }
        bail!("container does not exist: {id}");
    };
    let Some(record) = home.record()? else {
        // Its creation was cut short before it had made anything.
        return home.remove();
    };
    let status = home.status(&record);
    match status {
        Status::Stopped | Status::Created => {}
        _ if force => {}
        status => bail!("cannot delete container {id} that is not stopped: {}", status.word()),
    }
    clear(home, &record, log)
}

/// Ends what is left of it, and removes all that is its.
pub(crate) fn clear(home: Home, record: &Record, log: &Log) -> Result<()> {
    const KILL: i32 = 9;
    const PATIENCE: Duration = Duration::from_secs(10);
    if let Ok(process) = pidfd::open(record.pid)
        && record.lives()
    {
        let _ = pidfd::send_signal(&process, KILL);
        if freezer::is_frozen(&record.groups) {
            let _ = freezer::set(&record.groups, false);
        }
        pidfd::wait_for_end(&process, PATIENCE);
    }
    record.groups.kill();
    record.uncover()?;
    record.groups.remove()?;
    let hooks = record.spec()?.hooks().as_ref().and_then(|hooks| hooks.poststop().clone()).unwrap_or_default();
    if let Err(error) = hook::run("poststop", &hooks, &record.state(Status::Stopped)) {
        log.warning(&format!("{error:#}"));
    }
    home.remove()
}

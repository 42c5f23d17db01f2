//! `pause` and `resume`.

use crate::container::{self, Status};
use crate::groups::freezer;
use anyhow::{Result, bail};
use std::path::Path;

pub(crate) fn pause(root: &Path, id: &str) -> Result<()> {
    let (home, record) = container::open(root, id)?;
    match home.status(&record) {
        Status::Running | Status::Created => freezer::set(&record.groups, true),
        status => bail!("container not running: it is {}", status.word()),
    }
}

pub(crate) fn resume(root: &Path, id: &str) -> Result<()> {
    let (home, record) = container::open(root, id)?;
    match home.status(&record) {
        Status::Stopped | Status::Creating => bail!("container not paused"),
        _ if !freezer::is_frozen(&record.groups) => bail!("container not paused"),
        _ => freezer::set(&record.groups, false),
    }
}

//! Processes that the program has started inside a transaction.

use crate::calls;
use crate::failure::Failure;
use std::path::PathBuf;

/// Sees to it that what runs inside is found, though its parent may have ended: orphans become children of the program
/// meanwhile.
#[derive(Debug)]
pub(crate) struct Children {
    reaped_orphans: bool,
}

impl Children {
    /// Begins to.
    pub(crate) fn begin() -> Self {
        let reaped_orphans = calls::reaps_orphans();
        if !reaped_orphans {
            calls::set_reaps_orphans(true);
        }
        Self { reaped_orphans }
    }

    /// Fails where one of them still runs.
    pub(crate) fn have_ended(&self) -> Result<(), Failure> {
        // Mostly there never was one.
        if !calls::has_children() {
            return Ok(());
        }
        let namespace = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/mnt")).ok();
        let (mine, me) = (namespace("self"), std::process::id());
        let entries = std::fs::read_dir("/proc").map_err(|error| Failure::of_call("/proc", "listing it", error))?;
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_inside = |pid: &u32| *pid != me && mine.is_some() && namespace(&pid.to_string()) == mine;
        let Some(pid) = pids.into_iter().find(is_inside) else { return Ok(()) };
        let name = std::fs::read_to_string(PathBuf::from(format!("/proc/{pid}/comm"))).unwrap_or_default();
        let name = name.trim_end();
        let reason = format!(
            "process {pid} ({name}), which was started inside the transaction, still runs: wait for it before the end, or abort"
        );
        Err(Failure::about(format!("process {pid}"), reason))
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        if !self.reaped_orphans {
            calls::set_reaps_orphans(false);
        }
    }
}

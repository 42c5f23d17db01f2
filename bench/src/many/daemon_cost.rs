//! What the daemon itself takes.

use anyhow::Context;

/// CPU time so far, its children's not counted: clock ticks.
pub(crate) fn ticks(pid: u32) -> anyhow::Result<f64> {
    let process = pando_kernel::process::describe(pid as i32).context("cannot read the daemon's /proc/PID/stat")?;
    Ok(process.ticks as f64)
}

/// Resident memory, in MiB.
pub(crate) fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    let process = pando_kernel::process::describe(pid as i32).context("cannot read the daemon's /proc/PID/status")?;
    Ok(process.rss_kib as f64 / 1024.0)
}

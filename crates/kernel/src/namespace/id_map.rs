//! The ids of a user namespace.

use crate::{CallError, Context};
use std::os::fd::OwnedFd;

/// How many ids a guest has: what a distribution's user database expects.
pub const IDS: u32 = 65_536;

/// Maps ids 0 to 65,535 of a process's new user namespace to `first` and up on the host.
///
/// # Errors
///
/// EPERM where the namespace has a map already, or this process may not map these ids.
pub fn write(pid: i32, first: u32) -> Result<(), CallError> {
    for file in ["uid_map", "gid_map"] {
        let path = format!("/proc/{pid}/{file}");
        std::fs::write(&path, format!("0 {first} {IDS}\n"))
            .context(|| format!("mapping ids 0–65535 to {first}… in {path}"))?;
    }
    Ok(())
}

/// The user namespace of a process.
///
/// # Errors
///
/// ENOENT where the process has gone; EACCES where it may not be traced.
pub fn open(pid: i32) -> Result<OwnedFd, CallError> {
    let path = format!("/proc/{pid}/ns/user");
    std::fs::File::open(&path).map(OwnedFd::from).context(|| format!("opening {path}"))
}

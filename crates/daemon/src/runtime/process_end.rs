//! Waiting for the end of a process by its descriptor.

use crate::runtime::readable::readable;
use pando_kernel::process::pidfd;
use std::os::fd::AsFd;
use std::time::Duration;

/// Waits until a process has ended. That the daemon lacks what it takes to wait is no end: it looks again and again
/// then.
pub(crate) async fn wait_for(process: &impl AsFd) {
    const MOMENT: Duration = Duration::from_millis(50);
    while !pidfd::has_ended(process) {
        match process.as_fd().try_clone_to_owned().and_then(readable) {
            Ok(process) => drop(process.readable().await),
            Err(_) => tokio::time::sleep(MOMENT).await,
        }
    }
}

/// The status of a process whose shim has gone, which the kernel knows once whoever inherited the process has reaped
/// it.
pub(crate) async fn status_without_shim(process: impl AsFd) -> Option<i32> {
    const MOMENT: Duration = Duration::from_millis(10);
    const MOMENTS: u32 = 200;
    wait_for(&process).await;
    for _ in 0..MOMENTS {
        if let Some(status) = pidfd::exit_status(&process) {
            return Some(status);
        }
        tokio::time::sleep(MOMENT).await;
    }
    None
}

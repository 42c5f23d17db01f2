//! Clearing away what a slot leaves: its cgroups and its shim's socket.

use pando_guest::{Places, slot};
use pando_kernel::cgroup::Field;
use std::time::Duration;

/// Removes the cgroups of a slot and its shim's socket. The last process leaves its group a moment after it was seen to
/// end. The slot is held meanwhile, so that nobody makes a guest in what is being removed; where somebody has taken it
/// already, what is there is theirs.
pub(crate) async fn clear_slot(places: &Places, field: &Field, slot: u32) {
    const MOMENT: Duration = Duration::from_millis(2);
    const MOMENTS: u32 = 500;
    let plot = field.plot(slot);
    let mut held = None;
    for moment in 0..MOMENTS {
        held = held.or_else(|| slot::hold(slot));
        if held.is_some() {
            let _ = std::fs::remove_file(places.shim(slot));
            match plot.remove() {
                Ok(()) => return,
                Err(_) if moment == MOMENTS / 2 => plot.kill(),
                Err(_) => {}
            }
        }
        tokio::time::sleep(MOMENT).await;
    }
    if held.is_some() {
        tracing::warn!(slot, "its cgroups could not be removed; the next start will try again");
    }
}

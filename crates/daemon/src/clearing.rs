//! Clearing away what a slot leaves: its cgroups and its seed's socket.

use pando_guest::Places;
use pando_kernel::cgroup::Field;
use std::time::Duration;

/// Removes the cgroups of a slot and its seed's socket. The last process leaves its group a moment after it was seen to end.
pub(crate) async fn clear_slot(places: &Places, field: &Field, slot: u32) {
    const MOMENT: Duration = Duration::from_millis(2);
    const MOMENTS: u32 = 500;
    let _ = std::fs::remove_file(places.seed(slot));
    let plot = field.plot(slot);
    for moment in 0..MOMENTS {
        match plot.remove() {
            Ok(()) => return,
            Err(_) if moment == MOMENTS / 2 => plot.kill(),
            Err(_) => tokio::time::sleep(MOMENT).await,
        }
    }
    tracing::warn!(slot, "its cgroups could not be removed; the next start will try again");
}

//! Waiting for the end of a guest.

use crate::state::ending::Ending;
use crate::state::guest::Guest;
use pando_api::GuestState;

/// How the life that a guest is in ends; of one at rest, how the last one did. One that asks to be started again has
/// not ended.
pub(crate) async fn for_end(guest: &Guest) -> Option<i32> {
    let mut rests = guest.ends.subscribe();
    loop {
        let life = guest.running.borrow().clone();
        if let Some(running) = life {
            let mut over = running.over.subscribe();
            let ending = over.wait_for(Option::is_some).await.ok().and_then(|ending| *ending)?;
            if ending != Ending::Reboot {
                return ending.exit_code();
            }
        } else if matches!(guest.state.get(), GuestState::Stopped | GuestState::Unreadable) {
            return guest.record.borrow().exit_code;
        }
        rests.changed().await.ok()?;
    }
}

//! The loop that keeps guests within the number of files that they may have open together.

use crate::resources::{Resources, Tenant};
use crate::state::events::Events;
use pando_guest::GuestName;
use pando_limit::open_files::{Deed, EVERY, Look, OpenFiles};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Looks at the guests with such a limit, for as long as the daemon runs; sleeps while there are none.
pub(crate) async fn govern(resources: Rc<Resources>, events: Events) {
    let mut known: BTreeMap<GuestName, OpenFiles> = BTreeMap::new();
    loop {
        let limited = resources.limited_in_files();
        known.retain(|name, files| {
            let stays = limited.iter().any(|(limited, _)| limited == name);
            if !stays {
                files.lift();
            }
            stays
        });
        if limited.is_empty() {
            resources.filed.notified().await;
            continue;
        }
        for (name, most) in limited {
            let files = known.entry(name.clone()).or_default();
            let look = |tenant: &Tenant| match files.look(&tenant.groups, most) {
                Look::Done(deed) => deed,
                Look::TooMany(victim) => {
                    crate::crash::point("files.counted");
                    victim.end(&tenant.groups)
                }
            };
            let Some(deed) = resources.with(&name, look) else { continue };
            let told = match deed {
                Deed::Nothing | Deed::Lifted => continue,
                Deed::Bounded { open } => {
                    format!("{open} files are open, {most} may be: its processes can open no more")
                }
                Deed::Ended { pid, held, open } => {
                    format!("{open} files are open, {most} may be: process {pid}, which held {held}, was killed")
                }
            };
            events.tell(name.as_ref(), "files", Some(told));
        }
        tokio::time::sleep(EVERY).await;
    }
}

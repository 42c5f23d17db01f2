//! The watchdog's loop: what it sees, and what it has done.

use crate::daemon::Daemon;
use crate::guest::Guest;
use crate::life::stop;
use pando_guest::{GuestName, Places};
use pando_kernel::{CallError, Context};
use pando_limit::machine::Free;
use pando_limit::reclaim::reclaim;
use pando_limit::usage::Usage;
use pando_limit::watchdog::{Policy, Rules, Scene, Step, Tenant, Watchdog, pressure};
use serde::Deserialize;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// The part of pando.toml that is for the watchdog; others read the rest.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Settings {
    watchdog: Rules,
}

/// The rules in pando.toml; the usual ones where it says nothing or cannot be read.
fn rules(places: &Places) -> Rules {
    let path = places.settings();
    let Ok(text) = std::fs::read_to_string(&path) else { return Rules::default() };
    match toml::from_str::<Settings>(&text) {
        Ok(settings) => settings.watchdog,
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "the settings cannot be read; the watchdog goes by its usual rules");
            Rules::default()
        }
    }
}

/// Watches for as long as the daemon runs.
pub(crate) async fn watch(daemon: Rc<Daemon>) {
    let mut watchdog = Watchdog::new(rules(&daemon.places));
    thaw_all(&daemon);
    if watchdog.rules().policy == Policy::Off {
        return;
    }
    let every = Duration::from_secs(watchdog.rules().every.max(1));
    loop {
        tokio::time::sleep(every).await;
        let scene = scene(&daemon);
        if scene.tenants.is_empty() && watchdog.frozen().is_none() {
            continue;
        }
        if let Some((step, why)) = watchdog.decide(&scene) {
            take(&daemon, step, why).await;
        }
    }
}

/// An earlier daemon may have frozen somebody and not lived to thaw him.
fn thaw_all(daemon: &Daemon) {
    let guests: Vec<_> = daemon.guests.borrow().values().cloned().collect();
    for guest in guests {
        let _ = freeze(daemon, &guest, false);
    }
}

fn scene(daemon: &Daemon) -> Scene<GuestName> {
    let resources = &daemon.resources;
    let names: Vec<GuestName> = daemon.guests.borrow().keys().cloned().collect();
    let tenants = names.into_iter().filter_map(|key| {
        let (memory, reserve) = resources
            .with(&key, |tenant| (Usage::memory(&tenant.groups), tenant.limits.memory.reserve.unwrap_or(0)))?;
        Some(Tenant { key, memory, reserve })
    });
    Scene { memory: resources.machine.memory, free: Free::look(), pressure: pressure(), tenants: tenants.collect() }
}

/// Takes a step, and tells of it. What fails is told too: the next look will find that it was of no avail.
async fn take(daemon: &Rc<Daemon>, step: Step<GuestName>, why: String) {
    let (Step::Reclaim(name, _) | Step::Freeze(name) | Step::Thaw(name) | Step::Restart(name) | Step::Stop(name)) =
        &step;
    let Some(guest) = daemon.guests.borrow().get(name).cloned() else { return };
    let (word, done) = match step {
        Step::Reclaim(_, bytes) => ("reclaim", take_memory(daemon, &guest, bytes).await),
        Step::Freeze(_) => {
            let frozen = freeze(daemon, &guest, true);
            ("freeze", if frozen.is_ok() { take_memory(daemon, &guest, u64::MAX >> 12).await } else { frozen })
        }
        Step::Thaw(_) => ("thaw", freeze(daemon, &guest, false)),
        Step::Restart(_) if !guest.ephemeral => {
            // A frozen process dies of nothing but SIGKILL.
            let _ = freeze(daemon, &guest, false);
            ("restart", stop::restart(daemon, &guest, Some(0)).await.map_err(|fault| fault.message))
        }
        Step::Restart(_) | Step::Stop(_) => {
            let _ = freeze(daemon, &guest, false);
            ("stop", stop::stop(daemon, &guest, None, Some(0)).await.map_err(|fault| fault.message))
        }
    };
    let failed = done.err().map(|error| format!("; it failed: {error}")).unwrap_or_default();
    daemon.events.tell(guest.name.as_ref(), "watchdog", Some(format!("{word}: {why}{failed}")));
}

async fn take_memory(daemon: &Daemon, guest: &Guest, bytes: u64) -> Result<(), String> {
    let Some(groups) = daemon.resources.with(&guest.name, |tenant| tenant.groups.clone()) else { return Ok(()) };
    let bytes = bytes.min(Usage::memory(&groups));
    let taken = tokio::task::spawn_blocking(move || reclaim(&groups, bytes)).await;
    taken.map_err(|error| error.to_string())?.map_err(|error: CallError| error.to_string())
}

/// Freezes a guest's processes, or lets them go on (cgroup.freeze, since Linux 5.2).
fn freeze(daemon: &Daemon, guest: &Guest, frozen: bool) -> Result<(), String> {
    let Some(slot) = guest.running.borrow().as_ref().map(|running| running.slot) else { return Ok(()) };
    let group: Option<PathBuf> = daemon.field.plot(slot).guest();
    let file = group.map(|group| group.join("cgroup.freeze")).ok_or("this host has no version 2 of control groups")?;
    let written = std::fs::write(&file, if frozen { "1" } else { "0" });
    written.context(|| format!("writing {}", file.display())).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_from_the_settings() {
        let root = tempfile::tempdir().unwrap();
        let places = Places::new(root.path());
        assert_eq!(rules(&places), Rules::default());
        std::fs::create_dir_all(places.settings().parent().unwrap()).unwrap();
        std::fs::write(places.settings(), "other = 1\n[watchdog]\npolicy = \"pl_mom\"\nswap = 80\n").unwrap();
        assert_eq!(rules(&places), Rules { policy: Policy::PlMom, swap: 80.0, ..Rules::default() });
        std::fs::write(places.settings(), "[watchdog]\npolicy = \"cat\"\n").unwrap();
        assert_eq!(rules(&places), Rules::default());
    }
}

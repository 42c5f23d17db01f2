//! The watchdog's loop: what it sees, and what it has done.

use crate::failure;
use crate::lifecycle::{pause, restart, stop};
use crate::resources::Resources;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use pando_api::{Fault, Reply, WatchdogState, WatchdogStep};
use pando_guest::GuestName;
use pando_kernel::CallError;
use pando_kernel::cgroup::Field;
use pando_limit::machine::Free;
use pando_limit::reclaim::reclaim;
use pando_limit::usage::Usage;
use pando_limit::watchdog::{Policy, Rules, Scene, Step, Tenant, Watchdog, pressure};
use std::rc::Rc;
use std::time::Duration;

/// What the watchdog sees and would do, by a policy or by its own.
pub(crate) fn state(daemon: &Daemon, policy: Option<&str>) -> Result<Reply, Fault> {
    let watch = &daemon.resources.watch;
    let rules = watch.rules();
    let policy = match policy {
        None => rules.policy,
        Some(word) => Policy::named(word).ok_or_else(|| {
            failure::bad(word, format!("'{word}' is no policy of the watchdog's; there are graduated, pl_mom and off"))
        })?,
    };
    let scene = scene(daemon);
    let dog = watch.dog.borrow();
    let (stage, guest) = dog.stage();
    let Free { memory, swap, swap_size } = scene.free;
    let percent = |part: u64, whole: u64| (part as f64 / whole.max(1) as f64 * 1000.0).round() / 10.0;
    let would = dog.would(policy, &scene).map(|(step, why)| WatchdogStep {
        time_ms: crate::state::events::now_ms(),
        guest: step.whom().to_string(),
        step: step.word().to_owned(),
        why,
    });
    let watchdog = WatchdogState {
        policy: policy.word().to_owned(),
        dry_run: rules.dry_run,
        rules: rules.shown().into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        stage: stage.to_owned(),
        guest: guest.map(ToString::to_string),
        pressure: scene.pressure,
        memory_free: percent(memory, scene.memory),
        swap_used: (swap_size > 0).then(|| percent(swap_size.saturating_sub(swap), swap_size)),
        would,
        taken: watch.taken.borrow().iter().cloned().collect(),
    };
    Ok(Reply::Watchdog { watchdog })
}

/// From now on the watchdog goes by these.
pub(crate) fn go_by(daemon: &Daemon, rules: Rules) {
    let watch = &daemon.resources.watch;
    if watch.rules() != rules {
        *watch.dog.borrow_mut() = Watchdog::new(rules);
        // Whoever was frozen by the old ones is not waited for by the new.
        thaw_all(daemon);
        watch.changed.notify_one();
    }
}

/// Watches for as long as the daemon runs.
pub(crate) async fn watch(daemon: Rc<Daemon>) {
    thaw_all(&daemon);
    loop {
        let rules = daemon.resources.watch.rules();
        if rules.policy == Policy::Off {
            daemon.resources.watch.changed.notified().await;
            continue;
        }
        tokio::time::sleep(Duration::from_secs(rules.every.max(1))).await;
        let mut scene = machine(&daemon.resources);
        // Hundreds of guests are not looked at for nothing.
        if daemon.resources.watch.is_wanting(&scene) {
            scene.tenants = tenants(&daemon);
        }
        let step = daemon.resources.watch.decide(&scene);
        if let Some((step, why)) = step
            && (rules.dry_run || is_due(&daemon, &step, &why, rules.notice).await)
        {
            take(&daemon, step, why, rules.dry_run).await;
        }
    }
}

/// Tells of a step before it is taken, where a guest is to be frozen, restarted or stopped; whether memory is still
/// wanting once the notice has run out.
async fn is_due(daemon: &Daemon, step: &Step<GuestName>, why: &str, notice: u64) -> bool {
    if !step.is_grave() {
        return true;
    }
    let guest = step.whom().as_ref();
    let when = if notice == 0 { "now".to_owned() } else { format!("in {notice} s") };
    daemon.events.tell(guest, "watchdog-notice", Some(format!("{} {when}: {why}", step.word())));
    if notice == 0 {
        return true;
    }
    tokio::time::sleep(Duration::from_secs(notice)).await;
    let watch = &daemon.resources.watch;
    let is_due = watch.is_wanting(&machine(&daemon.resources));
    if !is_due {
        watch.dog.borrow_mut().spared();
        daemon.events.tell(guest, "watchdog", Some(format!("spared: no {} is needed any more", step.word())));
    }
    is_due
}

/// An earlier daemon may have frozen somebody and not lived to thaw him.
fn thaw_all(daemon: &Daemon) {
    let guests: Vec<_> = daemon.guests.borrow().values().cloned().collect();
    for guest in guests {
        let _ = freeze(&daemon.field, &guest, false);
    }
}

fn scene(daemon: &Daemon) -> Scene<GuestName> {
    Scene { tenants: tenants(daemon), ..machine(&daemon.resources) }
}

/// What is seen of the machine.
fn machine(resources: &Resources) -> Scene<GuestName> {
    Scene { memory: resources.machine.memory, free: Free::look(), pressure: pressure(), tenants: Vec::new() }
}

fn tenants(daemon: &Daemon) -> Vec<Tenant<GuestName>> {
    let resources = &daemon.resources;
    let guests: Vec<Rc<Guest>> = daemon.guests.borrow().values().cloned().collect();
    let tenant = |guest: &Rc<Guest>| {
        let (key, began) = (guest.name.clone(), guest.running.borrow().as_ref().map_or(0, |running| running.started));
        resources.with(&guest.name, |tenant| {
            let (reserve, shares) = (tenant.limits.memory.reserve.unwrap_or(0), tenant.limits.cpu.effective_share());
            Tenant { key, memory: Usage::memory(&tenant.groups), reserve, began, shares }
        })
    };
    guests.iter().filter_map(tenant).collect()
}

/// Takes a step, and tells of it. What fails is told too: the next look will find that it was of no avail.
async fn take(daemon: &Rc<Daemon>, step: Step<GuestName>, why: String, dry_run: bool) {
    let Some(guest) = daemon.guests.borrow().get(step.whom()).cloned() else { return };
    if dry_run {
        daemon.events.tell(guest.name.as_ref(), "watchdog", Some(format!("would {}: {why}", step.word())));
        return;
    }
    let (word, done) = match step {
        Step::Reclaim(_, bytes) => ("reclaim", take_memory(&daemon.resources, &guest, bytes).await),
        Step::Freeze(_) => {
            let frozen = freeze(&daemon.field, &guest, true);
            (
                "freeze",
                if frozen.is_ok() { take_memory(&daemon.resources, &guest, u64::MAX >> 12).await } else { frozen },
            )
        }
        Step::Thaw(_) => ("thaw", freeze(&daemon.field, &guest, false)),
        Step::Restart(_) if !guest.ephemeral => {
            // A frozen process dies of nothing but SIGKILL.
            let _ = freeze(&daemon.field, &guest, false);
            ("restart", restart::restart(daemon, &guest, Some(0)).await.map_err(|fault| fault.message))
        }
        Step::Restart(_) | Step::Stop(_) => {
            let _ = freeze(&daemon.field, &guest, false);
            ("stop", stop::stop(daemon, &guest, None, Some(0)).await.map_err(|fault| fault.message))
        }
    };
    let failed = done.err().map(|error| format!("; it failed: {error}")).unwrap_or_default();
    let why = format!("{why}{failed}");
    daemon.events.tell(guest.name.as_ref(), "watchdog", Some(format!("{word}: {why}")));
    daemon.resources.watch.note(WatchdogStep {
        time_ms: crate::state::events::now_ms(),
        guest: guest.name.to_string(),
        step: word.to_owned(),
        why,
    });
}

async fn take_memory(resources: &Resources, guest: &Guest, bytes: u64) -> Result<(), String> {
    let Some(groups) = resources.with(&guest.name, |tenant| tenant.groups.clone()) else { return Ok(()) };
    let bytes = bytes.min(Usage::memory(&groups));
    let taken = tokio::task::spawn_blocking(move || reclaim(&groups, bytes)).await;
    taken.map_err(|error| error.to_string())?.map_err(|error: CallError| error.to_string())
}

/// Freezes a guest's processes, or lets them go on; what somebody has paused stands still all the same.
fn freeze(field: &Field, guest: &Guest, frozen: bool) -> Result<(), String> {
    if guest.paused.get() { Ok(()) } else { pause::stand_still(field, guest, frozen) }
}

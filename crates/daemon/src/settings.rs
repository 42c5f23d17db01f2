//! What pando.toml says, as this daemon goes by it, and reading it again.
//!
//! ```text
//!   start, SIGHUP, `pando daemon reload` ─▶ Settings ─▶ watchdog, memory, logs, metrics: at once
//!                                                   └─▶ network: the next daemon
//! ```

use crate::logs;
use crate::logs::LogBound;
use crate::network::settings::NetworkSettings;
use crate::resources::metrics_settings::MetricsSettings;
use crate::resources::{admission, page_sharing, reclaiming, watchdog, watching};
use crate::state::daemon::Daemon;
use pando_guest::settings::{Effect, Problem, Settings, effect};
use pando_shim::Request;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Everything that is wrong with the settings.
pub(crate) fn problems(settings: &Settings) -> Vec<Problem> {
    if settings.is_unreadable() {
        return settings.table::<NetworkSettings>("network").1;
    }
    let mut all = settings.unknown_tables();
    all.extend(watchdog::rules(settings).1);
    all.extend(page_sharing::rules(settings).1);
    all.extend(reclaiming::rules(settings).1);
    all.extend(admission::rules(settings).1);
    all.extend(logs::settings(settings).1);
    all.extend(MetricsSettings::read(settings).1);
    all.extend(settings.table::<NetworkSettings>("network").1);
    all.extend(settings.table::<Transactions>("transactions").1);
    all.extend(settings.table::<crate::store::signature_trust::ImageSettings>("images").1);
    all
}

/// The table `[transactions]`, which every transaction reads for itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Transactions {
    contention: pando_tx::Contention,
    /// Of commands: what closes a gate makes processes of its own, which the daemon leaves to others.
    gate: pando_tx::GateChoice,
    #[serde(deserialize_with = "pando_tx::KeepBounds::setting")]
    keep: Option<pando_tx::KeepBounds>,
}

/// Who is favoured when the transaction of a program meets another, and what is kept of its commit.
pub(crate) fn of_commit(settings: &Settings, pid: i32) -> (pando_tx::Contention, Option<pando_tx::KeepRequest>) {
    // What is wrong is said when the daemon begins, and when it reads the settings again.
    let Transactions { contention, keep, gate: _ } = settings.table::<Transactions>("transactions").0;
    let uid = pando_kernel::process::login_user_of(pid);
    let within = |pando_tx::KeepBounds { bytes, age }| pando_tx::KeepRequest { bytes, age, uid, undoes: None };
    (contention, keep.map(within))
}

/// Says in the log what is wrong.
pub(crate) fn complain(problems: &[Problem]) {
    for problem in problems {
        tracing::error!("{problem}");
    }
}

/// What came of reading the file again.
#[derive(Debug, Default)]
pub(crate) struct Reloaded {
    /// `KEY = VALUE` of what holds now.
    pub(crate) applied: Vec<String>,
    /// The same of what the next daemon goes by.
    pub(crate) at_next_daemon: Vec<String>,
    /// What is wrong with the file.
    pub(crate) problems: Vec<String>,
}

/// Reads the file again, and goes by it. One that is no TOML changes nothing.
pub(crate) fn reload(daemon: &Rc<Daemon>) -> Reloaded {
    let new = Settings::read(&daemon.places);
    let problems = problems(&new);
    complain(&problems);
    let mut reloaded = Reloaded { problems: problems.iter().map(ToString::to_string).collect(), ..Reloaded::default() };
    if new.is_unreadable() {
        return reloaded;
    }
    watching::go_by(daemon, watchdog::rules(&new).0);
    daemon.page_sharing.go_by(page_sharing::rules(&new).0);
    daemon.admission.go_by(admission::rules(&new).0);
    daemon.reclaiming.go_by(reclaiming::rules(&new).0);
    bound_logs(daemon, logs::settings(&new).0);
    let metrics = MetricsSettings::read(&new).0;
    daemon.metrics.send_if_modified(|before| std::mem::replace(before, metrics.clone()) != metrics);
    let before: BTreeMap<_, _> = daemon.settings.replace(new.clone()).values().into_iter().collect();
    let after: BTreeMap<_, _> = new.values().into_iter().collect();
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for key in keys.into_iter().filter(|key| before.get(*key) != after.get(*key)) {
        let line = match after.get(key) {
            Some(value) => format!("{key} = {value}"),
            None => format!("{key} is as usual again"),
        };
        match effect(key.split('.').next().unwrap_or_default()) {
            Effect::NextDaemon => reloaded.at_next_daemon.push(line),
            Effect::Always | Effect::Reload => reloaded.applied.push(line),
        }
    }
    tracing::info!(?reloaded, "read the settings again");
    reloaded
}

/// From now on logs have another bound: the shims of the guests that run hear of it.
fn bound_logs(daemon: &Daemon, bound: LogBound) {
    if !daemon.logs.go_by(bound) {
        return;
    }
    for guest in daemon.guests.borrow().values() {
        if let Ok(running) = guest.life()
            && let Err(error) = running.link.shim().send(Request::Log { bound: daemon.logs.bound() }, &[])
        {
            tracing::warn!(%error, guest = %guest.name, "its shim did not hear how large its log may be now");
        }
    }
}

//! The processes of guests, as the host sees them: the spectator's view.

use crate::state::guest::Guest;
use pando_api::ProcessEntry;
use pando_guest::slot;
use pando_kernel::cgroup::{Field, tree};
use pando_kernel::namespace::id_map::IDS;
use pando_kernel::process::{self, Process, held::HeldProcess};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;

/// Milliseconds of a clock tick: USER_HZ is 100 on every architecture that Pando runs on.
const TICK_MS: i64 = 10;

/// One guest's processes.
pub(crate) fn of_guest(field: &Field, guest: &Rc<Guest>) -> Vec<ProcessEntry> {
    let Some(running) = guest.running.borrow().clone() else { return Vec::new() };
    let processes: Vec<_> =
        pids(field, running.slot).into_iter().filter_map(|pid| process::describe(pid).ok()).collect();
    let inner: HashMap<_, _> = processes.iter().map(|process| (process.pid, process.inner_pid)).collect();
    let first_id = running.namespace.as_ref().map(|_| slot::first_id(running.slot));
    processes.iter().map(|process| entry(guest.name.as_ref(), process, &inner, first_id)).collect()
}

/// The processes of no guest.
pub(crate) fn of_host(field: &Field) -> Vec<ProcessEntry> {
    let guests: HashSet<i32> = field.slots().into_iter().flat_map(|slot| pids(field, slot)).collect();
    let all = process::all().unwrap_or_default();
    let own = all.into_iter().filter(|pid| !guests.contains(pid));
    own.filter_map(|pid| process::describe(pid).ok())
        .map(|process| entry("", &process, &HashMap::new(), None))
        .collect()
}

fn entry(guest: &str, process: &Process, inner: &HashMap<i32, i32>, first_id: Option<u32>) -> ProcessEntry {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let uid = first_id.and_then(|first| process.uid.checked_sub(first)).filter(|uid| *uid < IDS).unwrap_or(process.uid);
    ProcessEntry {
        guest: guest.to_owned(),
        host_pid: process.pid,
        pid: process.inner_pid,
        ppid: if guest.is_empty() { process.parent } else { inner.get(&process.parent).copied().unwrap_or(0) },
        uid,
        state: process.state.to_string(),
        cpu_ms: number(process.ticks) * TICK_MS,
        rss_kib: number(process.rss_kib),
        command: process.command.clone(),
    }
}

/// The group that a slot's guest has all its processes in, or below.
fn group(field: &Field, slot: u32) -> Option<PathBuf> {
    let plot = field.plot(slot);
    plot.guest().or_else(|| plot.paths().first().cloned())
}

/// Those of some processes that are a slot's guest's still, whoever has got a pid of theirs.
pub(crate) fn held(field: &Field, slot: u32, pids: &[i32]) -> Vec<HeldProcess> {
    group(field, slot).map_or_else(Vec::new, |group| tree::held(&group, pids))
}

/// The pids of a slot's guest; its shim, which is Pando's own, is not among them.
pub(crate) fn pids(field: &Field, slot: u32) -> Vec<i32> {
    let Some(group) = group(field, slot) else { return Vec::new() };
    let found = tree::members(&group, "cgroup.procs", tree::Bounds::ALL);
    if !found.is_whole {
        tracing::warn!(group = %group.display(), "a control group below could not be read: processes in it are not seen");
    }
    let mut pids = found.ids;
    pids.sort_unstable();
    pids
}

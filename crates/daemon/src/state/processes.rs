//! The processes of guests, as the host sees them: the spectator's view.

use crate::state::guest::Guest;
use pando_api::ProcessEntry;
use pando_guest::slot;
use pando_kernel::cgroup::Field;
use pando_kernel::namespace::id_map::IDS;
use pando_kernel::process::{self, Process};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

/// Milliseconds of a clock tick: USER_HZ is 100 on every architecture that Pando runs on.
const TICK_MS: i64 = 10;

/// How deep a guest's own groups are followed.
const DEEPEST: usize = 64;

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

/// The pids of a slot's guest; its shim, which is Pando's own, is not among them.
pub(crate) fn pids(field: &Field, slot: u32) -> Vec<i32> {
    let plot = field.plot(slot);
    let mut found = Vec::new();
    match plot.guest() {
        Some(guest) => collect(&guest, 0, &mut found),
        None => plot.paths().first().into_iter().for_each(|group| collect(group, 0, &mut found)),
    }
    found.sort_unstable();
    found
}

fn collect(group: &Path, depth: usize, found: &mut Vec<i32>) {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    let below = std::fs::read_dir(group).into_iter().flatten().flatten();
    for entry in below {
        if depth < DEEPEST && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), depth + 1, found);
        }
    }
}

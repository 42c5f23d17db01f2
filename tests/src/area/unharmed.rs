//! A freeze changes nothing about the guest that it freezes, and takes nothing off it while it does.

use super::crash::daemon_with;
use super::freeze_refusals::state::State;
use crate::case::{Case, Tag};
use crate::line::Line;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

pub(crate) const CASES: &[Case] = &[
    Case::new("unharmed::no_call_passes_the_filter_during_freezes", |sandbox| filters(sandbox, 25)),
    Case::new("unharmed::no_call_passes_the_filter_during_200_freezes", |sandbox| filters(sandbox, 200))
        .tags(&[Tag::Slow]),
    Case::new("unharmed::a_suspended_filter_is_noticed", planted),
    Case::new("unharmed::signals_are_handled_as_before", |sandbox| signals(sandbox, 5)),
    // Allocators and the like rely on it that a section which was left is begun again.
    Case::new("unharmed::restartable_sequences_begin_again", |sandbox| is_unharmed(sandbox, &["section"], 20)),
    Case::new("unharmed::traps_of_its_own_reach_their_handler", |sandbox| is_unharmed(sandbox, &["raise"], 20)),
    Case::new("unharmed::who_waits_in_vfork_is_waited_for", |sandbox| is_unharmed(sandbox, &["vfork"], 10)),
    Case::new("unharmed::subreapers_get_no_children", |sandbox| subreapers(sandbox, 10)),
    Case::new("unharmed::subreapers_get_no_children_of_100_freezes", |sandbox| subreapers(sandbox, 100))
        .tags(&[Tag::Slow]),
    Case::new("unharmed::what_forks_share_stays_shared", shared_memory),
    Case::new("unharmed::a_hundred_freezes_leave_no_trace", |sandbox| signals(sandbox, 100)).tags(&[Tag::Slow]),
];

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/standing"));

/// A guest that runs the program, with words.
pub(super) fn guest(sandbox: &Sandbox, words: &[&str]) {
    guest_with(sandbox, &[], words);
}

/// The same with options of `pando create`.
pub(super) fn guest_with(sandbox: &Sandbox, options: &[&str], words: &[&str]) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    let program = tree.join("bin/standing");
    std::fs::write(&program, PROGRAM).expect("a file");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let create = sandbox.pando(["create", "source", "--from", &tree.to_string_lossy()]).args(options);
    create.args(["--", "standing"]).args(words).ok();
    sandbox.pando(["start", "source"]).ok();
}

/// Freezes it. False where that is refused because the guest has what its filter denies.
fn freeze(sandbox: &Sandbox) -> bool {
    let ended = sandbox.pando(["freeze", "source", "image", "--memory"]).limit(60).run();
    if ["an io_uring instance", "a userfaultfd"].iter().any(|denied| ended.err().contains(denied)) {
        return false;
    }
    ended.succeeded();
    sandbox.pando(["image", "rm", "image"]).ok();
    true
}

/// What the program says of its calls: how many it made, and how many its filter let pass.
fn calls(sandbox: &Sandbox) -> Option<(u64, u64)> {
    let said: PathBuf = sandbox.places().guests().join("source/files/upper/said");
    let text = std::fs::read_to_string(said).ok()?;
    let (calls, passed) = text.trim().strip_suffix(" passed")?.split_once(" calls, ")?;
    Some((calls.parse().ok()?, passed.parse().ok()?))
}

/// Freezes it again and again while four threads make calls that its filter refuses; how many were let pass, as
/// far as is known.
fn passed_during(sandbox: &Sandbox, freezes: usize) -> u64 {
    guest(sandbox, &["filter", "4"]);
    eventually("it makes calls", || calls(sandbox).is_some_and(|(calls, _)| calls > 0));
    if !(0..freezes).all(|_| freeze(sandbox)) {
        return 1;
    }
    let (before, _) = calls(sandbox).expect("it said so before");
    eventually("it goes on", || calls(sandbox).is_some_and(|(calls, _)| calls > before));
    calls(sandbox).expect("it said so before").1
}

fn filters(sandbox: &Sandbox, freezes: usize) {
    assert_eq!(passed_during(sandbox, freezes), 0, "calls passed the filter while the guest was being stopped");
}

/// A freezer that suspends filters of threads that still run, as no freezer may.
fn planted(sandbox: &Sandbox) {
    let daemon = daemon_with(sandbox, "PANDO_PLANT", "suspend-while-running");
    assert!(passed_during(sandbox, 40) > 0, "the test does not notice a filter that is suspended too early");
    sandbox.end_daemon();
    daemon.wait();
}

fn processes(sandbox: &Sandbox) -> Vec<i32> {
    processes_of(sandbox, "source")
}

/// The processes of a guest, by their numbers on the host.
pub(super) fn processes_of(sandbox: &Sandbox, name: &str) -> Vec<i32> {
    let first = sandbox.first_process(name);
    let own = std::fs::read_link(format!("/proc/{first}/ns/pid")).expect("it runs");
    let pids = process::all().into_iter().map(|process| process.pid);
    pids.filter(|pid| std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|space| space == own)).collect()
}

fn signals(sandbox: &Sandbox, freezes: usize) {
    guest(sandbox, &["trap"]);
    let all_wait = || processes(sandbox).iter().all(|pid| process::state(*pid) == Some('S'));
    eventually("all are there and wait", || processes(sandbox).len() == 4 && all_wait());
    let pids = processes(sandbox);
    let having = |field| {
        let has = |pid: &&i32| process::status(**pid, field).is_some_and(|set| has(&set, 5));
        pids.iter().filter(has).count()
    };
    assert!(having("SigIgn") > 0 && having("SigCgt") > 1, "the program has what it is to keep");
    let before = State::of_processes(processes(sandbox));
    for _ in 0..freezes {
        assert!(freeze(sandbox), "it holds nothing that is denied");
    }
    eventually("all wait again", all_wait);
    assert_eq!(State::of_processes(processes(sandbox)), before);
    // Who handles it lives on, and so does who ignores it.
    for pid in pids.iter().filter(|pid| **pid != sandbox.first_process("source")) {
        process::signal(*pid, rustix::process::Signal::TRAP);
    }
    sandbox.exec_sh("source", "true").ok();
    assert_eq!(processes(sandbox), pids, "one of them died of SIGTRAP");
}

/// What the program says of what it does: how often it did that, and how often something was wrong with it.
fn harmed(sandbox: &Sandbox) -> Option<(u64, u64)> {
    let said = sandbox.places().guests().join("source/files/upper/said");
    let text = std::fs::read_to_string(said).ok()?;
    let (all, harmed) = text.trim().split_once(", ")?;
    let number = |words: &str| words.split(' ').next()?.parse().ok();
    Some((number(all)?, number(harmed)?))
}

/// Freezes the program again and again while it does something: nothing is wrong with that.
fn is_unharmed(sandbox: &Sandbox, words: &[&str], freezes: usize) {
    guest(sandbox, words);
    eventually("it does it", || harmed(sandbox).is_some_and(|(all, _)| all > 0));
    for _ in 0..freezes {
        assert!(freeze(sandbox), "it holds nothing that is denied");
    }
    let (before, _) = harmed(sandbox).expect("it said so before");
    eventually("it goes on", || harmed(sandbox).is_some_and(|(all, _)| all > before));
    let said = || harmed(sandbox).expect("it said so before");
    assert_eq!(said().1, 0, "of {} were harmed", said().0);
}

/// Orphans fall to a subreaper as before, and nothing else does: the forks that a freeze makes are nobody's children.
fn subreapers(sandbox: &Sandbox, freezes: usize) {
    is_unharmed(sandbox, &["reaper"], freezes);
    let zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l";
    eventually("no zombie stays", || sandbox.exec_sh("source", zombies).ok().trim() == "0");
}

/// Bytes of memory that the guest's processes take, of which what several share counts once.
fn memory(sandbox: &Sandbox) -> u64 {
    proportion(&processes(sandbox))
}

/// Bytes of memory that processes take, each its part of what is shared.
pub(super) fn proportion(pids: &[i32]) -> u64 {
    let of = |pid: &i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    pids.iter().filter_map(of).sum::<u64>() << 10
}

/// Memory that is loaded before workers are forked is there once. Huge pages in its place would be each worker's own.
fn shared_memory(sandbox: &Sandbox) {
    const LOADED: u64 = 64 << 20;
    guest(sandbox, &["prefork", "64", "4"]);
    eventually("its workers are there", || processes(sandbox).len() == 6 && memory(sandbox) > LOADED);
    let before = memory(sandbox);
    assert!(freeze(sandbox), "it holds nothing that is denied");
    let after = memory(sandbox);
    assert!(after < before + LOADED / 2, "before the freeze it took {before} bytes, and {after} after");
}

/// Whether a set of signals in /proc/PID/status has one.
fn has(set: &str, signal: u32) -> bool {
    u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set & 1 << (signal - 1) != 0)
}

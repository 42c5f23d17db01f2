//! A freeze changes nothing about the guest that it freezes, and takes nothing off it while it does.

use crate::case::{Case, Tag};
use crate::line::Line;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

pub(crate) const CASES: &[Case] = &[
    Case::new("unharmed::no_call_passes_the_filter_during_freezes", |sandbox| filters(sandbox, 25)),
    Case::new("unharmed::no_call_passes_the_filter_during_200_freezes", |sandbox| filters(sandbox, 200))
        .tags(&[Tag::Slow]),
    Case::new("unharmed::a_suspended_filter_is_noticed", planted),
    Case::new("unharmed::signals_are_handled_as_before", |sandbox| signals(sandbox, 5)),
    Case::new("unharmed::a_hundred_freezes_leave_no_trace", |sandbox| signals(sandbox, 100)).tags(&[Tag::Slow]),
];

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/standing"));

/// A guest that runs the program, with words.
fn guest(sandbox: &Sandbox, words: &[&str]) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    let program = tree.join("bin/standing");
    std::fs::write(&program, PROGRAM).expect("a file");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    sandbox.pando(["create", "source", "--from", &tree.to_string_lossy(), "--", "standing"]).args(words).ok();
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
    let _daemon = sandbox.pando(["daemon"]).env("PANDO_KERNEL_PLANT", "suspend-while-running").start();
    eventually("the daemon that makes the mistake serves", || sandbox.daemon().is_some());
    assert!(passed_during(sandbox, 40) > 0, "the test does not notice a filter that is suspended too early");
}

/// What the kernel tells of each process of the guest that a freeze could change, by its pid on the host.
fn told(sandbox: &Sandbox) -> BTreeMap<i32, BTreeMap<&'static str, String>> {
    const FIELDS: [&str; 19] = [
        "State",
        "PPid",
        "TracerPid",
        "Uid",
        "Gid",
        "FDSize",
        "Threads",
        "SigPnd",
        "ShdPnd",
        "SigBlk",
        "SigIgn",
        "SigCgt",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
    ];
    let first = sandbox.first_process("source");
    let own = std::fs::read_link(format!("/proc/{first}/ns/pid")).expect("it runs");
    let pids = process::all().into_iter().map(|process| process.pid);
    let inside = pids.filter(|pid| std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|space| space == own));
    let fields =
        |pid| FIELDS.map(|field| (field, process::status(pid, field).unwrap_or_default())).into_iter().collect();
    inside.map(|pid| (pid, fields(pid))).collect()
}

fn signals(sandbox: &Sandbox, freezes: usize) {
    guest(sandbox, &["trap"]);
    eventually("all are there and wait", || {
        let told = told(sandbox);
        told.len() == 4 && told.values().all(|fields| fields["State"].starts_with('S'))
    });
    let before = told(sandbox);
    let ignoring = before.values().filter(|fields| has(&fields["SigIgn"], 5)).count();
    let handling = before.values().filter(|fields| has(&fields["SigCgt"], 5)).count();
    assert!(ignoring > 0 && handling > 1, "the program has what it is to keep: {before:#?}");
    for _ in 0..freezes {
        assert!(freeze(sandbox), "it holds nothing that is denied");
    }
    eventually("all wait again", || told(sandbox).values().all(|fields| fields["State"].starts_with('S')));
    assert_eq!(told(sandbox), before);
    // Who handles it lives on, and so does who ignores it.
    for pid in before.keys().filter(|pid| **pid != sandbox.first_process("source")) {
        process::signal(*pid, rustix::process::Signal::TRAP);
    }
    sandbox.exec_sh("source", "true").ok();
    assert_eq!(told(sandbox).len(), before.len(), "one of them died of SIGTRAP");
}

/// Whether a set of signals in /proc/PID/status has one.
fn has(set: &str, signal: u32) -> bool {
    u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set & 1 << (signal - 1) != 0)
}

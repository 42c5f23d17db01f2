//! The daemon's own filter and capabilities: its threads have them, what guests are made of has not, and calls that
//! change the machine for everybody are refused.

use super::crash::daemon_with;
use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("daemon_walls::its_threads_are_behind_them", threads),
    Case::new("daemon_walls::what_guests_are_made_of_is_not", guests),
    Case::new("daemon_walls::what_it_never_needs_is_refused", refused),
    Case::new("daemon_walls::without_them_it_would_not_be", without_walls),
    Case::new("daemon_walls::the_units_exposure_is_held", exposure)
        .needs(&[Need::Program("systemd-analyze", "systemd")]),
    Case::new("daemon_walls::guests_run_with_what_the_unit_leaves", under_the_unit)
        .needs(&[Need::Root, Need::Program("setpriv", "util-linux")]),
];

/// What systemd starts the daemon by.
const UNIT: &str = include_str!("../../../dist/pando.service");

/// In tenths, as systemd-analyze takes it. docs/daemon.md says why it is not less.
const EXPOSURE: &str = "90";

/// Threads that freeze, and that start what guests are made of.
const UNFILTERED: &str = "unfiltered";

/// Capabilities that the daemon gives up, by their bits: to load modules, for raw access, to count processes, to
/// reboot, to set clocks, to hang up terminals.
const GIVEN_UP: [u32; 6] = [16, 17, 20, 22, 25, 26];

fn field(pid: i32, name: &str) -> String {
    process::status(pid, name).unwrap_or_else(|| panic!("process {pid} has no {name}"))
}

/// A guest and an image of it, so that all kinds of threads and processes are there; the guest's command and the
/// image's holder.
fn frozen(sandbox: &Sandbox) -> (i32, i32) {
    sandbox.guest("web", &["--", "sh", "-c", "exec sleep 100000"]);
    sandbox.pando(["freeze", "web", "warm"]).ok();
    let inspected: serde_json::Value =
        serde_json::from_str(&sandbox.pando(["image", "inspect", "warm"]).ok()).expect("it is JSON");
    let holder = inspected["holder"].as_i64().expect("it is held").try_into().expect("it is a pid");
    (sandbox.first_process("web"), holder)
}

fn threads(sandbox: &Sandbox) {
    frozen(sandbox);
    let daemon = sandbox.daemon().expect("it runs");
    let (mut behind, mut free) = (0, 0);
    for entry in std::fs::read_dir(format!("/proc/{daemon}/task")).expect("it runs").flatten() {
        let thread: i32 = entry.file_name().to_string_lossy().parse().expect("a number");
        let Ok(name) = std::fs::read_to_string(entry.path().join("comm")) else { continue };
        if name.trim() == UNFILTERED && thread != daemon {
            free += 1;
            continue;
        }
        assert_eq!((field(thread, "Seccomp"), field(thread, "NoNewPrivs")), ("2".into(), "1".into()), "{name}");
        for set in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
            let has = u64::from_str_radix(&field(thread, set), 16).expect("a number");
            let kept: Vec<_> = GIVEN_UP.iter().filter(|bit| has & 1 << **bit != 0).collect();
            assert!(kept.is_empty(), "{name} has {kept:?} in {set}");
        }
        behind += 1;
    }
    // The one that reads what clients say, and the one that makes others.
    assert!(behind >= 1 && free >= 1, "{behind} behind the walls, {free} not");
}

fn guests(sandbox: &Sandbox) {
    let (guest, holder) = frozen(sandbox);
    let spawner = sandbox.spawner().expect("it runs");
    for (what, pid) in [("spawner", spawner), ("holder", holder)] {
        assert_eq!((field(pid, "Seccomp"), field(pid, "NoNewPrivs")), ("0".into(), "0".into()), "{what}");
    }
    sandbox.pando(["clone", "warm", "web2"]).ok();
    let filters = |pid: i32| process::status(pid, "Seccomp_filters");
    let clone = sandbox.first_process("web2");
    assert_eq!(filters(guest), filters(clone), "the clone has other filters");
    assert_eq!((field(guest, "NoNewPrivs"), field(clone, "NoNewPrivs")), ("0".into(), "0".into()));
    // Also when what guests are made of is started by a daemon that has walls already.
    process::kill(spawner);
    eventually("there is another spawner", || {
        sandbox.run_sh(&[], "true").run();
        sandbox.spawner().is_some_and(|now| now != spawner)
    });
    let now = sandbox.spawner().expect("it runs");
    assert_eq!((field(now, "Seccomp"), field(now, "NoNewPrivs")), ("0".into(), "0".into()));
}

/// What calls answered in the daemon: thread, call, error number.
fn answers(sandbox: &Sandbox, mistake: &str) -> Vec<(String, String, i32)> {
    let daemon = daemon_with(sandbox, "PANDO_PLANT", mistake);
    sandbox.pando(["ls"]).ok();
    sandbox.end_daemon();
    let said = daemon.wait().err();
    let planted = said.lines().filter_map(|line| line.split("planted: ").nth(1));
    let words = planted.map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let all: Vec<_> =
        words.map(|words| (words[0].clone(), words[1].clone(), words[2].parse().expect("a number"))).collect();
    assert_eq!(all.len(), 16, "eight calls in two threads: {said}");
    all
}

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;

fn refused(sandbox: &Sandbox) {
    for (thread, call, errno) in answers(sandbox, "daemon.forbidden") {
        let wanted = if call == "keyctl" { ENOSYS } else { EPERM };
        assert_eq!(errno, wanted, "{call} in thread {thread}");
    }
}

/// The test above would notice: the kernel finds fault with what was asked.
fn without_walls(sandbox: &Sandbox) {
    let all = answers(sandbox, "daemon.bare");
    for call in ["reboot", "settimeofday", "ptrace"] {
        for (thread, _, errno) in all.iter().filter(|(_, name, _)| name == call) {
            assert!(![0, EPERM, ENOSYS].contains(errno), "{call} in thread {thread}: {errno}");
        }
    }
}

fn exposure(sandbox: &Sandbox) {
    let unit = sandbox.scratch().join("pando.service");
    std::fs::write(&unit, UNIT).expect("there is room");
    let threshold = format!("--threshold={EXPOSURE}");
    let words = ["security", "--offline=true", "--no-pager", &threshold, &unit.to_string_lossy()];
    Line::new("systemd-analyze").args(words).ok();
}

/// Capabilities are all that the unit takes away.
fn under_the_unit(sandbox: &Sandbox) {
    let lists = UNIT.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet=~CAP_"));
    let taken: Vec<String> =
        lists.flat_map(|list| list.split(" CAP_")).map(|name| format!("-{}", name.to_lowercase())).collect();
    assert!(taken.len() > 5, "{taken:?}");
    let root = sandbox.root().to_string_lossy().into_owned();
    let pando = sandbox.program().to_string_lossy().into_owned();
    let words = [format!("--bounding-set={}", taken.join(",")), pando, "--root".into(), root, "daemon".into()];
    let daemon = Line::new("setpriv").args(words).limit(600).start();
    eventually("the daemon listens", || std::os::unix::net::UnixStream::connect(sandbox.places().socket()).is_ok());
    let capabilities = |options: &[&str]| sandbox.run_sh(options, "grep CapEff /proc/self/status").ok();
    assert_eq!(capabilities(&[]), "CapEff:\t00000000a80425fb\n");
    assert_eq!(capabilities(&["--userns", "host"]), "CapEff:\t00000000a80425fb\n");
    assert!(capabilities(&["--profile", "system"]).ends_with("1ffffffffff\n"), "in a user namespace it has all");
    frozen(sandbox);
    sandbox.pando(["clone", "warm", "web2"]).ok();
    sandbox.exec_sh("web2", "true").ok();
    for name in ["web", "web2"] {
        sandbox.pando(["rm", "--force", name]).ok();
    }
    sandbox.end_daemon();
    daemon.wait();
}

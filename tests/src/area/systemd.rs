//! A Debian system under systemd: booted, rebooted, powered off from inside and stopped from outside.

use crate::case::{Case, Tag, skip};
use crate::line::Ended;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};
use std::time::Instant;

const VM: &[Tag] = &[Tag::Vm];

pub(crate) const CASES: &[Case] =
    &[Case::new("systemd::boots_reboots_powers_off_and_stops", boots_reboots_powers_off_and_stops).tags(VM)];

/// Where the emulated machine has the system.
const IN_MACHINE: &str = "/opt/images/debian-systemd.tar";

/// Where the machine's build leaves it, relative to a directory above this program.
const BUILT: &str = "vm/systemd-root.tar";

/// What a guest cannot have: file systems that show the whole kernel, and a console.
const KNOWN: [&str; 3] = ["sys-kernel-debug.mount", "sys-kernel-tracing.mount", "console-getty.service"];

/// Seconds for a boot on a laden machine.
const LIMIT: u64 = 120;

/// How often a guest that is between two lives is asked again.
const ATTEMPTS: u32 = 20;

fn tarball() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    let built = program.ancestors().map(|place| place.join(BUILT)).find(|path| path.is_file());
    let cache = std::env::var_os("PANDO_VM_CACHE").map(|cache| Path::new(&cache).join("systemd-root.tar"));
    let places = cache.into_iter().chain(built).chain([PathBuf::from(IN_MACHINE)]);
    places
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or_else(|| skip("there is no system to boot: tests/vm/run --build makes it"))
}

#[track_caller]
fn inside(sandbox: &Sandbox, script: &str) -> Ended {
    sandbox.exec_sh("sd", script).limit(LIMIT).run()
}

/// Waits until systemd has started everything, and wants nothing unknown to have failed.
#[track_caller]
fn boots(sandbox: &Sandbox) {
    const UP: &str =
        "until systemctl is-system-running 2>/dev/null | grep -qx 'running\\|degraded'; do sleep 0.2; done";
    let up = (0..ATTEMPTS).any(|_| {
        let up = inside(sandbox, UP).code() == 0;
        if !up {
            std::thread::sleep(crate::patience::seconds(1) / 10);
        }
        up
    });
    assert!(up, "it does not come up: {}", inside(sandbox, "systemctl list-jobs; systemctl --failed").out());
    let failed = inside(sandbox, "systemctl --failed --plain --no-legend").succeeded().out();
    let unknown: Vec<&str> =
        failed.lines().filter_map(|line| line.split(' ').next()).filter(|unit| !KNOWN.contains(unit)).collect();
    assert!(
        unknown.is_empty(),
        "{unknown:?} failed: {}",
        inside(sandbox, &format!("systemctl status {}", unknown.join(" "))).out()
    );
}

fn told(what: &str, since: Instant) {
    println!("systemd: {what} {:.1} s", since.elapsed().as_secs_f32());
}

fn boots_reboots_powers_off_and_stops(sandbox: &Sandbox) {
    let image = tarball().to_string_lossy().into_owned();
    sandbox.pando(["create", "sd", "--from", &image, "--init", "/sbin/init", "--stop-timeout", "90"]).limit(300).ok();
    let begin = Instant::now();
    sandbox.pando(["start", "sd"]).ok();
    boots(sandbox);
    told("boot", begin);
    manages_units(sandbox);
    reboots(sandbox);
    let begin = Instant::now();
    inside(sandbox, "systemctl poweroff");
    eventually("the guest powers off", || sandbox.state("sd") == "stopped");
    told("poweroff", begin);
    ended_well(sandbox);
    sandbox.pando(["start", "sd"]).ok();
    boots(sandbox);
    witness(sandbox);
    let begin = Instant::now();
    sandbox.pando(["stop", "sd"]).limit(LIMIT).ok();
    told("stop", begin);
    ended_well(sandbox);
    let left = sandbox.places().guest(&"sd".parse().expect("a name")).join("files/upper/var/stopped-in-order");
    assert!(left.exists(), "systemd did not stop its units");
}

#[track_caller]
fn ended_well(sandbox: &Sandbox) {
    let status = sandbox.status("sd").expect("it is there still");
    assert_eq!((&status["state"], &status["exit_code"]), (&"stopped".into(), &0.into()), "{status}");
}

fn manages_units(sandbox: &Sandbox) {
    inside(sandbox, "systemd-run --wait --quiet sh -c 'exit 0'").succeeded();
    inside(sandbox, "systemd-run --quiet --unit=long sleep 1000 && systemctl is-active long").succeeded();
    inside(sandbox, "grep -q long.service /proc/$(systemctl show -P MainPID long)/cgroup && systemctl stop long")
        .succeeded();
    inside(sandbox, "! systemctl is-active long").succeeded();
}

/// A unit that leaves a file when it is stopped in order.
fn witness(sandbox: &Sandbox) {
    let script =
        "systemd-run --quiet --unit=witness --property='ExecStop=/bin/touch /var/stopped-in-order' sleep infinity";
    inside(sandbox, script).succeeded();
}

fn reboots(sandbox: &Sandbox) {
    let before = i64::from(sandbox.first_process("sd"));
    let begin = Instant::now();
    // The guest may be gone before the command's end can be told.
    inside(sandbox, "systemctl reboot");
    let reborn = || sandbox.status("sd").and_then(|status| status["pid"].as_i64()).is_some_and(|pid| pid != before);
    eventually("the guest reboots", reborn);
    boots(sandbox);
    told("reboot", begin);
}

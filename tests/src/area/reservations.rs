//! Reservations of processor time: what is promised is had, and never promised twice.

use super::limits::{held, hog};
use crate::case::{Case, Tag, skip};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use pando_kernel::process::time_slice;
use std::path::Path;
use std::time::Duration;

/// What Pando gives to guests with a reservation.
const SLICE: Duration = Duration::from_micros(300);

pub(crate) const CASES: &[Case] = &[
    Case::new("limits::a_reservation_is_a_weight", a_reservation_is_a_weight).tags(&[Tag::Vm]),
    Case::new("limits::reservations_end_at_the_machine", reservations_end_at_the_machine).tags(&[Tag::Vm]),
    Case::new("limits::a_reservation_makes_prompt", a_reservation_makes_prompt).tags(&[Tag::Vm]),
    Case::new("limits::they_outlive_guest_and_daemon", they_outlive_guest_and_daemon).tags(&[Tag::Vm]),
    Case::new("limits::the_daemon_is_on_time", the_daemon_is_on_time).tags(&[Tag::Vm]),
    // Every processor is busy for as long as it takes: nothing else can be tested beside.
    Case::new("limits::a_reservation_is_had", a_reservation_is_had).tags(&[Tag::Slow]),
];

/// The weight of a guest's processor time.
fn weight(sandbox: &Sandbox, name: &str) -> u64 {
    let groups = groups(sandbox, name);
    let files = groups.iter().flat_map(|group| ["cpu.shares", "cpu.weight"].map(|file| format!("{group}/{file}")));
    files
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
        .next()
        .expect("a group has a weight")
}

fn a_reservation_is_a_weight(sandbox: &Sandbox) {
    sandbox.guest("plain", &[]);
    sandbox.guest("double", &["--cpu-share", "200"]);
    let usual = weight(sandbox, "plain");
    assert_eq!(weight(sandbox, "double"), 2 * usual);
    // Shares of 100 + 200 + 100 split three quarters: one of 100 is worth three sixteenths, and a quarter 133 more.
    sandbox.guest("reserved", &["--cpu-reserve", "25%", "--cpu-share", "100"]);
    let expected = usual * 7 / 3;
    assert!(weight(sandbox, "reserved").abs_diff(expected) <= expected / 50, "{}", weight(sandbox, "reserved"));
    assert_eq!(weight(sandbox, "plain"), usual, "a plain share keeps its weight");
    sandbox.pando(["rm", "-f", "double"]).ok();
    let expected = usual * 5 / 3;
    eventually("the weight follows who is there", || weight(sandbox, "reserved").abs_diff(expected) <= expected / 50);
}

fn a_reservation_makes_prompt(sandbox: &Sandbox) {
    let Ok(usual) = time_slice::of(0) else {
        skip("this kernel has one slice of processor time for all; since 6.12 each thread has its own");
    };
    let slice = |name: &str| time_slice::of(sandbox.first_process(name)).expect("it runs");
    sandbox.guest("plain", &[]);
    sandbox.guest("reserved", &["--cpu-reserve", "10%"]);
    assert_eq!((slice("plain"), slice("reserved")), (usual, SLICE));
    // What comes into it later has it too.
    let of_all = || -> Vec<Duration> {
        let pids = groups(sandbox, "reserved").into_iter().flat_map(|group| pids_below(group.as_ref()));
        pids.filter_map(|pid| time_slice::of(pid).ok()).collect()
    };
    let before = of_all().len();
    let _later = sandbox.exec_sh("reserved", "sleep 1000").start();
    eventually("a command is there besides", || of_all().len() > before);
    assert!(of_all().iter().all(|slice| *slice == SLICE), "{:?}", of_all());
    sandbox.pando(["set", "reserved", "cpu.reserve=", "cpu.share=100"]).ok();
    assert!(of_all().iter().all(|slice| *slice == usual), "{:?}", of_all());
    sandbox.pando(["set", "reserved", "cpu.reserve=20%"]).ok();
    assert!(of_all().iter().all(|slice| *slice == SLICE), "{:?}", of_all());
}

fn reservations_end_at_the_machine(sandbox: &Sandbox) {
    sandbox.guest("most", &["--cpu-reserve", "70%", "--cpu-share", "1"]);
    // It may exist, and it may run when the other does not.
    sandbox.create("half", &["--cpu-reserve", "50%", "--cpu-share", "1"]);
    sandbox.pando(["start", "half"]).run().ended_with(125).complains_of(&["cpu.reserve", "50%", "70%", "30%"]);
    sandbox.pando(["set", "half", "cpu.reserve=30%"]).ok();
    sandbox.pando(["start", "half"]).ok();
    sandbox.pando(["set", "half", "cpu.reserve=31%"]).run().ended_with(125).complains_of(&["cpu.reserve", "31%"]);
    assert_eq!(sandbox.inspect("half")["spec"]["cpu"]["reserve"], "30%", "what is refused changes nothing");
    let warned =
        sandbox.pando(["create", "wide", "--from", sandbox.busybox(), "--cpu-reserve", "100%"]).run().succeeded();
    if std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
        warned.complains_of(&["warning", "single thread"]);
    }
}

fn they_outlive_guest_and_daemon(sandbox: &Sandbox) {
    sandbox.guest("web", &["--memory", "32M", "--swap", "0", "--cpu-reserve", "60%", "--cpu-share", "50"]);
    let before = weight(sandbox, "web");
    let daemon = sandbox.daemon().expect("it runs");
    crate::process::signal(daemon, rustix::process::Signal::KILL);
    eventually("the daemon has gone", || !crate::process::is_alive(daemon));
    sandbox.exec_sh("web", &hog(64)).run().ended_with(137);
    assert_eq!((held(sandbox, "web", "memory.limit"), weight(sandbox, "web")), (vec!["33554432".into()], before));
    // The next daemon knows what is promised.
    sandbox.run_sh(&["--cpu-reserve", "50%"], "true").run().ended_with(125).complains_of(&["cpu.reserve", "60%"]);
    sandbox.pando(["restart", "web"]).ok();
    assert_eq!(held(sandbox, "web", "memory.limit"), ["33554432"]);
    sandbox.exec_sh("web", &hog(64)).run().ended_with(137);
    sandbox.pando(["stop", "web"]).ok();
    sandbox.run_sh(&["--cpu-reserve", "50%"], "true").run().succeeded();
}

/// The groups of a guest that runs.
fn groups(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let seen = sandbox.inspect(name);
    let groups = seen["cgroups"].as_array().expect("an array").iter();
    groups.filter_map(|group| Some(group.as_str()?.to_owned())).collect()
}

/// Who is in a group, or, in version 2, in those below it that hold the processes.
fn pids_below(group: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = text.lines().filter_map(|line| line.parse().ok());
    let below = std::fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
    own.chain(below.filter(|path| path.is_dir()).flat_map(|path| pids_below(&path))).collect()
}

/// Whether nothing bounds the processor time of groups.
fn are_free(groups: &[String]) -> bool {
    let files = groups.iter().flat_map(|group| ["cpu.cfs_quota_us", "cpu.max"].map(|file| format!("{group}/{file}")));
    let bound = files.filter_map(|file| std::fs::read_to_string(file).ok()).next().expect("a group has a bound");
    matches!(bound.trim(), "-1" | "max 100000")
}

/// Takes their weight from groups again and again, as a scheduler that divides each processor by itself does with who
/// sleeps and wakes.
fn squeeze(groups: &[String], until: impl Fn() -> bool) {
    eventually("somebody is held to his due", || {
        for group in groups {
            for (file, least) in [("cpu.shares", "2"), ("cpu.weight", "1")] {
                let path = format!("{group}/{file}");
                if std::path::Path::new(&path).exists() {
                    std::fs::write(path, least).expect("a weight can be written");
                }
            }
        }
        until()
    });
}

fn a_reservation_is_had(sandbox: &Sandbox) {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let more = "(while :; do :; done) & ".repeat(processors - 1);
    let spin = format!("{more}while :; do :; done");
    let busy = ["--", "sh", "-c", &spin];
    let promise = || sandbox.guest("promised", &[&["--cpu-reserve", "60%", "--cpu-share", "100"][..], &busy].concat());
    promise();
    sandbox.guest("greedy", &busy);
    let (promised, greedy) = (groups(sandbox, "promised"), groups(sandbox, "greedy"));
    assert!(are_free(&greedy));
    squeeze(&promised, || !are_free(&greedy));
    assert!(are_free(&promised));
    sandbox.pando(["rm", "-f", "promised"]).ok();
    eventually("nobody is protected any more", || are_free(&greedy));
    promise();
    let promised = groups(sandbox, "promised");
    squeeze(&promised, || !are_free(&greedy));
    let daemon = sandbox.daemon().expect("it runs");
    crate::process::signal(daemon, rustix::process::Signal::KILL);
    eventually("the daemon has gone", || !crate::process::is_alive(daemon));
    assert!(!are_free(&greedy), "the last bounds stand");
    // The next daemon does not know what they were for.
    sandbox.pando(["rm", "-f", "promised"]).ok();
    eventually("the next daemon takes them back", || are_free(&greedy));
}

/// The scheduling policy of a process's first thread, by the kernel's number.
fn policy(pid: i32) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The name is in parentheses, and may hold blanks; the policy is the 41st field, the 39th behind it.
    let (_, fields) = text.rsplit_once(") ").expect("a name stands in parentheses");
    fields.split(' ').nth(38).and_then(|field| field.parse().ok()).expect("a policy is a number")
}

/// What is promised needs somebody to look after it, who must not stand in line himself.
fn the_daemon_is_on_time(sandbox: &Sandbox) {
    const USUAL: u32 = 0;
    const FIRST_COME: u32 = 1;
    sandbox.guest("promised", &["--cpu-reserve", "20%", "--cpu-share", "100"]);
    let daemon = sandbox.daemon().expect("it runs");
    assert_eq!(policy(daemon), USUAL, "nobody competes with who is alone");
    sandbox.guest("other", &[]);
    eventually("it comes before others, or says that it may not", || {
        policy(daemon) == FIRST_COME || sandbox.daemon_log().contains("cannot come before other threads")
    });
    if policy(daemon) != FIRST_COME {
        skip("the daemon may not be a real-time process here");
    }
    sandbox.guest("third", &[]);
    for name in ["other", "third"] {
        assert_eq!(policy(sandbox.first_process(name)), USUAL, "what it starts is as all are");
        sandbox.exec_sh(name, "awk '{ print $41 }' /proc/self/stat").run().says("0\n");
    }
    sandbox.pando(["rm", "-f", "promised"]).ok();
    eventually("it is as all are again", || policy(daemon) == USUAL);
}

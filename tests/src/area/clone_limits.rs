//! Limits of clones: each has those of its source, in control groups of its own, and what is changed of one's is
//! changed of nobody else's.

use super::limits::{held, hog, stats, throttled};
use crate::case::Case;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use serde_json::Value;

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_limits::they_are_enforced_in_each", they_are_enforced_in_each),
    Case::new("clone_limits::ones_change_is_nobody_elses", ones_change_is_nobody_elses),
    Case::new("clone_limits::they_outlive_the_daemon_and_a_start_anew", they_outlive_the_daemon),
];

const OPTIONS: [&str; 8] = ["--memory", "32M", "--swap", "0", "--pids", "12", "--cpu-limit", "0.2"];
const GUESTS: [&str; 3] = ["source", "warm-1", "warm-2"];

fn cloned(sandbox: &Sandbox) {
    sandbox.guest("source", &[&OPTIONS[..], &["--", "sleep", "100000"]].concat());
    sandbox.pando(["freeze", "source", "warm", "--wait"]).ok();
    sandbox.pando(["clone", "warm", "-n", "2"]).ok();
}

fn groups(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let seen = sandbox.inspect(name);
    let groups = seen["cgroups"].as_array().expect("an array").iter().filter_map(Value::as_str);
    groups.map(str::to_owned).collect()
}

fn they_are_enforced_in_each(sandbox: &Sandbox) {
    cloned(sandbox);
    let own: Vec<Vec<String>> = GUESTS.iter().map(|name| groups(sandbox, name)).collect();
    for (number, groups) in own.iter().enumerate() {
        assert!(!groups.is_empty());
        let others = own.iter().enumerate().filter(|(other, _)| *other != number).flat_map(|(_, groups)| groups);
        assert!(others.into_iter().all(|group| !groups.contains(group)), "{own:?}");
    }
    for name in GUESTS {
        assert_eq!(held(sandbox, name, "memory.limit"), ["33554432"], "{name}");
        // Its shim is counted with it.
        assert_eq!(held(sandbox, name, "pids"), ["13"], "{name}");
    }
    sandbox.exec_sh("warm-1", &hog(64)).run().ended_with(137);
    sandbox.exec_sh("warm-2", &hog(8)).run().says("8388608\n");
    assert!(stats(sandbox, "warm-1")["now"]["oom_kills"].as_i64() >= Some(1));
    for name in ["source", "warm-2"] {
        assert_eq!(stats(sandbox, name)["now"]["oom_kills"], 0, "{name}");
    }
    let many = "i=0; while [ $i -lt 30 ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done; wait";
    let ended = sandbox.exec_sh("warm-1", many).run();
    assert!(ended.code() != 0 && ended.err().contains("fork"), "{}", ended.err());
    // There is room for as many in another.
    sandbox.exec_sh("warm-2", "for i in 1 2 3 4 5 6; do sleep 1000 >/dev/null 2>&1 & done").ok();
    let spinning = sandbox.exec_sh("warm-2", "while :; do :; done").start();
    eventually("a busy clone is held back", || throttled(sandbox, "warm-2") > 3);
    assert_eq!(throttled(sandbox, "source"), 0);
    drop(spinning);
}

fn ones_change_is_nobody_elses(sandbox: &Sandbox) {
    cloned(sandbox);
    sandbox.pando(["set", "warm-1", "memory.limit=96M", "pids=40", "cpu.limit=0.9"]).ok();
    assert_eq!(held(sandbox, "warm-1", "memory.limit"), ["100663296"]);
    assert_eq!(held(sandbox, "warm-1", "pids"), ["41"]);
    let speed = held(sandbox, "source", "cpu.limit");
    assert_ne!(held(sandbox, "warm-1", "cpu.limit"), speed);
    // A later clone is of the image.
    sandbox.pando(["clone", "warm", "later"]).ok();
    for name in ["source", "warm-2", "later"] {
        assert_eq!(held(sandbox, name, "memory.limit"), ["33554432"], "{name}");
        assert_eq!(held(sandbox, name, "pids"), ["13"], "{name}");
        assert_eq!(held(sandbox, name, "cpu.limit"), speed, "{name}");
    }
    sandbox.exec_sh("warm-1", &hog(40)).run().says("41943040\n");
    sandbox.exec_sh("warm-2", &hog(40)).run().ended_with(137);
    // What is frozen of it has what it was given.
    sandbox.pando(["freeze", "warm-1", "wide"]).ok();
    sandbox.pando(["clone", "wide", "wider"]).ok();
    assert_eq!(held(sandbox, "wider", "memory.limit"), ["100663296"]);
    sandbox.exec_sh("wider", &hog(40)).run().says("41943040\n");
}

fn they_outlive_the_daemon(sandbox: &Sandbox) {
    cloned(sandbox);
    sandbox.end_daemon();
    sandbox.exec_sh("warm-1", &hog(64)).run().ended_with(137);
    sandbox.pando(["restart", "-t", "0", "warm-1"]).ok();
    assert_eq!(held(sandbox, "warm-1", "memory.limit"), ["33554432"]);
    sandbox.exec_sh("warm-1", &hog(64)).run().ended_with(137);
    sandbox.exec_sh("warm-2", &hog(8)).run().says("8388608\n");
}

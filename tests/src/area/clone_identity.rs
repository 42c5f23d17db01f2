//! What makes a clone itself before anybody can reach it, and what a guest does of its own when it is frozen.

use crate::area::clones::{count, counter};
use crate::case::Case;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::world::World;
use rustix::process::Signal;

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_identity::hooks_run_in_a_clone_before_anything_else", hooks_run_in_a_clone_before_anything_else),
    Case::new("clone_identity::a_hook_that_fails_leaves_no_clone", a_hook_that_fails_leaves_no_clone),
    Case::new("clone_identity::nobody_enters_a_clone_before_its_hooks_ended", nobody_enters_before_its_hooks_ended),
    Case::new("clone_identity::a_signal_reaches_those_who_handle_it", a_signal_reaches_those_who_handle_it),
    Case::new("clone_identity::hooks_run_around_a_freeze", hooks_run_around_a_freeze),
    Case::new("clone_identity::a_hook_can_refuse_a_freeze", a_hook_can_refuse_a_freeze),
];

/// Puts a hook into the guest `web`.
#[track_caller]
fn hook(sandbox: &Sandbox, path: &str, body: &str) {
    let script =
        format!("mkdir -p /etc/pando/clone.d /etc/pando/freeze.d; cat >/etc/pando/{path}; chmod 755 /etc/pando/{path}");
    let text = format!("#!/bin/sh\n{body}\n");
    sandbox.pando(["exec", "-i", "web", "--", "sh", "-c", &script]).input(text).ok();
}

fn hooks_run_in_a_clone_before_anything_else(sandbox: &Sandbox) {
    counter(sandbox, "web");
    hook(sandbox, "clone.d/20-second", "cat /identity >/copy; cat /count >/seen; sleep 0.3; cat /count >/later");
    hook(sandbox, "clone.d/10-first", "echo $PANDO_CLONE_NAME $(id -u) $(hostname) >/identity");
    hook(sandbox, "clone.d/.hidden", "touch /hidden");
    hook(sandbox, "clone.d/off", "touch /off");
    sandbox.exec_sh("web", "chmod 644 /etc/pando/clone.d/off; ln -s nothing /etc/pando/clone.d/dangling").ok();
    sandbox.pando(["freeze", "web", "warm"]).ok();
    sandbox.pando(["clone", "warm", "-n", "2"]).ok();
    for name in ["warm-1", "warm-2"] {
        assert_eq!(sandbox.exec_sh(name, "cat /copy").ok(), format!("{name} 0 {name}\n"));
        let stood = sandbox.exec_sh(name, "cat /seen /later").ok();
        let lines: Vec<&str> = stood.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1], "it ran while its hooks did: {stood}");
        let first = count(sandbox, name);
        eventually("it counts on", || count(sandbox, name) > first + 5);
        sandbox.exec_sh(name, "[ ! -e /hidden ] && [ ! -e /off ]").ok();
    }
    sandbox.exec_sh("web", "[ ! -e /identity ]").ok();
}

fn a_hook_that_fails_leaves_no_clone(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    hook(sandbox, "clone.d/first", "[ $PANDO_CLONE_NAME != bad ] || { echo no such luck >&2; exit 3; }");
    hook(sandbox, "clone.d/second", "touch /second");
    sandbox.pando(["freeze", "web", "warm", "--wait"]).ok();
    let before = World::of(sandbox);
    let failed = sandbox.pando(["clone", "warm", "bad"]).run().ended_with(125);
    failed.complains_of(&["/etc/pando/clone.d/first", "exit code 3", "no such luck"]);
    assert_eq!(sandbox.state("bad"), "absent");
    before.comes_back(sandbox, "a clone whose hook failed");
    sandbox.pando(["clone", "warm", "good"]).ok();
    sandbox.exec_sh("good", "[ -e /second ]").ok();
}

fn nobody_enters_before_its_hooks_ended(sandbox: &Sandbox) {
    counter(sandbox, "web");
    hook(sandbox, "clone.d/waits", "trap 'exit 0' TERM\nwhile :; do sleep 0.05; done");
    sandbox.pando(["freeze", "web", "warm"]).ok();
    let cloning = sandbox.pando(["clone", "warm", "one"]).start();
    let of_hook = |process: &process::Process| process.words.iter().any(|word| word.ends_with("clone.d/waits"));
    let waiting = || sandbox.processes().into_iter().find(of_hook).map(|process| process.pid);
    eventually("its hook runs", || waiting().is_some());
    sandbox.exec_sh("one", "true").run().ended_with(125).complains_of(&["one", "being made"]);
    // The shell may not have come to its trap.
    let caught = |pid| u64::from_str_radix(&process::status(pid, "SigCgt")?, 16).ok();
    let traps = |pid| caught(pid).is_some_and(|mask| mask & 1 << 14 != 0);
    eventually("it waits for a signal", || waiting().is_some_and(traps));
    process::signal(waiting().expect("it waits"), Signal::TERM);
    cloning.wait().succeeded();
    sandbox.exec_sh("one", "true").ok();
}

fn a_signal_reaches_those_who_handle_it(sandbox: &Sandbox) {
    let script = "trap 'echo told >>/told' USR1; sleep 100000 & echo $! >/other; while :; do sleep 0.05; : >/up; done";
    sandbox.guest("web", &["--", "sh", "-c", script]);
    eventually("it is up", || sandbox.exec_sh("web", "[ -e /up ]").run().code() == 0);
    sandbox.pando(["freeze", "web", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one", "--signal", "USR1"]).ok();
    eventually("it was told", || sandbox.exec_sh("one", "cat /told").run().out() == "told\n");
    // To who does not handle it the signal would have been the end.
    sandbox.exec_sh("one", "kill -0 $(cat /other)").ok();
    sandbox.exec_sh("web", "[ ! -e /told ]").ok();
    let refused = sandbox.pando(["clone", "warm", "two", "--signal", "KILL"]).run().ended_with(125);
    refused.complains_of(&["no program can handle", "KILL"]);
    assert_eq!(sandbox.state("two"), "absent");
}

fn hooks_run_around_a_freeze(sandbox: &Sandbox) {
    counter(sandbox, "web");
    hook(sandbox, "freeze.d/tells", "echo $1 >>/told");
    sandbox.pando(["freeze", "web", "warm"]).ok();
    assert_eq!(sandbox.exec_sh("web", "cat /told").ok(), "before\nafter\n");
    sandbox.pando(["clone", "warm", "one"]).ok();
    assert_eq!(sandbox.exec_sh("one", "cat /told").ok(), "before\n");
}

fn a_hook_can_refuse_a_freeze(sandbox: &Sandbox) {
    counter(sandbox, "web");
    hook(sandbox, "freeze.d/10-first", "echo first $1 >>/told");
    hook(sandbox, "freeze.d/20-refuses", "echo $1 >>/told; [ $1 = after ] || { echo a backup is running; exit 7; }");
    let refused = sandbox.pando(["freeze", "web"]).run().ended_with(125);
    refused.complains_of(&["/etc/pando/freeze.d/20-refuses before", "exit code 7", "a backup is running"]);
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "");
    assert_eq!(sandbox.state("web"), "running");
    let seen = count(sandbox, "web");
    eventually("it counts on", || count(sandbox, "web") > seen + 5);
    assert_eq!(sandbox.exec_sh("web", "cat /told").ok(), "first before\nbefore\nfirst after\nafter\n");
}

//! The watchdog: more memory was promised than there is.

use super::limits::hog;
use crate::case::{Case, Tag};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::swap_file::SwapFile;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;

pub(crate) const CASES: &[Case] = &[
    Case::new("limits::the_watchdog_goes_by_steps", the_watchdog_goes_by_steps).tags(&[Tag::Vm]),
    Case::new("limits::the_watchdog_can_be_asked", the_watchdog_can_be_asked).tags(&[Tag::Vm]),
    Case::new("limits::pl_mom_restarts_the_largest", pl_mom_restarts_the_largest)
        .needs(&[Need::Root, Need::Program("mkswap", "util-linux")])
        .tags(&[Tag::Vm]),
    Case::new("limits::nobody_pays_for_anothers_limit", nobody_pays_for_anothers_limit).tags(&[Tag::Vm]),
];

/// Rules that find want of memory on every machine, whether the kernel tells of pressure or not.
fn the_watchdog_goes_by_steps(sandbox: &Sandbox) {
    rules(sandbox, "pressure = 0\nplenty = 101\nfree = 101\nswap = 0\nevery = 1\nlast = \"stop\"\nnotice = 1\n");
    let (hooks, told_of) = (sandbox.root().join("etc/pando/hooks.d"), sandbox.scratch().join("told"));
    std::fs::create_dir_all(&hooks).expect("a directory");
    let hook = format!("#!/bin/sh\n[ \"$1\" = watchdog ] && echo \"$2\" >>{}\nexit 0\n", told_of.display());
    std::fs::write(hooks.join("10-told"), hook).expect("a hook");
    std::fs::set_permissions(hooks.join("10-told"), std::fs::Permissions::from_mode(0o755)).expect("it can be run");
    sandbox.guest("promised", &["--memory-reserve", "900M"]);
    let mut events = sandbox.pando(["events", "--json"]).start();
    sandbox.guest("hog", &["--", "sh", "-c", "x=$(head -c 8m /dev/zero | tr '\\0' x); while :; do sleep 1; done"]);
    sandbox.becomes("hog", "stopped");
    assert_eq!(sandbox.state("promised"), "running", "who is within his reservation is left alone");
    assert!(!events.has_ended());
    events.signal(rustix::process::Signal::TERM);
    let told = events.wait().out();
    let steps: Vec<String> = told
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|event| {
            event["what"].as_str().is_some_and(|what| what.starts_with("watchdog")) && event["guest"] == "hog"
        })
        .filter_map(|event| Some(event["detail"].as_str()?.split(':').next()?.to_owned()))
        .collect();
    let order: Vec<&str> = steps.iter().map(String::as_str).collect();
    assert!(order.starts_with(&["reclaim", "freeze in 1 s", "freeze", "stop in 1 s"]), "{told}");
    eventually("a hook is told", || std::fs::read_to_string(&told_of).is_ok_and(|text| text.starts_with("hog\nhog\n")));
}

fn the_watchdog_can_be_asked(sandbox: &Sandbox) {
    rules(sandbox, "pressure = 99\nrelief = 7\n");
    assert!(sandbox.pando(["watchdog", "--dry-run"]).ok().contains("nobody"));
    sandbox.guest("promised", &["--memory-reserve", "900M"]);
    sandbox.guest("hog", &["--", "sh", "-c", "x=$(head -c 8m /dev/zero | tr '\\0' x); while :; do sleep 1; done"]);
    let said = sandbox.pando(["watchdog"]).ok();
    assert!(said.contains("graduated") && said.contains("relief 7") && said.contains("calm"), "{said}");
    eventually("the hog is over its reservation", || {
        sandbox.pando(["watchdog", "--dry-run"]).ok().contains("reclaim guest 'hog'")
    });
    // By the other policy a reservation is nobody's protection: it names the hog once the hog has grown.
    eventually("the hog is the largest", || {
        sandbox
            .pando(["watchdog", "--dry-run", "--policy", "pl_mom"])
            .ok()
            .starts_with("by pl_mom: restart guest 'hog'")
    });
    let json = sandbox.pando(["watchdog", "--json"]).ok();
    let state: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(state["policy"] == "graduated" && state["taken"].as_array().is_some_and(Vec::is_empty), "{state}");
    assert_eq!(sandbox.state("hog"), "running", "asking does nothing");
    sandbox
        .pando(["watchdog", "--dry-run", "--policy", "cat"])
        .run()
        .ended_with(125)
        .complains_of(&["'cat'", "pl_mom"]);
}

/// Rules for the daemon, which is not yet there.
fn rules(sandbox: &Sandbox, text: &str) {
    sandbox.settings(&format!("[watchdog]\n{text}"));
}

/// What the watchdog did to a guest.
fn taken(sandbox: &Sandbox) -> Vec<Value> {
    let text = sandbox.pando(["watchdog", "--json"]).ok();
    let state: Value = serde_json::from_str(&text).expect("JSON");
    state["taken"].as_array().cloned().unwrap_or_default()
}

fn pl_mom_restarts_the_largest(sandbox: &Sandbox) {
    let _swap = SwapFile::make(sandbox.scratch().join("swap"), 64);
    rules(sandbox, "policy = \"pl_mom\"\nswap = 0\nevery = 1\n");
    sandbox.guest("small", &[]);
    sandbox.guest("large", &["--", "sh", "-c", "x=$(head -c 24m /dev/zero | tr '\\0' x); while :; do sleep 1; done"]);
    eventually("the largest is restarted", || taken(sandbox).iter().any(|step| step["guest"] == "large"));
    let step = taken(sandbox).into_iter().find(|step| step["guest"] == "large").expect("it was there");
    assert!(step["step"] == "restart" && step["why"].as_str().is_some_and(|why| why.contains("swap is")), "{step}");
    // It is restarted again and again, and nothing else can be done to it meanwhile.
    for name in ["large", "small"] {
        eventually("it is removed", || sandbox.pando(["rm", "-f", name]).run().code() == 0);
    }
}

/// Whoever thrashes within his own limit makes pressure for the whole machine, as the kernel counts it.
fn nobody_pays_for_anothers_limit(sandbox: &Sandbox) {
    rules(sandbox, "pressure = 0\nevery = 1\n");
    sandbox.guest("small", &["--memory", "24M", "--swap", "0"]);
    sandbox.guest("bystander", &[]);
    for _ in 0..3 {
        sandbox.exec_sh("small", &hog(64)).run().ended_with(137);
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let seen: Value = serde_json::from_str(&sandbox.pando(["watchdog", "--json"]).ok()).expect("JSON");
    assert!(seen["stage"] == "calm" && taken(sandbox).is_empty(), "{seen}");
}

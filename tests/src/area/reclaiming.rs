//! `pando reclaim`: memory that a guest does not need now, for others.

use super::limits::stats;
use crate::case::{Case, Tag, skip};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use serde_json::Value;

pub(crate) const CASES: &[Case] = &[
    Case::new("reclaiming::what_is_taken_back_comes_again", what_is_taken_back_comes_again).tags(&[Tag::Vm]),
    Case::new("reclaiming::the_idle_are_found_and_the_busy_are_left", the_idle_are_found).tags(&[Tag::Vm]),
    Case::new("reclaiming::who_does_not_run_is_refused", who_does_not_run_is_refused).tags(&[Tag::Vm]),
];

/// Has so much in the page cache, all of it on the disk; then does something.
fn reader(then: &str) -> [String; 4] {
    let script = format!("head -c 16m /dev/zero >/srv/file; sync; cat /srv/file >/dev/null; touch /srv/done; {then}");
    ["--".into(), "sh".into(), "-c".into(), script]
}

fn guest(sandbox: &Sandbox, name: &str, then: &str) {
    let options = reader(then);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    sandbox.guest(name, &options);
    eventually("it has read its file", || sandbox.exec_sh(name, "test -e /srv/done").run().code() == 0);
    if number(&stats(sandbox, name), "cache") < 16 << 20 {
        skip("the page cache is not counted for groups here");
    }
}

/// A number of a guest's newest sample, or of what it uses.
fn number(used: &Value, key: &str) -> u64 {
    used["now"][key].as_u64().or(used[key].as_u64()).unwrap_or(0)
}

fn what_is_taken_back_comes_again(sandbox: &Sandbox) {
    guest(sandbox, "web", "sleep 100000");
    let before = stats(sandbox, "web");
    assert!(number(&before, "working_set") > 0 && before["reclaimed"].is_null(), "{before}");
    let said: Value = serde_json::from_str(&sandbox.pando(["reclaim", "web", "--json"]).ok()).expect("JSON");
    let taken = said[0]["bytes"].as_u64().expect("a number");
    assert!(said[0]["guest"] == "web" && taken > 12 << 20, "{said}");
    let after = stats(sandbox, "web");
    assert_eq!(number(&after, "reclaimed"), taken);
    assert!(number(&after, "memory") + (12 << 20) < number(&before, "memory"), "{before} {after}");
    assert_eq!(sandbox.exec_sh("web", "wc -c </srv/file").ok().trim(), (16 << 20).to_string());
    assert!(sandbox.pando(["reclaim", "web"]).ok().starts_with("web: "), "in words");
    // Another life of it is another guest, as far as that goes.
    sandbox.pando(["restart", "--time", "0", "web"]).ok();
    assert!(stats(sandbox, "web")["reclaimed"].is_null());
}

fn the_idle_are_found(sandbox: &Sandbox) {
    sandbox.settings("[memory]\nreclaim_idle = 2\n");
    let mut events = sandbox.pando(["events", "--json"]).start();
    guest(sandbox, "busy", "while :; do :; done");
    sandbox.guest("idle", &reader("sleep 100000").each_ref().map(String::as_str));
    eventually("memory is taken back from it", || number(&stats(sandbox, "idle"), "reclaimed") > 12 << 20);
    assert!(stats(sandbox, "busy")["reclaimed"].is_null(), "it does something");
    assert!(!events.has_ended());
    events.signal(rustix::process::Signal::TERM);
    let told = events.wait().out();
    let of = |name: &str| told.lines().any(|line| line.contains("\"reclaim\"") && line.contains(name));
    assert!(of("\"idle\"") && !of("\"busy\""), "{told}");
    // Asked for, it is done as well: nobody of those used anything for five minutes, but for one.
    sandbox.pando(["reclaim", "--idle"]).ok();
}

fn who_does_not_run_is_refused(sandbox: &Sandbox) {
    sandbox.create("web", &[]);
    sandbox.pando(["reclaim", "web"]).run().ended_with(125).complains_of(&["'web'", "not running"]);
    sandbox.pando(["reclaim", "nobody"]).run().ended_with(125).complains_of(&["nobody"]);
    sandbox.pando(["reclaim"]).run().complains_of(&["NAME"]);
    assert_eq!(sandbox.pando(["reclaim", "--idle"]).ok(), "");
}

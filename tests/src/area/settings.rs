//! pando.toml: what is mistyped is said with what was meant, harms nothing beside it, and a change is read without a
//! new daemon.

use crate::case::Case;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use rustix::process::Signal;

pub(crate) const CASES: &[Case] = &[
    Case::new("settings::a_mistyped_key_turns_no_watchdog_on", a_mistyped_key_turns_no_watchdog_on),
    Case::new("settings::doctor_says_what_is_wrong_with_the_file", doctor_says_what_is_wrong_with_the_file),
    Case::new("settings::reload_says_what_holds", reload_says_what_holds),
    Case::new("settings::a_hangup_is_a_reload", a_hangup_is_a_reload),
    Case::new("settings::metrics_move_at_a_reload", metrics_move_at_a_reload),
    Case::new("settings::transactions_refuse_a_mistyped_key", transactions_refuse_a_mistyped_key),
];

fn policy(sandbox: &Sandbox) -> String {
    let text = sandbox.pando(["watchdog", "--json"]).ok();
    let seen: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    seen["policy"].as_str().expect("a word").to_owned()
}

fn a_mistyped_key_turns_no_watchdog_on(sandbox: &Sandbox) {
    sandbox.settings("[watchdog]\npolicy = \"off\"\nswpa = 80\n");
    assert_eq!(policy(sandbox), "off");
    assert!(sandbox.daemon_log().contains("did you mean 'swap'?"), "{}", sandbox.daemon_log());
    sandbox.end_daemon();
    sandbox.settings("[watchdog\npolicy = \"off\"\n");
    assert_eq!(policy(sandbox), "off");
    sandbox.end_daemon();
    sandbox.settings("");
    assert_eq!(policy(sandbox), "graduated");
}

fn doctor_says_what_is_wrong_with_the_file(sandbox: &Sandbox) {
    sandbox.settings("[logs]\nsise = \"1M\"\n[metrcis]\n[network]\nprivate = 7\n");
    let said = sandbox.pando(["doctor"]).run().ended_with(1).out();
    for words in ["no key 'sise'; did you mean 'size'?", "no table [metrcis]; did you mean 'metrics'?", "private = 7"] {
        assert!(said.contains(words), "no {words} in {said}");
    }
}

fn reload_says_what_holds(sandbox: &Sandbox) {
    let none = sandbox.pando(["daemon", "reload"]).ok();
    assert!(none.contains("no daemon runs"), "{none}");
    assert_eq!(policy(sandbox), "graduated");
    assert_eq!(sandbox.pando(["daemon", "reload"]).ok(), "nothing has changed\n");
    sandbox.settings("[watchdog]\npolicy = \"off\"\n[network]\nprivate = \"10.77.0.0/16\"\n");
    let said = sandbox.pando(["daemon", "reload"]).ok();
    assert!(said.contains("holds now: watchdog.policy = \"off\"\n"), "{said}");
    assert!(said.contains("started again: network.private = \"10.77.0.0/16\"\n"), "{said}");
    assert_eq!(policy(sandbox), "off");
    sandbox.settings("[watchdog]\npolicy = \"off\"\npresure = 3\n");
    sandbox.pando(["daemon", "reload"]).run().ended_with(1).complains_of(&["did you mean 'pressure'?"]);
    assert_eq!(policy(sandbox), "off");
    // One that is no TOML at all changes nothing.
    sandbox.settings("[watchdog]\npolicy = \n");
    sandbox.pando(["daemon", "reload"]).run().ended_with(1).complains_of(&["pando.toml", "line 2"]);
    assert_eq!(policy(sandbox), "off");
}

fn a_hangup_is_a_reload(sandbox: &Sandbox) {
    assert_eq!(policy(sandbox), "graduated");
    let daemon = sandbox.daemon().expect("a daemon runs");
    sandbox.settings("[watchdog]\npolicy = \"pl_mom\"\n");
    process::signal(daemon, Signal::HUP);
    eventually("the policy is the new one", || policy(sandbox) == "pl_mom");
    assert_eq!(sandbox.daemon(), Some(daemon));
}

fn metrics_move_at_a_reload(sandbox: &Sandbox) {
    let (first, second) = (sandbox.scratch().join("first"), sandbox.scratch().join("second"));
    let listens = |path: &std::path::Path| std::os::unix::net::UnixStream::connect(path).is_ok();
    sandbox.settings(&format!("[metrics]\nlisten = \"{}\"\n", first.display()));
    sandbox.pando(["ls"]).ok();
    eventually("metrics are served", || listens(&first));
    sandbox.settings(&format!("[metrics]\nlisten = \"{}\"\n", second.display()));
    sandbox.pando(["daemon", "reload"]).ok();
    eventually("metrics are served elsewhere", || listens(&second));
    assert!(!listens(&first));
}

fn transactions_refuse_a_mistyped_key(sandbox: &Sandbox) {
    sandbox.settings("[transactions]\ncontetnion = \"oldest\"\n");
    sandbox.pando(["tx", "run", "--", "true"]).run().ended_with(125).complains_of(&["did you mean 'contention'?"]);
}

//! `pando doctor --try`: what Pando is for, done once on a state of its own.

use crate::case::{Case, Tag};
use crate::line::Ended;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::StateDisk;
use serde_json::Value;
use std::path::Path;

const DISK: &[Need] = &[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")];

pub(crate) const CASES: &[Case] = &[
    Case::new("doctor::tries_what_pando_is_for_and_leaves_nothing", tries_everything).tags(&[Tag::Vm]),
    Case::new("doctor::what_does_not_work_is_said_and_the_exit_code_is_1", says_what_fails).needs(DISK),
];

/// A trial, of which each step has many times the time that it needs.
fn trial(sandbox: &Sandbox) -> Ended {
    sandbox.pando(["doctor", "--try", "--json"]).limit(180).run()
}

fn outcome(trial: &Value, name: &str) -> Value {
    let steps = trial["tried"].as_array().expect("an array");
    steps.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("no step '{name}': {trial}")).clone()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name != "lost+found").collect()
}

fn tries_everything(sandbox: &Sandbox) {
    let ended = trial(sandbox);
    let said: Value = serde_json::from_str(&ended.out()).expect("it is JSON");
    for name in ["daemon", "run", "create", "start", "exec", "freeze", "clone", "commit", "abort", "remove"] {
        let step = outcome(&said, name);
        assert_eq!(step["outcome"], "worked", "{step}");
        assert!(step["milliseconds"].is_number(), "{step}");
    }
    assert_eq!(ended.code(), 0, "{}", ended.err());
    assert_eq!(names_in(sandbox.root()), [""; 0], "the trial had a state of its own, and it is gone");
}

fn says_what_fails(sandbox: &Sandbox) {
    // A guest is made of a copy of the program, which does not fit.
    let length = std::fs::metadata(sandbox.program()).expect("it is there").len();
    let disk = StateDisk::make(sandbox, (length >> 21) + 4, &["mkfs.ext4", "-q", "-F", "-m", "0"]);
    let ended = trial(sandbox);
    let said: Value = serde_json::from_str(&ended.out()).expect("it is JSON");
    let create = outcome(&said, "create");
    assert_eq!(create["outcome"], "failed", "{create}");
    assert!(create["detail"].as_str().is_some_and(|why| why.to_lowercase().contains("no space left")), "{create}");
    assert_eq!(outcome(&said, "start")["outcome"], "untried");
    assert_eq!(outcome(&said, "start")["detail"], "'create' failed");
    assert_eq!(outcome(&said, "commit")["outcome"], "worked");
    assert_eq!(ended.code(), 1, "{}", ended.err());
    assert_eq!(names_in(disk.at()), [""; 0]);
}

//! Debian, from the machine's own mirror.

use super::{Heard, Place, is_root};
use crate::source::{Options, Source, materialize};
use std::process::Command;

fn ready(test: &str) -> bool {
    if !is_root(test) {
        return false;
    }
    let tool = Command::new("mmdebstrap").arg("--version").output().is_ok_and(|output| output.status.success());
    if !tool {
        eprintln!("skipped: {test} needs mmdebstrap");
    }
    tool
}

#[test]
#[ignore = "fetches 40 MB from the machine's Debian mirror: run it with --ignored"]
fn a_minimal_system_with_a_package_is_installed() {
    if !ready("a_minimal_system_with_a_package_is_installed") {
        return;
    }
    let place = Place::new();
    let heard = Heard::default();
    let source: Source = "debian:bookworm+hello".parse().unwrap();
    let summary = materialize(&source, &place.target(), &Options::default(), &heard).unwrap();
    assert!(place.target().join("usr/bin/hello").exists() && place.target().join("etc/debian_version").exists());
    assert!(summary.files > 1_000);
    assert!(heard.stages.lock().unwrap().len() > 3);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(place.target().to_str().unwrap()));
}

#[test]
#[ignore = "asks the machine's Debian mirror: run it with --ignored"]
fn a_suite_that_does_not_exist_is_told_with_the_tools_last_lines() {
    if !ready("a_suite_that_does_not_exist_is_told_with_the_tools_last_lines") {
        return;
    }
    let place = Place::new();
    let source: Source = "debian:nosuchsuite".parse().unwrap();
    let text = materialize(&source, &place.target(), &Options::default(), &Heard::default()).unwrap_err().to_string();
    assert!(text.contains("nosuchsuite") && text.contains("mmdebstrap") && text.contains("\n  "), "{text}");
    place.assert_nothing_left();
    eprintln!("{text}");
}

#[test]
fn names_that_are_none_never_reach_a_command_line() {
    let place = Place::new();
    for (suite, package) in [("--help", "a1"), ("sid", "--x"), ("sid", "a,b")] {
        let source = Source::Debian { suite: suite.to_owned(), packages: vec![package.to_owned()] };
        assert!(place.make(&source).unwrap_err().to_string().contains("cannot be the name"));
    }
}

//! Guests that freeze themselves.

use crate::case::Case;
use crate::patience::eventually;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("self_freeze::the_caller_learns_who_it_is", the_caller_learns_who_it_is),
    Case::new("self_freeze::it_is_allowed_so_often_and_no_more", it_is_allowed_so_often),
    Case::new("self_freeze::a_guest_can_put_anything_there", a_guest_can_put_anything_there),
];

/// Waits until nobody is in the guest by `exec`: a visitor has its output outside, and is not frozen along.
const ALONE: &str = "until [ $(grep -l '^PPid:.0$' /proc/[0-9]*/status 2>/dev/null | wc -l) = 1 ]; do sleep 0.02; done";

/// Asks as often as it is told to, and writes what it is told. What it asks with is there a moment after the guest
/// began.
fn asks() -> String {
    format!(
        "until [ -p /run/pando/freeze ]; do sleep 0.02; done; \
         while :; do if [ -e /ask ]; then word=$(cat /ask); rm /ask; {ALONE}; said=$(pando-freeze $word 2>&1); \
         echo \"$? $said\" >/said.new; mv /said.new /said; fi; sleep 0.02; done"
    )
}

#[track_caller]
fn ask(sandbox: &Sandbox, name: &str, word: &str) -> String {
    sandbox.exec_sh(name, &format!("rm -f /said; echo {word} >/ask.new; mv /ask.new /ask")).ok();
    said(sandbox, name)
}

#[track_caller]
fn said(sandbox: &Sandbox, name: &str) -> String {
    let mut said = String::new();
    eventually("it says something", || {
        // A visitor cannot be frozen along: it comes between.
        said = std::fs::read_to_string(file(sandbox, name)).unwrap_or_default();
        !said.is_empty()
    });
    said.trim().to_owned()
}

fn file(sandbox: &Sandbox, name: &str) -> std::path::PathBuf {
    std::path::PathBuf::from(format!("/proc/{}/root/said", sandbox.first_process(name)))
}

fn the_caller_learns_who_it_is(sandbox: &Sandbox) {
    sandbox.guest("web", &["--allow-freeze", "2", "--", "sh", "-c", &asks()]);
    let hook = |directory: &str, script: &str| {
        let path = format!("/etc/pando/{directory}/tell");
        let script =
            format!("mkdir -p /etc/pando/{directory}; printf '#!/bin/sh\\n{script}\\n' >{path}; chmod 755 {path}");
        sandbox.exec_sh("web", &script).ok();
    };
    hook("freeze.d", "echo $1 >>/hooks");
    hook("clone.d", "echo clone >>/hooks");
    assert_eq!(ask(sandbox, "web", "warm"), "0 0 web-warm");
    assert_eq!(sandbox.exec_sh("web", "cat /hooks").ok(), "before\nafter\n");
    sandbox.pando(["clone", "web-warm", "one"]).ok();
    sandbox.pando(["clone", "web-warm", "two"]).ok();
    for name in ["one", "two"] {
        assert_eq!(said(sandbox, name), format!("0 1 {name}"));
        assert_eq!(sandbox.exec_sh(name, "cat /hooks").ok(), "before\nclone\n");
    }
    // A clone may do the same, and is told by its own name.
    assert_eq!(ask(sandbox, "one", ""), "0 0 one-1");
    sandbox.end_daemon();
    sandbox.pando(["ls"]).ok();
    assert_eq!(ask(sandbox, "web", "again"), "0 0 web-again", "the next daemon stands at the door");
}

fn it_is_allowed_so_often(sandbox: &Sandbox) {
    sandbox.guest("web", &["--allow-freeze", "1", "--", "sh", "-c", &asks()]);
    assert_eq!(ask(sandbox, "web", ""), "0 0 web-1");
    let refused = ask(sandbox, "web", "");
    assert!(refused.starts_with("125 pando-freeze:") && refused.contains("of 1 allowed"), "{refused}");
    sandbox.pando(["image", "rm", "web-1"]).ok();
    let refused = ask(sandbox, "web", "../x");
    assert!(refused.starts_with("125 pando-freeze:"), "{refused}");
    sandbox.guest("web-db", &["--", "sleep", "100000"]);
    let refused = ask(sandbox, "web", "db");
    assert!(refused.starts_with("125 pando-freeze:") && refused.contains("name of another guest"), "{refused}");
    assert_eq!(ask(sandbox, "web", "other"), "0 0 web-other");
    // Whoever was not allowed has nothing to knock at.
    sandbox.guest("plain", &["--", "sleep", "100000"]);
    sandbox.exec_sh("plain", "[ ! -e /run/pando/freeze ] && [ ! -e /bin/pando-freeze ]").ok();
}

fn a_guest_can_put_anything_there(sandbox: &Sandbox) {
    let told = format!("until [ -e /go ]; do sleep 0.02; done; {ALONE}; . /go; sleep 100000");
    sandbox.guest("web", &["--allow-freeze", "1", "--", "sh", "-c", &told]);
    eventually("the door is there", || sandbox.exec_sh("web", "[ -p /run/pando/freeze ]").run().code() == 0);
    let secret = sandbox.scratch().join("secret");
    std::fs::write(&secret, "").unwrap();
    // Where the answer is to go lies a link to a file of the host, a directory, a device.
    let script = format!(
        "cd /run/pando; ln -s {} answer.1; mkdir answer.2; ln -s /dev/null answer.3; \
         for n in 1 2 3 4 x; do echo \"$n warm\" >freeze; done; head -c 4000 /dev/zero >freeze; echo >freeze",
        secret.display()
    );
    let keep = format!("cat >/go.new <<'END'\n{script}\nEND\nmv /go.new /go");
    sandbox.exec_sh("web", &keep).ok();
    eventually("it was frozen all the same", || sandbox.pando(["images", "-q"]).ok() == "web-warm\n");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "");
    sandbox.exec_sh("web", "rm -r /run/pando; ln -s / /run/pando").ok();
    sandbox.pando(["restart", "web"]).ok();
    assert_eq!(sandbox.state("web"), "running");
}

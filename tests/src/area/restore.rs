//! `pando freeze --stop` and `pando restore`: a guest ends where it was frozen, and goes on from there as itself.

use super::clones::{count, counter};
use super::crash::daemon_with;
use crate::case::{Case, Tag};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::world::World;

pub(crate) const CASES: &[Case] = &[
    Case::new("restore::a_guest_goes_on_as_itself", a_guest_goes_on_as_itself).tags(&[Tag::Vm]),
    Case::new("restore::what_is_newer_is_given_up_only_when_told", what_is_newer_is_given_up_only_when_told),
    Case::new("restore::another_image_of_the_name_gives_up_nothing", another_image_of_the_name),
    Case::new("restore::a_guest_ends_only_once_its_image_is_kept", a_guest_ends_only_once_its_image_is_kept),
];

fn a_guest_goes_on_as_itself(sandbox: &Sandbox) {
    const ID: &str = "0123456789abcdef0123456789abcdef";
    let script = format!("trap 'touch /asked' TERM; {}", super::clones::COUNTER);
    sandbox.guest("web", &["--hostname", "shop", "--", "sh", "-c", &script]);
    eventually("it counts", || count(sandbox, "web") > 5);
    sandbox.exec_sh("web", &format!("echo {ID} >/etc/machine-id; mkdir -p /etc/pando/clone.d")).ok();
    sandbox
        .exec_sh(
            "web",
            "printf '#!/bin/sh\\ntouch /cloned\\n' >/etc/pando/clone.d/tells; chmod 755 /etc/pando/clone.d/tells",
        )
        .ok();
    sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
    assert_eq!(sandbox.state("web"), "stopped");
    assert_eq!(sandbox.pando(["restore", "warm"]).ok(), "web\n");
    let first = count(sandbox, "web");
    assert!(first > 5, "it began anew: {first}");
    eventually("it counts on", || count(sandbox, "web") > first + 5);
    assert_eq!(sandbox.exec_sh("web", "hostname; cat /etc/machine-id").ok(), format!("shop\n{ID}\n"));
    sandbox.exec_sh("web", "[ ! -e /asked ] && [ ! -e /cloned ]").ok();
    let refused = sandbox.pando(["restore", "warm"]).run().ended_with(125);
    refused.complains_of(&["web", "is running", "stop it first"]);
    // The image is still one to make clones of, which are somebody else.
    sandbox.pando(["clone", "warm", "one"]).ok();
    let other = sandbox.exec_sh("one", "hostname; cat /etc/machine-id").ok();
    assert!(other.starts_with("one\n") && !other.contains(ID), "{other}");
}

fn what_is_newer_is_given_up_only_when_told(sandbox: &Sandbox) {
    counter(sandbox, "web");
    sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", "echo newer >/newer").ok();
    sandbox.pando(["kill", "web"]).ok();
    sandbox.becomes("web", "stopped");
    let refused = sandbox.pando(["restore", "warm"]).run().ended_with(125);
    refused.complains_of(&["web", "started since", "--replace"]);
    assert_eq!(sandbox.state("web"), "stopped");
    sandbox.pando(["restore", "--replace", "warm"]).ok();
    assert!(count(sandbox, "web") > 5);
    sandbox.exec_sh("web", "[ ! -e /newer ]").ok();
    // One that is not there any more is in nobody's way.
    sandbox.pando(["rm", "--force", "web"]).ok();
    sandbox.pando(["restore", "warm"]).ok();
    assert!(count(sandbox, "web") > 5);
}

fn a_guest_ends_only_once_its_image_is_kept(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    let lives = |name: &str| sandbox.exec_sh(name, "tr '\\0' ' ' </proc/2/cmdline").ok().starts_with("sleep 100000");
    let before = World::of(sandbox);
    sandbox.end_daemon();
    let daemon = daemon_with(sandbox, "PANDO_CRASH_AT", "freeze.kept");
    sandbox.pando(["freeze", "web", "warm", "--stop"]).run().ended_with(125);
    daemon.wait().ended_with(137);
    assert!(lives("web"), "its image was kept, and it had not been ended");
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "warm\n");
    sandbox.pando(["clone", "warm", "one"]).ok();
    assert!(lives("one"));
    sandbox.pando(["rm", "--force", "one"]).ok();
    sandbox.pando(["image", "rm", "warm"]).ok();
    before.comes_back(sandbox, "the daemon killed before the guest's end, and the image removed");
    assert!(lives("web"));
}

/// A guest's files go for what it was frozen into, and for nothing else of that name.
fn another_image_of_the_name(sandbox: &Sandbox) {
    let export = sandbox.scratch().join("backup.pando").display().to_string();
    sandbox.guest("web", &[]);
    sandbox.exec_sh("web", "echo old >/precious").ok();
    sandbox.pando(["freeze", "web", "w", "--stop"]).ok();
    sandbox.pando(["image", "export", "w", &export]).ok();
    sandbox.pando(["restore", "w"]).ok();
    sandbox.exec_sh("web", "echo mine >/precious").ok();
    sandbox.pando(["image", "rm", "w"]).ok();
    sandbox.pando(["freeze", "web", "w", "--stop"]).ok();
    sandbox.pando(["image", "rm", "w"]).ok();
    sandbox.pando(["image", "import", &export, "w"]).ok();
    sandbox.pando(["restore", "w"]).run().ended_with(125).complains_of(&["--replace", "may be newer"]);
    sandbox.end_daemon();
    sandbox.pando(["restore", "w"]).run().ended_with(125).complains_of(&["--replace"]);
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", "cat /precious").run().says("mine\n");
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    sandbox.pando(["restore", "--replace", "w"]).ok();
    sandbox.exec_sh("web", "cat /precious").run().says("old\n");
}

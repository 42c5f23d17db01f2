//! Refusals as the users of guests see them.

use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::world::World;

/// Has a file open that has lost the name by which it was opened, and somebody else who has it, until it is told to
/// close it.
const HOLDS: &str = "mkfifo /go; echo x >/gone; mkdir /moved; ln /gone /moved/other; exec 7</gone; rm /gone; sleep 100000 & read word </go; exec 7<&-; kill $!; exec sleep 200000";

/// There is no image, nothing that was begun is left, and the guest runs; when what was named is gone it is frozen.
pub(super) fn nothing_changes(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sh", "-c", HOLDS]);
    let holds = "pidof sleep && readlink /proc/2/fd/7 | grep gone";
    eventually("it holds what is gone", || sandbox.exec_sh("web", holds).run().code() == 0);
    let before = World::of(sandbox);
    let refused = sandbox.pando(["freeze", "web"]).run().ended_with(125);
    refused.complains_of(&[
        "cannot be frozen",
        "process 2 (sh), descriptor 7: a file that lost this name",
        "(sleep), descriptor 7",
        "; close it",
    ]);
    before.is_unchanged(sandbox, "a refusal");
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "");
    assert_eq!(sandbox.state("web"), "running");
    sandbox.exec_sh("web", "echo >/go").ok();
    let closed = || sandbox.exec_sh("web", "tr '\\0' ' ' </proc/2/cmdline").run().out().contains("200000");
    eventually("it has closed it", closed);
    eventually("it can be frozen", || sandbox.pando(["freeze", "web"]).run().code() == 0);
    sandbox.pando(["clone", "web", "one"]).ok();
}

/// Whoever came in from outside talks to who is there.
pub(super) fn visitors_are_named(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    let mut visitor = sandbox.exec_sh("web", "echo $$ >/visitor; exec sleep 200000").start_with_open_input();
    eventually("there is a visitor", || {
        sandbox.exec_sh("web", "grep sleep /proc/$(cat /visitor)/comm").run().code() == 0
    });
    let refused = sandbox.pando(["freeze", "web"]).run().ended_with(125);
    refused.complains_of(&[
        "cannot be frozen: process ",
        "(sleep), descriptor 0: a pipe whose other end is outside (pipe:",
        "; end the program, or start it with /dev/null instead",
    ]);
    assert!(!visitor.has_ended(), "the visitor is there as before");
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "");
    drop(visitor);
    sandbox.exec_sh("web", "kill $(cat /visitor)").ok();
    eventually("without it the guest is frozen", || sandbox.pando(["freeze", "web"]).run().code() == 0);
}

//! pause, unpause, rename, prune: guests that stand still, and what becomes of those that do not run.

use crate::case::{Case, Tag};
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("standing_still::a_paused_guest_does_nothing", a_paused_guest_does_nothing).tags(&[Tag::Vm]),
    Case::new("standing_still::what_ends_a_paused_guest", what_ends_a_paused_guest),
    Case::new("standing_still::rename", rename),
    Case::new("standing_still::prune", prune),
];

const COUNTS: &str = "i=0; while :; do i=$((i + 1)); echo $i; sleep 0.05; done";

fn printed(sandbox: &Sandbox) -> usize {
    sandbox.pando(["logs", "web"]).ok().lines().count()
}

fn is_paused(sandbox: &Sandbox) -> bool {
    sandbox.status("web").expect("it is there")["paused"] == true
}

fn a_paused_guest_does_nothing(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sh", "-c", COUNTS]);
    eventually("it works", || printed(sandbox) > 2);
    sandbox.pando(["pause", "web"]).run().succeeded().says("web\n");
    assert!(is_paused(sandbox));
    assert!(sandbox.pando(["ls"]).ok().contains("running (paused)"));
    assert_eq!(sandbox.pando(["ls", "-q", "--filter", "status=paused"]).ok(), "web\n");
    let stands = |sandbox: &Sandbox| {
        let before = printed(sandbox);
        std::thread::sleep(std::time::Duration::from_millis(300));
        printed(sandbox) == before
    };
    // A line may have been on its way.
    eventually("it stands still", || stands(sandbox));
    sandbox.pando(["exec", "web", "true"]).run().ended_with(125).complains_of(&["web", "paused", "pando unpause web"]);
    sandbox.pando(["freeze", "web"]).run().ended_with(125).complains_of(&["paused"]);
    sandbox.pando(["pause", "web"]).run().ended_with(125).complains_of(&["paused"]);
    // The next daemon knows it.
    sandbox.end_daemon();
    assert!(is_paused(sandbox) && stands(sandbox));
    let before = printed(sandbox);
    sandbox.pando(["unpause", "web"]).run().succeeded().says("web\n");
    eventually("it goes on", || printed(sandbox) > before);
    assert!(!is_paused(sandbox));
    sandbox.pando(["exec", "web", "true"]).ok();
    sandbox.pando(["unpause", "web"]).run().ended_with(125).complains_of(&["not paused"]);
}

fn what_ends_a_paused_guest(sandbox: &Sandbox) {
    let polite = "trap 'exit 3' TERM; : >/ready; while :; do sleep 0.05; done";
    sandbox.guest("web", &["--", "sh", "-c", polite]);
    sandbox.exec_sh("web", "until [ -e /ready ]; do sleep 0.1; done").ok();
    sandbox.pando(["pause", "web"]).ok();
    sandbox.pando(["stop", "web"]).ok();
    assert_eq!(sandbox.status("web").expect("it is there")["exit_code"], 3, "it could answer");
    sandbox.pando(["start", "web"]).ok();
    assert!(!is_paused(sandbox));
    sandbox.pando(["pause", "web"]).ok();
    process::kill(sandbox.first_process("web"));
    sandbox.becomes("web", "stopped");
    assert!(!is_paused(sandbox));
    sandbox.pando(["pause", "web"]).run().ended_with(125).complains_of(&["not running"]);
    sandbox.pando(["start", "web"]).ok();
    sandbox.pando(["pause", "web"]).ok();
    sandbox.pando(["rm", "-f", "web"]).ok();
    assert_eq!(sandbox.state("web"), "absent");
}

fn rename(sandbox: &Sandbox) {
    sandbox.guest("web", &["--label", "own", "--", "sh", "-c", "hostname; sleep 1000"]);
    sandbox.exec_sh("web", "echo kept >/srv/kept").ok();
    sandbox.pando(["rename", "web", "front"]).run().ended_with(125).complains_of(&["web", "running"]);
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    sandbox.create("other", &[]);
    sandbox.pando(["rename", "web", "other"]).run().ended_with(125).complains_of(&["other", "already"]);
    sandbox.pando(["rename", "web", "a/b"]).run().ended_with(125).complains_of(&["a/b"]);
    sandbox.pando(["rename", "nobody", "x"]).run().ended_with(125).complains_of(&["nobody"]);
    sandbox.pando(["rename", "web", "front"]).ok();
    assert_eq!((sandbox.state("web"), sandbox.state("front")), ("absent".to_owned(), "stopped".to_owned()));
    sandbox.pando(["start", "front"]).ok();
    sandbox.exec_sh("front", "cat /srv/kept").run().says("kept\n");
    eventually("it has its new name inside", || sandbox.pando(["logs", "front"]).ok() == "web\nfront\n");
    sandbox.end_daemon();
    assert_eq!(sandbox.pando(["ls", "-q", "--filter", "label=own"]).ok(), "front\n");
    // An image knows the guest that it was by its name.
    sandbox.pando(["freeze", "front", "cold", "--stop"]).ok();
    sandbox.pando(["rename", "front", "other-name"]).run().ended_with(125).complains_of(&["front", "cold", "restore"]);
    sandbox.pando(["restore", "cold"]).ok();
    sandbox.pando(["stop", "-t", "0", "front"]).ok();
    // What was restored is written to the disk first.
    eventually("it is renamed", || sandbox.pando(["rename", "front", "other-name"]).run().code() == 0);
    sandbox.pando(["rename", "other-name", "front"]).ok();
    // The old name is free.
    sandbox.create("web", &[]);
    sandbox.pando(["rm", "-f", "front"]).ok();
    assert_eq!(sandbox.state("front"), "absent");
}

fn prune(sandbox: &Sandbox) {
    sandbox.create("old-1", &["-l", "ci"]);
    sandbox.create("old-2", &[]);
    sandbox.guest("busy", &["--", "sleep", "1000"]);
    sandbox.guest("poor", &["--restart", "always", "--", "sh", "-c", "exit 1"]);
    eventually("its next start is due", || {
        let status = sandbox.status("poor").expect("it is there");
        status["restarts"].as_u64() >= Some(6) && !status["next_start"].is_null()
    });
    sandbox.pando(["prune"]).run().ended_with(125).complains_of(&["--force"]);
    sandbox.pando(["prune", "--force", "--filter", "label=ci"]).run().succeeded().says("old-1\n");
    sandbox.pando(["prune", "-f"]).run().succeeded().says("old-2\n");
    sandbox.pando(["prune", "-f"]).run().succeeded().says("");
    assert_eq!(sandbox.pando(["ls", "-q"]).ok(), "busy\npoor\n");
}

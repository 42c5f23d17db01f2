//! The daemon is killed at every step of making a clone: the clone is there and runs, or nothing of it is.

use super::crash::{daemon_with, settled};
use crate::case::Case;
use crate::own_init;
use crate::sandbox::Sandbox;
use crate::world::World;

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_crash::daemon_at_every_step_of_clone", |sandbox| {
        sandbox.guest("source", &["--", "sleep", "100000"]);
        daemon_at_every_step_of_clone(sandbox);
    }),
    Case::new("clone_crash::daemon_at_every_step_of_a_clone_of_an_init", |sandbox| {
        own_init::scripted(sandbox, "source", "sleep 100000 & wait");
        daemon_at_every_step_of_clone(sandbox);
    }),
];

/// The boundaries between its steps, as the daemon's source names them, and what is found afterwards.
const STEPS: [(&str, &str); 7] = [
    ("clone.named", "absent"),
    ("start.shim", "absent"),
    ("start.noted", "absent"),
    ("clone.waits", "absent"),
    ("clone.booted", "absent"),
    ("clone.runs", "absent"),
    ("clone.stays", "running"),
];

/// The frozen process, which has this pid in the guest and in the clone.
#[track_caller]
fn lives(sandbox: &Sandbox, name: &str) {
    assert!(sandbox.exec_sh(name, "tr '\\0' ' ' </proc/2/cmdline").ok().starts_with("sleep 100000"));
}

fn daemon_at_every_step_of_clone(sandbox: &Sandbox) {
    let before = World::of(sandbox);
    for (step, expected) in STEPS {
        sandbox.end_daemon();
        let daemon = daemon_with(sandbox, "PANDO_CRASH_AT", step);
        sandbox.pando(["freeze", "source", "image", "--memory"]).ok();
        let ended = sandbox.pando(["clone", "image", "subject"]).run();
        daemon.wait().ended_with(137);
        assert!(matches!(ended.code(), 0 | 125), "at {step} the command ended with {}: {}", ended.code(), ended.err());
        assert_eq!(settled(sandbox), expected, "after {step}");
        lives(sandbox, "source");
        if expected == "running" {
            lives(sandbox, "subject");
            assert_eq!(sandbox.exec_sh("subject", "hostname").ok().trim(), "subject");
            sandbox.pando(["rm", "--force", "subject"]).ok();
        }
        before.comes_back(sandbox, &format!("the daemon killed at {step}, and the clone removed"));
    }
}

//! What is set of processes and inherited by what they fork: in a clone it is as it was, and not as whoever made the
//! clone has it.

use super::freeze::{NEEDS, plays};
use crate::case::{Case, skip};
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("frozen_settings::all_of_them_are_kept", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/settings.py"));
    })
    .needs(NEEDS),
    Case::new("frozen_settings::who_is_ended_first_is_not_what_the_daemon_is", who_is_ended_first),
    Case::new("frozen_settings::who_is_ended_last_is_a_clone_too", who_is_ended_last),
];

const SCORE: &str = "/proc/self/oom_score_adj";

/// The scores of the first three processes behind the guest's first.
fn scores(sandbox: &Sandbox, name: &str) -> String {
    sandbox.exec_sh(name, "for pid in 2 3 4; do cat /proc/$pid/oom_score_adj; done").run().out()
}

/// Three programs, of which the second has a score of its own, and the third one lower than that.
fn three(sandbox: &Sandbox, own: &str) {
    let script = format!(
        "sh -c 'echo {own} >{SCORE}; exec sleep 100000' & sh -c 'echo 40 >{SCORE}; exec sleep 100000' & sleep 100000"
    );
    sandbox.guest("source", &["--", "sh", "-c", &script]);
}

/// The daemon of the image is one that the kernel ends sooner than the guest.
fn who_is_ended_first(sandbox: &Sandbox) {
    three(sandbox, "700");
    eventually("they have scores", || scores(sandbox, "source") == "0\n700\n40\n");
    let daemon = sandbox.daemon().expect("a daemon runs");
    std::fs::write(format!("/proc/{daemon}/oom_score_adj"), "500").expect("it is raised");
    sandbox.pando(["freeze", "source", "image", "--wait"]).ok();
    sandbox.pando(["clone", "image", "one"]).ok();
    assert_eq!(scores(sandbox, "one"), "0\n700\n40\n");
    // Out of files, by a daemon that has no such score.
    sandbox.end_daemon();
    sandbox.pando(["clone", "image", "two"]).ok();
    assert_eq!(scores(sandbox, "two"), "0\n700\n40\n");
    assert_eq!(scores(sandbox, "source"), "0\n700\n40\n");
}

/// Whoever has CAP_SYS_RESOURCE may have set less for a guest than for the daemon.
fn who_is_ended_last(sandbox: &Sandbox) {
    three(sandbox, "700");
    eventually("they have scores", || scores(sandbox, "source") == "0\n700\n40\n");
    let first = sandbox.first_process("source");
    let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).expect("it has children");
    let command: i32 = children.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a pid");
    assert!(process::is_alive(command));
    if std::fs::write(format!("/proc/{command}/oom_score_adj"), "-300").is_err() {
        skip("it takes CAP_SYS_RESOURCE");
    }
    sandbox.pando(["freeze", "source", "image"]).ok();
    sandbox.pando(["clone", "image", "one"]).ok();
    assert_eq!(scores(sandbox, "one"), "-300\n700\n40\n");
}

//! Programs with filters of system calls of their own: in a clone they are who they were, whatever their filters make
//! of what a clone is made by; or they are refused by name, and run on.

use crate::case::Case;
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::os::unix::fs::PermissionsExt;

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_filters::success_that_is_none_leaves_nobody_root", |sandbox| {
        is_who_it_was(sandbox, &["setresuid=lie", "uid"]);
    }),
    Case::new("clone_filters::success_that_is_none_leaves_nobody_in_a_group", |sandbox| {
        is_who_it_was(sandbox, &["groups", "setresgid=lie", "setgroups=lie", "gid", "uid"]);
    }),
    Case::new("clone_filters::files_are_opened_as_before", |sandbox| {
        is_who_it_was(sandbox, &["fsuid", "setfsuid=lie"]);
    }),
    Case::new("clone_filters::success_that_is_none_bounds_as_before", |sandbox| {
        is_who_it_was(sandbox, &["bound", "prctl=lie", "uid"]);
    }),
    Case::new("clone_filters::what_ends_who_becomes_another_lets_clones_live", |sandbox| {
        is_who_it_was(sandbox, &["setresuid=kill", "setresgid=kill", "setgroups=kill", "uid"]);
    }),
    Case::new("clone_filters::what_ends_who_sets_anything_lets_clones_live", |sandbox| {
        is_who_it_was(sandbox, &["prctl=kill"]);
    }),
    Case::new("clone_filters::the_same_of_who_is_nobody_any_more", |sandbox| {
        is_who_it_was(sandbox, &["prctl=kill", "uid"]);
    }),
    Case::new("clone_filters::a_filter_that_keeps_others_away_does_so_in_the_freeze", |sandbox| {
        is_who_it_was(sandbox, &["seccomp=lie", "mount=EPERM", "setresuid=lie", "uid"]);
    }),
    Case::new("clone_filters::threads_have_what_they_had", |sandbox| {
        is_who_it_was(sandbox, &["setresuid=lie", "thread", "uid"]);
    }),
    Case::new("clone_filters::threads_that_differ_have_what_they_had", |sandbox| {
        is_who_it_was(sandbox, &["thread", "setresuid=lie", "uid"]);
    }),
    Case::new("clone_filters::ordinary_ones_are_kept", |sandbox| is_who_it_was(sandbox, &["mount=EPERM", "uid"])),
    Case::new("clone_filters::a_list_of_what_is_allowed_is_kept", |sandbox| {
        is_who_it_was(sandbox, &["gid", "uid", "nnp", "list"]);
    }),
    Case::new("clone_filters::who_cannot_give_up_what_it_has_not_is_refused", |sandbox| {
        is_refused(sandbox, &["capset=lie", "uid"], "capset");
    }),
    Case::new("clone_filters::who_cannot_come_back_is_refused", |sandbox| {
        is_refused(sandbox, &["nnp", "rt_sigreturn=kill"], "rt_sigreturn");
    }),
];

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/filtered"));

/// A guest that runs the program, with words.
fn guest(sandbox: &Sandbox, words: &[&str]) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    let program = tree.join("bin/filtered");
    std::fs::write(&program, PROGRAM).expect("a file");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    sandbox
        .pando(["create", "source", "--profile", "system", "--from", &tree.to_string_lossy(), "--", "filtered"])
        .args(words)
        .ok();
    sandbox.pando(["start", "source"]).ok();
    counts(sandbox, "source");
}

/// It goes on counting.
#[track_caller]
fn counts(sandbox: &Sandbox, name: &str) {
    let count = || sandbox.exec_sh(name, "cat /count").run().out().trim().parse::<u64>().ok();
    eventually("it counts", || count().is_some());
    let before = count();
    eventually("it goes on counting", || count() > before);
}

/// What holds of each of its threads.
fn who(sandbox: &Sandbox, name: &str) -> String {
    let wanted = "Name|Uid|Gid|Groups|Cap[A-Z].*|NoNewPrivs|Seccomp.*";
    let script =
        format!("cd /proc/$(pidof filtered)/task && for one in *; do grep -E '^({wanted}):' $one/status; done");
    sandbox.exec_sh(name, &script).ok()
}

fn is_who_it_was(sandbox: &Sandbox, words: &[&str]) {
    guest(sandbox, words);
    let was = who(sandbox, "source");
    sandbox.pando(["freeze", "source", "image", "--wait"]).ok();
    sandbox.pando(["clone", "image", "one"]).ok();
    counts(sandbox, "one");
    assert_eq!(who(sandbox, "one"), was);
    // Out of files, too.
    sandbox.end_daemon();
    sandbox.pando(["clone", "image", "two"]).ok();
    counts(sandbox, "two");
    assert_eq!(who(sandbox, "two"), was);
    assert_eq!(who(sandbox, "source"), was);
}

fn is_refused(sandbox: &Sandbox, words: &[&str], call: &str) {
    guest(sandbox, words);
    let was = who(sandbox, "source");
    let refused = sandbox.pando(["freeze", "source", "image"]).run().ended_with(125);
    refused.complains_of(&["filtered", "filter", call]);
    counts(sandbox, "source");
    assert_eq!(who(sandbox, "source"), was);
}

//! Clones made ahead, whose processes stand at the gate before anybody asks for them: nobody sees them, and nothing is
//! left of them.

use super::crash::daemon_with;
use crate::case::Case;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::world::World;

pub(crate) const CASES: &[Case] = &[
    Case::new("standby_clones::a_clone_in_use_has_some", a_clone_in_use_has_some),
    Case::new("standby_clones::one_that_was_killed_is_passed_over", one_that_was_killed_is_passed_over),
    Case::new(
        "standby_clones::one_of_which_a_part_was_killed_is_passed_over",
        one_of_which_a_part_was_killed_is_passed_over,
    ),
    Case::new("standby_clones::they_go_with_the_daemon", they_go_with_the_daemon),
    Case::new("standby_clones::one_that_shares_files_is_not_made_ahead", one_that_shares_files_is_not_made_ahead),
];

/// How many are kept of an image with few processes.
const READY: usize = 2;

/// What the frozen guest runs.
const COMMAND: [&str; 2] = ["sleep", "100000"];

/// An image, and a clone of it.
fn image(sandbox: &Sandbox) {
    sandbox.guest("source", &["--", "sleep", "100000"]);
    sandbox.exec_sh("source", "echo 0123456789abcdef0123456789abcdef >/etc/machine-id").ok();
    sandbox.pando(["freeze", "source", "image"]).ok();
    assert_eq!(standing(sandbox, READY), Vec::<i32>::new(), "nobody has asked for a clone yet");
    sandbox.pando(["clone", "image", "first"]).ok();
}

/// The processes of standby_clones, in a sandbox with so many guests.
fn standing(sandbox: &Sandbox, guests: usize) -> Vec<i32> {
    let command = COMMAND.map(str::to_owned);
    let all = sandbox.processes().into_iter().filter(|one| one.words.starts_with(&command)).map(|one| one.pid);
    let names = sandbox.pando(["ls", "-q"]).ok();
    assert!(names.lines().count() <= guests, "{names}");
    let of_guests: Vec<String> = names.lines().map(|name| sandbox.pando(["ps", name]).ok()).collect();
    all.filter(|pid| !of_guests.iter().any(|listed| has(listed, *pid))).collect()
}

/// Whether a listing of processes has one of them.
fn has(listed: &str, pid: i32) -> bool {
    listed.split_ascii_whitespace().any(|word| word == pid.to_string())
}

fn a_clone_in_use_has_some(sandbox: &Sandbox) {
    image(sandbox);
    eventually("some are made ahead", || standing(sandbox, 2).len() == READY);
    let before = standing(sandbox, 2);
    sandbox.pando(["clone", "image", "second"]).ok();
    // What was made ahead is that clone, and somebody of its own.
    let listed = sandbox.pando(["ps", "second"]).ok();
    assert!(before.iter().any(|pid| has(&listed, *pid)), "{listed}");
    assert_eq!(sandbox.exec_sh("second", "hostname").ok().trim(), "second");
    let id = |name: &str| sandbox.exec_sh(name, "cat /etc/machine-id").ok();
    assert_ne!(id("first"), id("second"));
    eventually("others take its place", || standing(sandbox, 3).len() == READY);
    sandbox.pando(["image", "rm", "image"]).ok();
    eventually("they go with the image", || standing(sandbox, 3).is_empty());
    assert!(sandbox.exec_sh("second", "tr '\\0' ' ' </proc/2/cmdline").ok().starts_with("sleep 100000"));
}

fn one_that_was_killed_is_passed_over(sandbox: &Sandbox) {
    image(sandbox);
    eventually("some are made ahead", || standing(sandbox, 2).len() == READY);
    standing(sandbox, 2).into_iter().for_each(process::kill);
    sandbox.pando(["clone", "image", "second"]).ok();
    assert!(sandbox.exec_sh("second", "tr '\\0' ' ' </proc/2/cmdline").ok().starts_with("sleep 100000"));
}

/// The others stand, and nothing else tells that one is missing.
fn one_of_which_a_part_was_killed_is_passed_over(sandbox: &Sandbox) {
    sandbox.guest("source", &["--", "sh", "-c", "sleep 100000 & exec sleep 200000"]);
    eventually("it runs", || part(sandbox).len() == 1);
    sandbox.pando(["freeze", "source", "image"]).ok();
    sandbox.pando(["clone", "image", "first"]).ok();
    eventually("some are made ahead", || part(sandbox).len() == 2 + READY);
    let of_guests: String = ["source", "first"].map(|name| sandbox.pando(["ps", name]).ok()).concat();
    part(sandbox).into_iter().filter(|pid| !has(&of_guests, *pid)).for_each(process::kill);
    sandbox.pando(["clone", "image", "second"]).ok();
    let listed = sandbox.pando(["ps", "second"]).ok();
    assert!(listed.contains("sleep 100000") && listed.contains("sleep 200000"), "{listed}");
}

/// The processes that run the second of its commands.
fn part(sandbox: &Sandbox) -> Vec<i32> {
    let words = ["sleep", "200000"].map(str::to_owned);
    sandbox.processes().into_iter().filter(|one| one.words.starts_with(&words)).map(|one| one.pid).collect()
}

fn they_go_with_the_daemon(sandbox: &Sandbox) {
    sandbox.guest("source", &["--", "sleep", "100000"]);
    sandbox.pando(["freeze", "source", "image", "--wait"]).ok();
    let before = World::of(sandbox);
    let daemon = daemon_with(sandbox, "PANDO_CRASH_AT", "clone.ahead");
    sandbox.pando(["clone", "image", "first"]).run();
    daemon.wait().ended_with(137);
    sandbox.pando(["rm", "--force", "first"]).run();
    before.comes_back(sandbox, "the daemon killed with a clone made ahead");
    sandbox.pando(["clone", "image", "first"]).ok();
    eventually("some are made ahead", || standing(sandbox, 2).len() == READY);
    sandbox.pando(["rm", "--force", "first"]).ok();
    before.comes_back(sandbox, "the daemon ended with clones made ahead");
}

fn one_that_shares_files_is_not_made_ahead(sandbox: &Sandbox) {
    image(sandbox);
    let shared = sandbox.scratch();
    std::fs::create_dir_all(&shared).unwrap();
    let volume = format!("{}:/shared", shared.display());
    sandbox.guest("another", &["-v", &volume, "--", "sleep", "200000"]);
    sandbox.pando(["freeze", "another", "shares"]).ok();
    eventually("some are made ahead", || standing(sandbox, 3).len() == READY);
    sandbox.pando(["clone", "image", "second"]).ok();
    sandbox.pando(["clone", "shares", "third"]).ok();
    // Those of the image asked for last come first.
    eventually("the others' are made again", || standing(sandbox, 5).len() == READY);
    let words = ["sleep", "200000"].map(str::to_owned);
    assert_eq!(sandbox.processes().iter().filter(|one| one.words.starts_with(&words)).count(), 2);
}

//! Trees of processes: those whose group has lost its leader, and those that a signal has stopped.

use super::attacks;
use super::freeze::{NEEDS, again_and_again, clone_into, frozen, plays, stage};
use crate::case::Case;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::spaces::Space;

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_trees::groups_without_a_leader_are_groups", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/groups.py"))
    })
    .needs(NEEDS),
    Case::new("clone_trees::groups_without_a_leader_in_clones_of_clones", |sandbox| {
        again_and_again(sandbox, include_str!("../../fixtures/groups.py"), |_| ());
    })
    .needs(NEEDS),
    Case::new("clone_trees::who_is_stopped_stays_so_until_it_is_to_go_on", |sandbox| {
        plays(sandbox, include_str!("../../fixtures/stopped.py"))
    })
    .needs(NEEDS),
    Case::new("clone_trees::who_was_stopped_before_its_program_went_on_is_named", stopped_since_it_was_cloned)
        .needs(NEEDS),
    Case::new("clone_trees::a_line_is_frozen_and_cloned_however_long", a_line_however_long),
];

/// A process that a clone has stopped where its program is yet to go on.
fn stopped_since_it_was_cloned(sandbox: &Sandbox) {
    let stage = stage(sandbox);
    let source = Space::new();
    let _actor = source.play(include_str!("../../fixtures/stopped.py"), &stage);
    let image = frozen(&source).unwrap_or_else(|error| panic!("{error}"));
    let clone = Space::new();
    clone_into(&image, &clone);
    let said = frozen(&clone).map(drop).expect_err("three of it are stopped").to_string();
    assert!(said.contains("it has been stopped since it was cloned") && said.contains("send it SIGCONT"), "{said}");
    assert!(clone.command(&["sh", "-c", "kill -CONT -1"]).status().expect("sh runs").success());
    frozen(&clone).unwrap_or_else(|error| panic!("{error}"));
}

/// Processes each of which is the child of the one before, more than fit beside one another on any stack.
fn a_line_however_long(sandbox: &Sandbox) {
    const LENGTH: usize = 600;
    let tree = attacks::tree(sandbox).to_string_lossy().into_owned();
    let line = |length: usize| ["/bin/attack".to_owned(), "line".into(), length.to_string()];
    let create = sandbox.pando(["create", "line", "--from", &tree, "--start", "--"]);
    create.args(line(LENGTH)).ok();
    eventually("it is there", || sandbox.pando(["logs", "line"]).ok().contains("the end of the line"));
    let members = |name: &str| sandbox.pando(["ps", name]).ok().matches("/bin/attack line").count();
    assert_eq!(members("line"), LENGTH + 1);
    sandbox.pando(["freeze", "line", "image"]).limit(120).ok();
    sandbox.pando(["clone", "image", "clone"]).limit(120).ok();
    assert_eq!(members("clone"), LENGTH + 1);
    sandbox.pando(["rm", "--force", "line", "clone"]).ok();
    // One that is longer than the kernel's memory for it is worth is refused by name.
    sandbox.pando(["create", "long", "--from", &tree, "--start", "--"]).args(line(1100)).ok();
    eventually("it is there", || sandbox.pando(["logs", "long"]).ok().contains("the end of the line"));
    let refused = sandbox.pando(["freeze", "long", "other"]).limit(120).run();
    refused.ended_with(125).complains_of(&["1024 others are above it"]);
}

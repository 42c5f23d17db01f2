//! Trees of processes: those whose group has lost its leader, and those that a signal has stopped.

use super::freeze::{NEEDS, again_and_again, clone_into, frozen, plays, stage};
use crate::case::Case;
use crate::sandbox::Sandbox;
use crate::spaces::Space;

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_trees::groups_without_a_leader_are_groups", |sandbox| {
        plays(sandbox, include_str!("../../actors/groups.py"))
    })
    .needs(NEEDS),
    Case::new("clone_trees::groups_without_a_leader_in_clones_of_clones", |sandbox| {
        again_and_again(sandbox, include_str!("../../actors/groups.py"), |_| ());
    })
    .needs(NEEDS),
    Case::new("clone_trees::who_is_stopped_stays_so_until_it_is_to_go_on", |sandbox| {
        plays(sandbox, include_str!("../../actors/stopped.py"))
    })
    .needs(NEEDS),
    Case::new("clone_trees::who_was_stopped_before_its_program_went_on_is_named", stopped_since_it_was_cloned)
        .needs(NEEDS),
];

/// A process that a clone has stopped where its program is yet to go on.
fn stopped_since_it_was_cloned(sandbox: &Sandbox) {
    let stage = stage(sandbox);
    let source = Space::new();
    let _actor = source.play(include_str!("../../actors/stopped.py"), &stage);
    let image = frozen(&source).unwrap_or_else(|error| panic!("{error}"));
    let clone = Space::new();
    clone_into(&image, &clone);
    let said = frozen(&clone).map(drop).expect_err("three of it are stopped").to_string();
    assert!(said.contains("it has been stopped since it was cloned") && said.contains("send it SIGCONT"), "{said}");
    assert!(clone.command(&["sh", "-c", "kill -CONT -1"]).status().expect("sh runs").success());
    frozen(&clone).unwrap_or_else(|error| panic!("{error}"));
}

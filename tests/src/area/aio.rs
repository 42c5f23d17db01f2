//! Contexts of asynchronous input and output (io_setup(2)): what waits in their rings and what is asked of them goes on
//! in clones, clones of clones and images that have travelled.

use super::freeze::{TOLD, again_and_again, frozen_untold, plays, stage};
use crate::busybox_root::with_python;
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::spaces::Space;
use crate::teardown::tear_down;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("aio::contexts_come_along", |sandbox| plays(sandbox, ACTOR)).needs(TOLD),
    Case::new("aio::contexts_in_clones_of_clones", |sandbox| again_and_again(sandbox, ACTOR, |_| ())).needs(TOLD),
    Case::new("aio::contexts_of_guests_travel", contexts_of_guests_travel).needs(&[
        Need::Root,
        Need::Program("python3", "python3"),
        Need::TaskIterator,
    ]),
    Case::new("aio::where_nobody_tells_of_them_they_are_refused", where_nobody_tells).needs(TOLD),
];

const ACTOR: &str = include_str!("../../fixtures/aio.py");

fn where_nobody_tells(sandbox: &Sandbox) {
    let space = Space::new();
    let _actor = space.play(ACTOR, &stage(sandbox));
    let said = frozen_untold(&space).map(drop).expect_err("nobody tells").to_string();
    assert!(said.contains("io_setup") && said.contains("does not tell what it does"), "{said}");
}

/// Has the actor check itself in a guest, and wants it to have found itself right.
#[track_caller]
fn is_right(sandbox: &Sandbox, guest: &str) {
    let own = "/stage/$(readlink /proc/2/ns/pid | tr -dc 0-9)";
    sandbox.exec_sh(guest, "touch /stage/now").ok();
    eventually("it has checked itself", || sandbox.exec_sh(guest, &format!("test -e {own}")).run().code() == 0);
    assert_eq!(sandbox.exec_sh(guest, &format!("cat {own}")).ok(), "right", "{guest}");
}

fn contexts_of_guests_travel(sandbox: &Sandbox) {
    let tree = sandbox.scratch().join("tree");
    with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    std::fs::create_dir(tree.join("stage")).expect("a directory");
    let script = format!("{}{ACTOR}", include_str!("../../fixtures/stand.py"));
    std::fs::write(tree.join("stage/actor.py"), script).expect("a file");
    let words = ["--start", "--", "/usr/bin/python3", "-E", "-s", "/stage/actor.py", "/stage"];
    sandbox.pando(["create", "source", "--from", &tree.to_string_lossy()]).args(words).limit(120).ok();
    eventually("the actor is ready", || sandbox.exec_sh("source", "test -e /stage/ready").run().code() == 0);
    for (from, to) in [("source", "one"), ("one", "two")] {
        sandbox.pando(["freeze", from, &format!("for-{to}")]).limit(120).ok();
        sandbox.pando(["clone", &format!("for-{to}"), to]).limit(120).ok();
    }
    let export = sandbox.scratch().join("export").to_string_lossy().into_owned();
    sandbox.pando(["image", "export", "for-two", &export]).limit(120).ok();
    let elsewhere = Sandbox::new(Path::new(sandbox.busybox())).expect("another root");
    let travelled = catch_unwind(AssertUnwindSafe(|| {
        elsewhere.pando(["image", "import", &export]).limit(120).ok();
        elsewhere.pando(["clone", "for-two", "three"]).limit(120).ok();
        is_right(&elsewhere, "three");
    }));
    tear_down(elsewhere).expect("the other root is removed");
    if let Err(panic) = travelled {
        resume_unwind(panic);
    }
    is_right(sandbox, "one");
    is_right(sandbox, "two");
    sandbox.pando(["freeze", "source", "at-rest", "--stop"]).limit(120).ok();
    sandbox.pando(["restore", "at-rest"]).limit(120).ok();
    is_right(sandbox, "source");
}

//! Plain mistakes, and words without end: refused at once, with the cause.

use crate::case::Case;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub(crate) const CASES: &[Case] = &[
    Case::new("bounds::a_spec_has_an_end", a_spec_has_an_end),
    Case::new("bounds::words_that_nobody_can_use_are_refused", words_that_nobody_can_use_are_refused),
    Case::new("bounds::a_value_that_is_no_text_is_said", a_value_that_is_no_text_is_said),
    Case::new("bounds::a_root_with_too_long_a_name_is_said", a_root_with_too_long_a_name_is_said),
    Case::new("bounds::a_view_needs_a_terminal", a_view_needs_a_terminal),
    Case::new("bounds::a_full_guest_says_so", a_full_guest_says_so),
];

fn a_spec_has_an_end(sandbox: &Sandbox) {
    let many = sandbox.scratch().join("many.toml");
    let text: String =
        (0..100_000).map(|number| format!("[[volumes]]\nsource = \"/srv\"\ntarget = \"/{number}\"\n")).collect();
    std::fs::write(&many, text).expect("a file");
    let many = many.to_string_lossy().into_owned();
    let mut specs = vec![many.as_str()];
    // A program that has no bound here takes the machine's memory.
    if std::env::var_os("PANDO_TEST_COMMAND").is_none() {
        specs.push("/dev/zero");
    }
    for spec in specs {
        let create = sandbox.pando(["create", "web", "--from", sandbox.busybox(), "--spec", spec]).limit(20);
        create.run().ended_with(125).complains_of(&[spec, "more than 256 KiB"]);
    }
}

fn words_that_nobody_can_use_are_refused(sandbox: &Sandbox) {
    for name in ["5\n", "a/b", "a b"] {
        sandbox.run_sh(&["--hostname", name], "hostname").run().ended_with(125).complains_of(&["host name", "letters"]);
    }
    sandbox.run_sh(&["--hostname", "web-1.example.org"], "hostname").run().succeeded().says("web-1.example.org\n");
    let create =
        sandbox.pando(["create", "slow", "--from", sandbox.busybox(), "--net", "private", "--net-limit", "1bit"]);
    create.run().ended_with(125).complains_of(&["1bit", "8kbit"]);
}

fn a_value_that_is_no_text_is_said(sandbox: &Sandbox) {
    let value = OsStr::from_bytes(b"\xff");
    let run = sandbox.pando(["run", "--from", sandbox.busybox(), "-e", "ODD", "--", "env"]).env("ODD", value).run();
    assert_ne!(run.code(), 0, "{}", run.out());
    run.complains_of(&["ODD", "UTF-8"]);
}

fn a_root_with_too_long_a_name_is_said(sandbox: &Sandbox) {
    let root = sandbox.scratch().join("x".repeat(120)).to_string_lossy().into_owned();
    let ls = crate::line::Line::new(sandbox.program()).args(["--root", &root, "ls"]).run();
    ls.ended_with(125).complains_of(&["107", "shorter"]);
}

fn a_view_needs_a_terminal(sandbox: &Sandbox) {
    sandbox.pando(["top"]).run().ended_with(125).complains_of(&["terminal", "--once"]);
}

fn a_full_guest_says_so(sandbox: &Sandbox) {
    sandbox.guest("web", &["--pids", "8"]);
    let sleepers: Vec<_> = (0..12).map(|_| sandbox.pando(["exec", "web", "--", "sleep", "100000"]).start()).collect();
    eventually("no process more is taken", || {
        let ended = sandbox.pando(["exec", "web", "--", "true"]).run();
        ended.code() == 125 && ended.err().contains("pids") && !ended.err().contains("may lack")
    });
    sandbox.pando(["kill", "web"]).ok();
    sleepers.into_iter().for_each(|sleeper| drop(sleeper.wait()));
}

//! What the daemon lacks, and what it cannot read, ends no guest: it is said, tried again, and can be mended.

use crate::case::Case;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use rustix::process::Signal;

pub(crate) const CASES: &[Case] = &[
    Case::new("trouble::a_daemon_with_few_descriptors_ends_no_guest", a_daemon_with_few_descriptors_ends_no_guest)
        .needs(&[Need::Root, Need::Program("setpriv", "util-linux")]),
    Case::new("trouble::a_shim_that_stands_still_is_asked_again", a_shim_that_stands_still_is_asked_again),
    Case::new("trouble::a_spec_that_cannot_be_read_is_repaired", a_spec_that_cannot_be_read_is_repaired),
    Case::new(
        "trouble::a_guest_of_which_nothing_is_known_can_be_ended",
        a_guest_of_which_nothing_is_known_can_be_ended,
    ),
    Case::new("trouble::what_a_guest_calls_its_spec_is_not_its_spec", planted_specs),
    Case::new("trouble::a_mended_file_is_seen_by_itself", a_mended_file_is_seen_by_itself),
    Case::new("trouble::a_socket_that_was_removed_is_made_again", a_socket_that_was_removed_is_made_again),
];

/// The command with so many descriptors, and without leave to raise that: its daemon has no more either.
fn with_descriptors(sandbox: &Sandbox, most: u32, words: &str) -> Ended {
    let script = format!("ulimit -n {most} && exec \"$0\" --root \"$1\" {words}");
    Line::new("setpriv")
        .args(["--bounding-set=-sys_resource", "--", "sh", "-c", &script])
        .args([sandbox.program(), sandbox.root()])
        .run()
}

fn kill_daemon(sandbox: &Sandbox) {
    process::kill(sandbox.daemon().expect("a daemon runs"));
    eventually("the daemon has gone", || sandbox.daemon().is_none());
}

fn a_daemon_with_few_descriptors_ends_no_guest(sandbox: &Sandbox) {
    let names: Vec<String> = (0..48).map(|number| format!("g{number}")).collect();
    for name in &names {
        sandbox.guest(name, &["--", "sleep", "1000"]);
    }
    let first: Vec<i32> = names.iter().map(|name| sandbox.first_process(name)).collect();
    kill_daemon(sandbox);
    let listed = with_descriptors(sandbox, 150, "ls --json").succeeded().out();
    let guests: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let unreachable: Vec<&str> = guests
        .as_array()
        .expect("an array")
        .iter()
        .filter(|guest| guest["state"] == "unreachable")
        .filter_map(|guest| guest["name"].as_str())
        .collect();
    assert!(first.iter().all(|pid| process::is_alive(*pid)), "a guest has ended");
    assert!(!unreachable.is_empty() && unreachable.len() < names.len(), "{} are unreachable", unreachable.len());
    sandbox.pando(["exec", unreachable[0], "--", "true"]).run().ended_with(125).complains_of(&["too many open files"]);
    sandbox.pando(["ls"]).run().succeeded().complains_of(&[unreachable[0], "cannot reach it", "too many open files"]);
    let reached = names.iter().find(|name| !unreachable.contains(&name.as_str())).expect("one was taken over");
    sandbox.pando(["stop", "-t", "0", unreachable[0], reached]).ok();
    assert_eq!(sandbox.state(unreachable[0]), "stopped");
    // With enough of them all are found, those that never were as well.
    sandbox.end_daemon();
    sandbox.pando(["ls"]).ok();
    for (name, pid) in names.iter().zip(first).filter(|(name, _)| *name != reached && *name != unreachable[0]) {
        assert_eq!((sandbox.state(name).as_str(), sandbox.first_process(name)), ("running", pid));
    }
}

fn a_shim_that_stands_still_is_asked_again(sandbox: &Sandbox) {
    sandbox.guest("still", &["--", "sleep", "1000"]);
    sandbox.guest("other", &["--", "sleep", "1000"]);
    let first = sandbox.first_process("still");
    let shim = process::parent(first).expect("it has a parent");
    process::signal(shim, Signal::STOP);
    kill_daemon(sandbox);
    assert_eq!(sandbox.state("still"), "unreachable");
    assert_eq!(sandbox.state("other"), "running");
    sandbox.pando(["rm", "still"]).run().ended_with(125);
    process::signal(shim, Signal::CONT);
    sandbox.becomes("still", "running");
    assert_eq!(sandbox.first_process("still"), first);
    sandbox.exec_sh("still", "true").ok();
}

fn damage(sandbox: &Sandbox, name: &str, file: &str) {
    std::fs::write(sandbox.places().guests().join(name).join(file), "memory = \nx").expect("it can be written");
}

fn a_spec_that_cannot_be_read_is_repaired(sandbox: &Sandbox) {
    sandbox.guest("web", &["--hostname", "known", "--", "sleep", "1000"]);
    let first = sandbox.first_process("web");
    kill_daemon(sandbox);
    damage(sandbox, "web", "spec.toml");
    sandbox.pando(["ls"]).run().succeeded().complains_of(&["web", "spec.toml", "line 2", "pando repair web"]);
    assert_eq!((sandbox.state("web").as_str(), sandbox.first_process("web")), ("running", first));
    sandbox.exec_sh("web", "hostname").run().says("known\n");
    sandbox.pando(["set", "web", "hostname=other"]).run().ended_with(125).complains_of(&["spec.toml"]);
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    sandbox.pando(["start", "web"]).run().ended_with(125).complains_of(&["spec.toml", "pando repair web"]);
    let done = sandbox.pando(["repair", "web"]).ok();
    assert!(done.contains("spec.toml.broken"), "{done}");
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", "hostname").run().says("known\n");
    assert!(sandbox.status("web").expect("it is listed").get("trouble").is_none());
}

/// A guest lays out specs of its liking wherever it can, for `pando repair` to find.
fn planted_specs(sandbox: &Sandbox) {
    const WISHED: &str = "user_namespace = false\nseccomp = \"off\"\nprofile = \"system\"\ncap_add = [\"ALL\"]\n";
    let volume = sandbox.scratch().join("shown");
    std::fs::create_dir(&volume).expect("a directory");
    sandbox.guest("web", &["--profile", "strict", "-v", &format!("{}:/srv", volume.display()), "--", "sleep", "1000"]);
    let names = "spec.toml .spec.toml.good guest.toml .guest.toml.good .new-spec spec.toml.broken";
    let plant = format!("for at in / /.. /srv; do for name in {names}; do cat >$at/$name; done; done");
    sandbox
        .exec_sh("web", &format!("cat >/requested; {}", plant.replace("cat >", "cp /requested ")))
        .input(WISHED)
        .ok();
    kill_daemon(sandbox);
    damage(sandbox, "web", "spec.toml");
    sandbox.pando(["repair", "web"]).ok();
    let spec = &sandbox.inspect("web")["spec"];
    assert_eq!((&spec["profile"], spec["user_namespace"].as_bool()), (&"strict".into(), Some(true)), "{spec}");
    // Without the daemon's own copy there is none.
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    sandbox.end_daemon();
    damage(sandbox, "web", "spec.toml");
    std::fs::remove_file(sandbox.places().guests().join("web/.spec.toml.good")).expect("it is kept");
    sandbox.pando(["repair", "web"]).run().ended_with(125).complains_of(&["spec.toml", "by hand"]);
}

fn a_guest_of_which_nothing_is_known_can_be_ended(sandbox: &Sandbox) {
    sandbox.guest("lost", &["--", "sleep", "1000"]);
    let first = sandbox.first_process("lost");
    kill_daemon(sandbox);
    damage(sandbox, "lost", "guest.toml");
    let good = sandbox.places().guests().join("lost/.guest.toml.good");
    let _ = std::fs::remove_file(good);
    assert_eq!(sandbox.state("lost"), "unreachable");
    assert!(process::is_alive(first));
    sandbox.pando(["store", "gc"]).run().ended_with(125).complains_of(&["lost"]);
    sandbox.pando(["repair", "lost"]).run().ended_with(125).complains_of(&["guest.toml", "by hand"]);
    sandbox.pando(["rm", "lost"]).run().ended_with(125);
    sandbox.pando(["stop", "-t", "0", "lost"]).ok();
    assert!(!process::is_alive(first));
    assert_eq!(sandbox.state("lost"), "unreadable");
    sandbox.pando(["rm", "lost"]).ok();
    assert_eq!(sandbox.state("lost"), "absent");
}

fn a_mended_file_is_seen_by_itself(sandbox: &Sandbox) {
    sandbox.create("web", &["--", "true"]);
    sandbox.end_daemon();
    let path = sandbox.places().guests().join("web/guest.toml");
    let sound = std::fs::read(&path).expect("it has a record");
    damage(sandbox, "web", "guest.toml");
    let _ = std::fs::remove_file(path.with_file_name(".guest.toml.good"));
    assert_eq!(sandbox.state("web"), "unreadable");
    sandbox.pando(["start", "web"]).run().ended_with(125).complains_of(&["guest.toml"]);
    std::fs::write(&path, sound).expect("it can be written");
    sandbox.becomes("web", "stopped");
    sandbox.pando(["start", "web"]).ok();
}

fn a_socket_that_was_removed_is_made_again(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "1000"]);
    let daemon = sandbox.daemon().expect("a daemon runs");
    std::fs::remove_file(sandbox.places().socket()).expect("it is there");
    assert_eq!(sandbox.state("web"), "running");
    assert_eq!(sandbox.daemon(), Some(daemon));
}

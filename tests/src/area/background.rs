//! run -d, exec -d, wait: what runs while nobody stands for it.

use crate::case::Case;
use crate::patience::eventually;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("background::run_leaves_it_running", run_leaves_it_running),
    Case::new("background::a_terminal_stays_open", a_terminal_stays_open),
    Case::new("background::a_command_that_is_missing_is_said_at_once", a_command_that_is_missing_is_said_at_once),
    Case::new("background::exec_leaves_it_running", exec_leaves_it_running),
    Case::new("background::wait_tells_the_exit_code", wait_tells_the_exit_code),
];

fn run_leaves_it_running(sandbox: &Sandbox) {
    let script = "echo at work; echo trouble >&2; cat; until [ -e /go ]; do sleep 0.1; done; exit 7";
    let words = ["run", "-d", "--rm", "--name", "job", "--from", sandbox.busybox(), "--", "sh", "-c", script];
    sandbox.pando(words).run().succeeded().says("job\n");
    assert_eq!(sandbox.state("job"), "running");
    // Standard input is empty, and what is printed goes into the log.
    eventually("its output is in its log", || sandbox.pando(["logs", "job"]).ok() == "at work\ntrouble\n");
    let waiting = sandbox.pando(["wait", "job"]).start();
    sandbox.exec_sh("job", ": >/go").ok();
    waiting.wait().succeeded().says("7\n");
    sandbox.becomes("job", "absent");
    let unnamed = sandbox.pando(["run", "-d", "--from", sandbox.busybox(), "--", "sleep", "1000"]).ok();
    assert_eq!(sandbox.state(unnamed.trim()), "running");
    sandbox.pando(["stop", "-t", "0", unnamed.trim()]).ok();
    sandbox.becomes(unnamed.trim(), "absent");
}

fn a_terminal_stays_open(sandbox: &Sandbox) {
    // Without a terminal its input ends at once, and with a terminal that nobody keeps it is hung up.
    let words = ["run", "-dit", "--name", "shell", "--from", sandbox.busybox(), "--", "cat"];
    sandbox.pando(words).run().succeeded().says("shell\n");
    let input = sandbox.exec_sh("shell", "readlink /proc/$(pidof cat)/fd/0").ok();
    assert!(input.contains("/dev/pts/"), "{input}");
    assert_eq!(sandbox.state("shell"), "running");
    sandbox.pando(["rm", "-f", "shell"]).ok();
}

fn a_command_that_is_missing_is_said_at_once(sandbox: &Sandbox) {
    let words = ["run", "-d", "--name", "job", "--from", sandbox.busybox(), "--", "no-such-command"];
    sandbox.pando(words).run().ended_with(127).complains_of(&["no-such-command"]);
    assert_eq!(sandbox.state("job"), "absent");
    sandbox.pando(["run", "-d", "--from", sandbox.busybox()]).run().ended_with(125).complains_of(&["nothing to run"]);
}

fn exec_leaves_it_running(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let script = "echo lost; cat >/srv/input; until [ -e /go ]; do sleep 0.1; done; echo done >/srv/result";
    sandbox.pando(["exec", "-d", "web", "sh", "-c", script]).run().succeeded().says("");
    sandbox.exec_sh("web", "until [ -e /srv/input ]; do sleep 0.1; done; cat /srv/input; : >/go").run().says("");
    sandbox.exec_sh("web", "until [ -s /srv/result ]; do sleep 0.1; done; cat /srv/result").run().says("done\n");
    let missing = sandbox.pando(["exec", "-d", "web", "no-such-command"]).run();
    missing.ended_with(127).complains_of(&["no-such-command"]);
}

fn wait_tells_the_exit_code(sandbox: &Sandbox) {
    sandbox.guest("first", &["--", "sh", "-c", "until [ -e /go ]; do sleep 0.1; done; exit 3"]);
    sandbox.guest("second", &["--", "sleep", "1000"]);
    let waiting = sandbox.pando(["wait", "first", "second"]).start();
    sandbox.exec_sh("first", ": >/go").ok();
    sandbox.becomes("first", "stopped");
    sandbox.pando(["kill", "second"]).ok();
    waiting.wait().succeeded().says("3\n137\n");
    // At rest they are told as they ended, by another daemon too.
    sandbox.end_daemon();
    sandbox.pando(["wait", "second", "first"]).run().succeeded().says("137\n3\n");
    sandbox.create("idle", &[]);
    sandbox.pando(["wait", "idle"]).run().ended_with(125).complains_of(&["idle", "not known"]);
    sandbox.pando(["wait", "nobody", "first"]).run().ended_with(125).says("3\n").complains_of(&["nobody"]);
}

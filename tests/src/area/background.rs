//! run -d, exec -d, wait: what runs while nobody stands for it.

use crate::case::Case;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::terminal::Terminal;

pub(crate) const CASES: &[Case] = &[
    Case::new("background::run_leaves_it_running", run_leaves_it_running),
    Case::new("background::a_terminal_stays_open", a_terminal_stays_open),
    Case::new("background::a_command_that_is_missing_is_said_at_once", a_command_that_is_missing_is_said_at_once),
    Case::new("background::what_is_attached_is_read_inside", attached_input),
    Case::new("background::whoever_attaches_may_leave_by_the_keys", attached_keys),
    Case::new("background::an_input_outlives_the_daemon_and_is_cloned", lasting_input),
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

/// Reads lines, and says each again.
const ECHO: &str = "while read line; do [ \"$line\" = end ] && exit 7; echo \"said $line\"; done; echo no more";

fn attached_input(sandbox: &Sandbox) {
    let words = ["run", "-d", "-i", "--name", "job", "--from", sandbox.busybox(), "--", "sh", "-c", ECHO];
    sandbox.pando(words).run().succeeded().says("job\n");
    let said = |text: &str| eventually("it was read", || sandbox.pando(["logs", "job"]).ok() == text);
    // The end of what is passed on ends nothing: who comes later goes on.
    let first = sandbox.pando(["attach", "job"]).input("one\n").start();
    said("said one\n");
    let silent = sandbox.pando(["attach", "--no-stdin", "job"]).input("never\n").start();
    let mut second = sandbox.pando(["attach", "job"]).start_with_open_input();
    std::io::Write::write_all(second.input(), b"two\n").expect("it reads");
    said("said one\nsaid two\n");
    std::io::Write::write_all(second.input(), b"end\n").expect("it reads");
    let ended = second.close_input().wait().ended_with(7);
    assert!(ended.out().ends_with("said two\n"), "{}", ended.out());
    for other in [first, silent] {
        other.wait().ended_with(7);
    }
    // Without -i there is none.
    let words = ["run", "-d", "--name", "deaf", "--from", sandbox.busybox(), "--", "sh", "-c", ECHO];
    sandbox.pando(words).ok();
    eventually("its input ends at once", || sandbox.state("deaf") == "absent");
}

fn attached_keys(sandbox: &Sandbox) {
    sandbox.guest("job", &["-i", "--", "sh", "-c", ECHO]);
    let left = sandbox.pando(["attach", "job"]).input(&b"one\n\x10\x11two\n"[..]).run();
    left.succeeded().complains_of(&["Detached from guest 'job'"]);
    eventually("what came before the keys was read", || sandbox.pando(["logs", "job"]).ok() == "said one\n");
    let other = sandbox.pando(["attach", "--detach-keys", "ctrl-a,x", "job"]).input(&b"\x10three\n\x01x"[..]).run();
    other.succeeded().complains_of(&["Detached"]);
    eventually("other keys are typed", || sandbox.pando(["logs", "job"]).ok() == "said one\nsaid \x10three\n");
    assert_eq!(sandbox.state("job"), "running");
    // Nobody in there reads, and what is typed is more than a pipe holds.
    sandbox.guest("deaf", &["-i", "--", "sleep", "1000"]);
    let words = ["--root", &sandbox.root().to_string_lossy(), "attach", "deaf"].map(str::to_owned);
    let mut terminal = Terminal::run(sandbox.program(), words, (24, 80));
    for _ in 0..70 {
        terminal.types(&format!("{}\n", "x".repeat(999)));
    }
    terminal.types("\x10\x11");
    assert_eq!(terminal.ends(), 0);
    terminal.shows("Detached from guest 'deaf'");
}

fn lasting_input(sandbox: &Sandbox) {
    sandbox.guest("job", &["-i", "--", "sh", "-c", ECHO]);
    sandbox.end_daemon();
    let attached = |name: &str, text: &str| {
        let line = sandbox.pando(["attach", name]).input([text.as_bytes(), b"\n\x10\x11"].concat());
        line.run().succeeded().complains_of(&["Detached"]);
    };
    attached("job", "one");
    let said =
        |name: &str, text: &str| eventually("it was read", || sandbox.pando(["logs", name]).ok().ends_with(text));
    said("job", "said one\n");
    sandbox.pando(["freeze", "job"]).ok();
    sandbox.pando(["clone", "job", "copy"]).ok();
    attached("copy", "two");
    attached("job", "three");
    said("copy", "said two\n");
    said("job", "said three\n");
}

//! Guests on a terminal.

use crate::case::{Case, Tag};
use crate::need::Need;
use crate::own_init::scripted;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::terminal::Terminal;

const VM: &[Tag] = &[Tag::Vm];
const NEEDS: &[Need] = &[Need::Root, Need::Program("setsid", "util-linux")];

pub(crate) const CASES: &[Case] = &[
    Case::new("terminal::is_one_and_has_a_size", is_one_and_has_a_size).needs(NEEDS),
    Case::new("terminal::passes_keys_and_ctrl_c", passes_keys_and_ctrl_c).needs(NEEDS),
    Case::new("terminal::follows_a_resize", follows_a_resize).needs(NEEDS),
    Case::new("terminal::detach_keys_leave_it_running", detach_keys_leave_it_running).needs(NEEDS),
    Case::new("terminal::a_hang_up_ends_the_command", a_hang_up_ends_the_command).needs(NEEDS),
    Case::new("terminal::an_own_init_has_a_console", an_own_init_has_a_console).needs(&[Need::Root]).tags(VM),
    Case::new("terminal::a_console_outlives_the_daemon", a_console_outlives_the_daemon).needs(&[Need::Root]).tags(VM),
];

fn open(sandbox: &Sandbox, words: &[&str]) -> Terminal {
    let root = sandbox.root().to_string_lossy().into_owned();
    let words: Vec<&str> = ["--root", &root].iter().chain(words).copied().collect();
    Terminal::run(sandbox.program(), words, (33, 99))
}

fn is_one_and_has_a_size(sandbox: &Sandbox) {
    let script = "tty; stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all three; exit 4";
    let mut terminal = open(sandbox, &["run", "-t", "--from", sandbox.busybox(), "--", "sh", "-c", script]);
    assert_eq!(terminal.ends(), 4, "{}", terminal.shown());
    terminal.shows("/dev/");
    terminal.shows("33 99");
    terminal.shows("all three");
}

fn passes_keys_and_ctrl_c(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let mut terminal = open(sandbox, &["shell", "web"]);
    terminal.types("echo $((40 + 2)) on $(tty)\n");
    terminal.shows("42 on /dev/");
    // By a shell of its own, whose signals are as they shall be when it speaks: the one that is typed to has caught
    // them until its command is executed.
    terminal.types("sh -c 'echo go; exec sleep 1000'\n");
    terminal.shows("\r\ngo\r\n");
    terminal.types("\u{3}");
    terminal.types("echo interrupted $((1 + 1))\n");
    terminal.shows("interrupted 2");
    terminal.types("exit 9\n");
    assert_eq!(terminal.ends(), 9);
}

fn follows_a_resize(sandbox: &Sandbox) {
    let script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.1; done";
    sandbox.guest("web", &[]);
    let mut terminal = open(sandbox, &["exec", "-t", "web", "--", "sh", "-c", script]);
    terminal.shows("ready");
    terminal.resize((44, 111));
    terminal.shows("44 111");
    terminal.types("\u{3}");
    assert_ne!(terminal.ends(), 0);
}

fn detach_keys_leave_it_running(sandbox: &Sandbox) {
    let words =
        ["run", "-t", "--name", "kept", "--from", sandbox.busybox(), "--", "sh", "-c", "echo ready; sleep 1000"];
    let mut terminal = open(sandbox, &words);
    terminal.shows("ready");
    terminal.types("\u{10}\u{11}");
    assert_eq!(terminal.ends(), 0, "{}", terminal.shown());
    terminal.shows("Detached");
    drop(terminal);
    // What it says can be seen before the daemon has heard that it runs.
    sandbox.becomes("kept", "running");
    sandbox.exec_sh("kept", "echo here").run().says("here\n");
    sandbox.pando(["kill", "kept"]).ok();
    sandbox.becomes("kept", "absent");
}

fn a_hang_up_ends_the_command(sandbox: &Sandbox) {
    let words = ["run", "-t", "--name", "left", "--from", sandbox.busybox(), "--", "sh", "-c", "echo ready; cat"];
    let terminal = open(sandbox, &words);
    terminal.shows("ready");
    drop(terminal);
    sandbox.becomes("left", "absent");
}

#[track_caller]
fn logged(sandbox: &Sandbox, words: &str) {
    let log = || sandbox.pando(["logs", "own"]).ok();
    eventually(&format!("the log says {words:?}"), || log().contains(words));
}

fn an_own_init_has_a_console(sandbox: &Sandbox) {
    let script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all three
        [ -c /dev/console ] && [ \"$(tty </dev/console)\" = /dev/console ] && echo a console >/dev/console
        exec </dev/null >/dev/null 2>&1
        sh -c 'echo from another >/dev/console'";
    scripted(sandbox, "own", script);
    for words in ["all three\r\n", "a console\r\n", "from another\r\n"] {
        logged(sandbox, words);
    }
    // Nobody holds it open for writing now, and it is there still.
    sandbox.exec_sh("own", "echo much later >/dev/console").ok();
    logged(sandbox, "much later\r\n");
    // More than a terminal holds.
    sandbox.exec_sh("own", "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i + 1)); done >/dev/console").ok();
    logged(sandbox, "line 1999\r\n");
    sandbox.pando(["stop", "own"]).ok();
    assert_eq!(sandbox.state("own"), "stopped");
}

fn a_console_outlives_the_daemon(sandbox: &Sandbox) {
    scripted(sandbox, "own", "echo begun");
    logged(sandbox, "begun");
    process::kill(sandbox.daemon().expect("a daemon"));
    let first = sandbox.first_process("own");
    sandbox.exec_sh("own", "echo said afterwards >/dev/console").ok();
    logged(sandbox, "said afterwards");
    assert_eq!(sandbox.first_process("own"), first);
    sandbox.pando(["restart", "own"]).ok();
    let begun = || sandbox.pando(["logs", "own"]).ok().matches("begun").count();
    eventually("the next life has a console too", || begun() == 2);
}

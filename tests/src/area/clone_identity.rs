//! What makes a clone itself before anybody can reach it, and what a guest does of its own when it is frozen.

use crate::area::clones::{count, counter};
use crate::busybox_root;
use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::world::World;
use rustix::process::Signal;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_identity::hooks_run_in_a_clone_before_anything_else", hooks_run_in_a_clone_before_anything_else),
    Case::new("clone_identity::a_hook_that_fails_leaves_no_clone", a_hook_that_fails_leaves_no_clone),
    Case::new("clone_identity::nobody_enters_a_clone_before_its_hooks_ended", nobody_enters_before_its_hooks_ended),
    Case::new("clone_identity::a_signal_reaches_those_who_handle_it", a_signal_reaches_those_who_handle_it),
    Case::new("clone_identity::who_is_told_to_draws_other_numbers", who_is_told_to_draws_other_numbers).needs(&[
        Need::Root,
        Need::Program("python3", "python3"),
        Need::Program("openssl", "openssl"),
    ]),
    Case::new("clone_identity::hooks_run_around_a_freeze", hooks_run_around_a_freeze),
    Case::new("clone_identity::a_hook_can_refuse_a_freeze", a_hook_can_refuse_a_freeze),
];

/// Puts a hook into the guest `web`.
#[track_caller]
fn hook(sandbox: &Sandbox, path: &str, body: &str) {
    let script =
        format!("mkdir -p /etc/pando/clone.d /etc/pando/freeze.d; cat >/etc/pando/{path}; chmod 755 /etc/pando/{path}");
    let text = format!("#!/bin/sh\n{body}\n");
    sandbox.pando(["exec", "-i", "web", "--", "sh", "-c", &script]).input(text).ok();
}

fn hooks_run_in_a_clone_before_anything_else(sandbox: &Sandbox) {
    counter(sandbox, "web");
    hook(sandbox, "clone.d/20-second", "cat /identity >/copy; cat /count >/seen; sleep 0.3; cat /count >/later");
    hook(sandbox, "clone.d/10-first", "echo $PANDO_CLONE_NAME $(id -u) $(hostname) >/identity");
    hook(sandbox, "clone.d/.hidden", "touch /hidden");
    hook(sandbox, "clone.d/off", "touch /off");
    sandbox.exec_sh("web", "chmod 644 /etc/pando/clone.d/off; ln -s nothing /etc/pando/clone.d/dangling").ok();
    sandbox.pando(["freeze", "web", "warm"]).ok();
    sandbox.pando(["clone", "warm", "-n", "2"]).ok();
    for name in ["warm-1", "warm-2"] {
        assert_eq!(sandbox.exec_sh(name, "cat /copy").ok(), format!("{name} 0 {name}\n"));
        let stood = sandbox.exec_sh(name, "cat /seen /later").ok();
        let lines: Vec<&str> = stood.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1], "it ran while its hooks did: {stood}");
        let first = count(sandbox, name);
        eventually("it counts on", || count(sandbox, name) > first + 5);
        sandbox.exec_sh(name, "[ ! -e /hidden ] && [ ! -e /off ]").ok();
    }
    sandbox.exec_sh("web", "[ ! -e /identity ]").ok();
}

fn a_hook_that_fails_leaves_no_clone(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    hook(sandbox, "clone.d/first", "[ $PANDO_CLONE_NAME != bad ] || { echo no such luck >&2; exit 3; }");
    hook(sandbox, "clone.d/second", "touch /second");
    sandbox.pando(["freeze", "web", "warm", "--wait"]).ok();
    let before = World::of(sandbox);
    let failed = sandbox.pando(["clone", "warm", "bad"]).run().ended_with(125);
    failed.complains_of(&["/etc/pando/clone.d/first", "exit code 3", "no such luck"]);
    assert_eq!(sandbox.state("bad"), "absent");
    before.comes_back(sandbox, "a clone whose hook failed");
    sandbox.pando(["clone", "warm", "good"]).ok();
    sandbox.exec_sh("good", "[ -e /second ]").ok();
}

fn nobody_enters_before_its_hooks_ended(sandbox: &Sandbox) {
    counter(sandbox, "web");
    hook(sandbox, "clone.d/waits", "trap 'exit 0' TERM\nwhile :; do sleep 0.05; done");
    sandbox.pando(["freeze", "web", "warm"]).ok();
    let cloning = sandbox.pando(["clone", "warm", "one"]).start();
    let of_hook = |process: &process::Process| process.words.iter().any(|word| word.ends_with("clone.d/waits"));
    let waiting = || sandbox.processes().into_iter().find(of_hook).map(|process| process.pid);
    eventually("its hook runs", || waiting().is_some());
    sandbox.exec_sh("one", "true").run().ended_with(125).complains_of(&["one", "being made"]);
    // The shell may not have come to its trap.
    let caught = |pid| u64::from_str_radix(&process::status(pid, "SigCgt")?, 16).ok();
    let traps = |pid| caught(pid).is_some_and(|mask| mask & 1 << 14 != 0);
    eventually("it waits for a signal", || waiting().is_some_and(traps));
    process::signal(waiting().expect("it waits"), Signal::TERM);
    cloning.wait().succeeded();
    sandbox.exec_sh("one", "true").ok();
}

fn a_signal_reaches_those_who_handle_it(sandbox: &Sandbox) {
    let script = "trap 'echo told >>/told' USR1; sleep 100000 & echo $! >/other; while :; do sleep 0.05; : >/up; done";
    sandbox.guest("web", &["--", "sh", "-c", script]);
    eventually("it is up", || sandbox.exec_sh("web", "[ -e /up ]").run().code() == 0);
    sandbox.pando(["freeze", "web", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one", "--signal", "USR1"]).ok();
    eventually("it was told", || sandbox.exec_sh("one", "cat /told").run().out() == "told\n");
    // To who does not handle it the signal would have been the end.
    sandbox.exec_sh("one", "kill -0 $(cat /other)").ok();
    sandbox.exec_sh("web", "[ ! -e /told ]").ok();
    let refused = sandbox.pando(["clone", "warm", "two", "--signal", "KILL"]).run().ended_with(125);
    refused.complains_of(&["no program can handle", "KILL"]);
    assert_eq!(sandbox.state("two"), "absent");
}

/// Draws from a generator in its memory, from that of OpenSSL, and from the kernel; and gives TLS sessions their
/// numbers. When it is told to it seeds all that anew.
const LOTTERY: &str = r#"
import os, random, select, signal, socket, ssl, uuid
def fresh():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET
    context.load_cert_chain("/srv/cert", "/srv/key")
    return context
def told(*_):
    global context
    ssl.RAND_add(os.urandom(48), 48.0)
    random.seed()
    context = fresh()
signal.signal(signal.SIGUSR1, told)
random.seed(7)
context = fresh()
plain, secure = [socket.create_server(("127.0.0.1", port)) for port in (7000, 7001)]
ssl.RAND_bytes(16)
open("/srv/pid", "w").write(str(os.getpid()))
while True:
    for one in select.select([plain, secure], [], [])[0]:
        client, _ = one.accept()
        if one is plain:
            drawn = [random.random(), uuid.UUID(bytes=ssl.RAND_bytes(16)), os.urandom(16).hex()]
            client.sendall(" ".join(map(str, drawn)).encode())
            client.close()
        else:
            context.wrap_socket(client, server_side=True).close()
"#;

/// What a server of them gives somebody first: three numbers, and that of a session.
const DRAW: &str = r#"
import socket, ssl
said = socket.create_connection(("127.0.0.1", 7000)).recv(1000).decode()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
print(said, context.wrap_socket(socket.create_connection(("127.0.0.1", 7001))).session.id.hex())
"#;

fn who_is_told_to_draws_other_numbers(sandbox: &Sandbox) {
    let tree = sandbox.scratch().join("tree");
    busybox_root::with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    let own = |name: &str| tree.join("srv").join(name).into_os_string();
    let made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"];
    let line = Line::new("openssl").args(made).args(["-keyout"]).args([own("key")]).args(["-out"]).args([own("cert")]);
    line.ok();
    let create = ["create", "web", "--from", &tree.to_string_lossy(), "--start", "--", "/usr/bin/python3", "-c"];
    sandbox.pando(create).args([LOTTERY]).ok();
    hook(sandbox, "clone.d/reseed", "case $PANDO_CLONE_NAME in told*) kill -USR1 $(cat /srv/pid) ;; esac");
    eventually("it serves", || sandbox.exec_sh("web", "[ -s /srv/pid ]").run().code() == 0);
    sandbox.pando(["freeze", "web", "warm"]).ok();
    let drawn = |name: &str| -> Vec<String> {
        sandbox.pando(["clone", "warm", name]).ok();
        let said = sandbox.pando(["exec", name, "--", "/usr/bin/python3", "-c", DRAW]).ok();
        let drawn: Vec<String> = said.split_whitespace().map(str::to_owned).collect();
        assert_eq!(drawn.len(), 4, "{said}");
        drawn
    };
    let told = ["told-1", "told-2", "told-3"].map(drawn);
    for kind in 0..4 {
        let mut numbers: Vec<&String> = told.iter().map(|one| &one[kind]).collect();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), told.len(), "kind {kind}: {told:?}");
    }
    // Those that nobody told differ in nothing but what the kernel gives them.
    let [one, other] = ["plain-1", "plain-2"].map(drawn);
    assert_eq!([0, 1, 2].map(|kind| one[kind] == other[kind]), [true, true, false], "{one:?} {other:?}");
}

fn hooks_run_around_a_freeze(sandbox: &Sandbox) {
    counter(sandbox, "web");
    hook(sandbox, "freeze.d/tells", "echo $1 >>/told");
    sandbox.pando(["freeze", "web", "warm"]).ok();
    assert_eq!(sandbox.exec_sh("web", "cat /told").ok(), "before\nafter\n");
    sandbox.pando(["clone", "warm", "one"]).ok();
    assert_eq!(sandbox.exec_sh("one", "cat /told").ok(), "before\n");
}

fn a_hook_can_refuse_a_freeze(sandbox: &Sandbox) {
    counter(sandbox, "web");
    hook(sandbox, "freeze.d/10-first", "echo first $1 >>/told");
    hook(sandbox, "freeze.d/20-refuses", "echo $1 >>/told; [ $1 = after ] || { echo a backup is running; exit 7; }");
    let refused = sandbox.pando(["freeze", "web"]).run().ended_with(125);
    refused.complains_of(&["/etc/pando/freeze.d/20-refuses before", "exit code 7", "a backup is running"]);
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "");
    assert_eq!(sandbox.state("web"), "running");
    let seen = count(sandbox, "web");
    eventually("it counts on", || count(sandbox, "web") > seen + 5);
    assert_eq!(sandbox.exec_sh("web", "cat /told").ok(), "first before\nbefore\nfirst after\nafter\n");
}

//! TCP connections of a guest with itself: each clone has its own, and goes on with them.

use crate::busybox_root::with_python;
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};

const PYTHON: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

pub(crate) const CASES: &[Case] = &[
    Case::new("inner_connections::a_clone_has_them_by_ipv4", |sandbox| kept(sandbox, "127.0.0.1", "0.0.0.0"))
        .needs(PYTHON),
    Case::new("inner_connections::a_clone_has_them_by_ipv6", |sandbox| kept(sandbox, "::1", "::")).needs(PYTHON),
    Case::new("inner_connections::a_clone_has_them_by_both", |sandbox| kept(sandbox, "127.0.0.1", "::")).needs(PYTHON),
    Case::new("inner_connections::a_clone_has_those_of_a_network_namespace_of_its_own", apart).needs(PYTHON),
    Case::new("inner_connections::an_imported_image_has_them", imported).needs(PYTHON),
    Case::new("inner_connections::more_wait_than_their_listener_lets_wait_by_now", longer_queue).needs(PYTHON),
];

const ACTOR: &str = include_str!("../../fixtures/wired.py");

/// Those that a clone does not have where the kernel does not tell what waits at a listener.
const LOST: &str = "one that waits to be accepted and has sent ";

fn tree(sandbox: &Sandbox) -> PathBuf {
    let tree = sandbox.scratch().join("tree");
    with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    std::fs::write(tree.join("root/wired.py"), ACTOR).expect("a file");
    tree
}

pub(crate) fn guest(sandbox: &Sandbox, words: &[&str], connection: &[&str]) {
    let tree = tree(sandbox);
    let command = ["--start", "--", "/usr/bin/python3", "-E", "-s", "/root/wired.py"];
    sandbox
        .pando(["create", "source", "--from", &tree.to_string_lossy()])
        .args(words)
        .args(command)
        .args(connection)
        .limit(120)
        .ok();
    eventually("it has its connections", || sandbox.exec_sh("source", "test -s /tmp/up").run().code() == 0);
}

/// Has a guest look at its connections, and compares.
#[track_caller]
pub(crate) fn all_are_right(sandbox: &Sandbox, name: &str, lost: bool) {
    sandbox.exec_sh(name, "touch /tmp/ask").ok();
    eventually("it has looked", || sandbox.exec_sh(name, "test -e /tmp/said").run().code() == 0);
    let text = sandbox.exec_sh(name, "cat /tmp/said").ok();
    assert!(text.lines().count() >= 12, "{text}");
    for line in text.lines() {
        let words: Vec<_> = line.split('\t').collect();
        let should = if lost && words[0].starts_with(LOST) { "timed out" } else { words[1] };
        assert_eq!(words[2], should, "in {name}: {line}");
    }
}

/// Whether this machine's kernel keeps from everybody what waits at a listener.
pub(crate) fn is_lost() -> bool {
    pando_freeze::AcceptQueues::load().is_err()
}

/// Whether a freeze warns of those, and of nothing else.
#[track_caller]
fn warns(sandbox: &Sandbox, words: &[&str], lost: bool) {
    const WARNING: &str = "connections by TCP from the guest to itself that no server has accepted";
    let ended = sandbox.pando(["freeze", "source"]).args(words).run().succeeded();
    assert_eq!(ended.err().contains(WARNING), lost, "{}", ended.err());
}

fn kept(sandbox: &Sandbox, address: &str, server: &str) {
    guest(sandbox, &[], &[address, server]);
    let lost = is_lost();
    // What waits is read where it lies: the source has all of it as it was, however often.
    for _ in 0..if lost { 0 } else { 20 } {
        warns(sandbox, &["again", "--memory"], lost);
        sandbox.pando(["image", "rm", "again"]).ok();
    }
    warns(sandbox, &["warm", "--wait"], lost);
    sandbox.pando(["clone", "warm", "-n", "2"]).ok();
    warns(sandbox, &["last", "--stop"], lost);
    for name in ["warm-1", "warm-2"] {
        all_are_right(sandbox, name, lost);
    }
    // Out of the files of an image, as itself.
    sandbox.end_daemon();
    sandbox.pando(["restore", "last"]).ok();
    all_are_right(sandbox, "source", lost);
    sandbox.pando(["clone", "warm", "again"]).ok();
    all_are_right(sandbox, "again", lost);
}

fn apart(sandbox: &Sandbox) {
    guest(sandbox, &["--profile", "system"], &["127.0.0.1", "0.0.0.0", "apart"]);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    all_are_right(sandbox, "one", is_lost());
    all_are_right(sandbox, "source", false);
}

/// Connections that are made while many may wait, and then no more than one may. Tells how many there are when asked.
const QUEUE: &str = r#"
import os, socket, time
listener = socket.socket()
listener.bind(("127.0.0.1", 4000))
listener.listen(50)
waiting = [socket.create_connection(("127.0.0.1", 4000)) for _ in range(30)]
listener.listen(1)
open("/tmp/up", "w").write("up")
while not os.path.exists("/tmp/ask"):
    time.sleep(0.05)
listener.settimeout(1)
accepted = []
try:
    while True:
        accepted.append(listener.accept())
except socket.timeout:
    pass
open("/tmp/new", "w").write(str(len(accepted)))
os.rename("/tmp/new", "/tmp/said")
while True:
    time.sleep(1)
"#;

/// To connect them one by one, and wait for each, is an hour in which the clone can be neither stopped nor removed.
fn longer_queue(sandbox: &Sandbox) {
    let tree = tree(sandbox).to_string_lossy().into_owned();
    let command = ["--profile", "strict", "--start", "--", "/usr/bin/python3", "-E", "-s", "-c", QUEUE];
    sandbox.pando(["create", "source", "--from", &tree, "--net", "none"]).args(command).limit(120).ok();
    eventually("they wait", || sandbox.exec_sh("source", "test -s /tmp/up").run().code() == 0);
    sandbox.pando(["freeze", "source", "warm", "--wait"]).ok();
    sandbox.pando(["clone", "warm", "one"]).limit(30).ok();
    sandbox.exec_sh("one", "touch /tmp/ask").ok();
    eventually("it has accepted them", || sandbox.exec_sh("one", "test -e /tmp/said").run().code() == 0);
    assert_eq!(sandbox.exec_sh("one", "cat /tmp/said").ok(), "30");
    sandbox.pando(["rm", "--force", "one"]).ok();
}

fn imported(sandbox: &Sandbox) {
    guest(sandbox, &[], &["127.0.0.1", "127.0.0.1"]);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    all_are_right(sandbox, "source", false);
    let export = sandbox.scratch().join("export").to_string_lossy().into_owned();
    sandbox.pando(["image", "export", "warm", &export]).ok();
    sandbox.pando(["image", "rm", "warm"]).ok();
    sandbox.pando(["image", "import", &export]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    all_are_right(sandbox, "one", is_lost());
}

//! Programs that are asked in a guest, and again in a clone of it and where it is restored, what the kernel answers
//! them: that is the same.

use crate::busybox_root::with_python;
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const PYTHON: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

pub(crate) const CASES: &[Case] =
    &[Case::new("clone_answers::who_is_at_the_other_end_of_a_unix_socket", who_is_at_the_other_end).needs(PYTHON)];

fn tree(sandbox: &Sandbox) -> PathBuf {
    let tree = sandbox.scratch().join("tree");
    with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    tree
}

/// Starts a guest that runs a program.
fn guest(sandbox: &Sandbox, tree: &Path, name: &str, program: &str) {
    let whole = [include_str!("../../actors/answers.py"), program].concat();
    std::fs::write(tree.join(format!("root/{name}.py")), whole).expect("a file");
    let program = format!("/root/{name}.py");
    let command = ["--start", "--", "/usr/bin/python3", "-E", "-s", &program];
    sandbox.pando(["create", name, "--from", &tree.to_string_lossy()]).args(command).limit(120).ok();
    eventually("it is up", || sandbox.exec_sh(name, "test -s /tmp/up").run().code() == 0);
}

/// What a guest's program is answered, when asked by a word that it was not asked by before.
#[track_caller]
fn said(sandbox: &Sandbox, name: &str, word: &str) -> Value {
    sandbox.exec_sh(name, &format!("touch /tmp/ask.{word}")).ok();
    eventually("it has answered", || sandbox.exec_sh(name, &format!("test -e /tmp/said.{word}")).run().code() == 0);
    serde_json::from_str(&sandbox.exec_sh(name, &format!("cat /tmp/said.{word}")).ok()).expect("an answer")
}

/// What is other than it was, by name.
fn other(is: &Value, was: &Value) -> Vec<String> {
    let (is, was) = (is.as_object().expect("answers"), was.as_object().expect("answers"));
    let differs = |(name, value): (&String, &Value)| {
        (is.get(name) != Some(value)).then(|| format!("{name}: {:?} instead of {value}", is.get(name)))
    };
    was.iter().filter_map(differs).collect()
}

/// What a program is answered in a clone, in the guest that was frozen, and, from the disk, in that again.
fn answers(sandbox: &Sandbox, program: &str) -> [Value; 3] {
    let tree = tree(sandbox);
    guest(sandbox, &tree, "source", program);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["freeze", "source", "cold", "--stop"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    let in_clone = said(sandbox, "one", "clone");
    sandbox.end_daemon();
    sandbox.pando(["restore", "cold"]).ok();
    let restored = said(sandbox, "source", "restored");
    guest(sandbox, &tree, "never-frozen", program);
    [in_clone, restored, said(sandbox, "never-frozen", "as-it-is")]
}

fn who_is_at_the_other_end(sandbox: &Sandbox) {
    let [in_clone, restored, was] = answers(sandbox, include_str!("../../actors/peer_credentials.py"));
    assert_eq!(was["accepted 1000 1000"], json!([1000, 1000, [7, 9]]), "{was}");
    assert_eq!(was["client after"][0], 33, "{was}");
    assert_eq!(other(&in_clone, &was), Vec::<String>::new(), "the clone is another, and nobody says so");
    assert_eq!(other(&restored, &was), Vec::<String>::new(), "the restored guest is another, and nobody says so");
}

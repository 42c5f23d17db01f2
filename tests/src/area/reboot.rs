//! What outlives a reboot: cases in two halves. The first runs in one boot of the emulated machine, the second in the
//! next, and a disk that both have joins them.

use crate::busybox_root;
use crate::case::{Case, Tag, skip};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("reboot::a_server_is_frozen_and_exported", a_server_is_frozen_and_exported)
        .needs(NEEDS)
        .tags(&[Tag::BeforeReboot]),
    Case::new("reboot::imported_its_clone_serves", imported_its_clone_serves).needs(NEEDS).tags(&[Tag::AfterReboot]),
];

const NEEDS: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

/// Serves over HTTP a word that is nowhere but in its memory, and how often it did.
const SERVER: &str = r#"
import os, socket
word = os.urandom(16).hex()
served = 0
server = socket.create_server(("127.0.0.1", 8000))
while True:
    client, _ = server.accept()
    client.recv(4096)
    served += 1
    body = f"{word} {served}"
    client.sendall(f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    client.close()
"#;

/// Where both halves find what the first leaves.
fn lasting() -> PathBuf {
    match std::env::var_os("PANDO_TEST_LASTING") {
        Some(path) => path.into(),
        None => skip("it needs a directory that outlives the boot, named by PANDO_TEST_LASTING"),
    }
}

/// Which boot this is.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("every Linux tells its boot")
}

/// What the server in a guest answers: its word, and how often it served.
fn ask(sandbox: &Sandbox, guest: &str) -> Option<(String, u32)> {
    let ended = sandbox.pando(["exec", guest, "--", "wget", "-q", "-O", "-", "http://127.0.0.1:8000/"]).run();
    let answer = ended.out();
    let (word, served) = answer.split_once(' ')?;
    Some((word.to_owned(), served.trim().parse().ok()?))
}

fn a_server_is_frozen_and_exported(sandbox: &Sandbox) {
    let lasting = lasting();
    let tree = sandbox.scratch().join("tree");
    busybox_root::with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    let options = ["--from", &tree.to_string_lossy(), "--start", "--", "/usr/bin/python3", "-c", SERVER];
    sandbox.pando(["create", "web"]).args(options).limit(120).ok();
    eventually("it serves", || ask(sandbox, "web").is_some());
    let (word, served) = ask(sandbox, "web").expect("it serves");
    assert!(word.len() == 32 && served >= 2, "{word} {served}");
    sandbox.pando(["freeze", "web", "warm", "--stop"]).limit(120).ok();
    sandbox.pando(["image", "export", "warm"]).args([lasting.join("warm.pando")]).limit(120).ok();
    std::fs::write(lasting.join("told"), format!("{}{word} {served}", boot())).expect("the disk takes a file");
}

fn imported_its_clone_serves(sandbox: &Sandbox) {
    let lasting = lasting();
    let told = std::fs::read_to_string(lasting.join("told")).expect("the first half came to its end");
    let (before, told) = told.split_once('\n').expect("two lines");
    assert_ne!(boot().trim(), before, "this is the boot in which it was frozen");
    let (word, served) = told.split_once(' ').expect("a word and a number");
    let served: u32 = served.parse().expect("a number");
    sandbox.pando(["image", "import"]).args([lasting.join("warm.pando")]).limit(120).run().succeeded().says("warm\n");
    for clone in ["one", "two"] {
        sandbox.pando(["clone", "warm", clone]).limit(120).ok();
        // Each goes on from what it held when it was frozen.
        assert_eq!(ask(sandbox, clone), Some((word.to_owned(), served + 1)));
    }
    assert_eq!(ask(sandbox, "one"), Some((word.to_owned(), served + 2)));
}

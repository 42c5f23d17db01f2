//! How a program finds out that its memory is a copy, and whose random numbers are the same in all clones.

use crate::busybox_root::with_python;
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::collections::BTreeSet;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("generation::each_guest_and_clone_has_its_own", each_has_its_own),
    Case::new("generation::a_program_in_a_clone_learns_that_it_is_one", a_program_learns_it)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("generation::of_others_than_openssl_nothing_is_said", nothing_is_said),
];

const ACTOR: &str = include_str!("../../fixtures/generation.py");
const CLONES: usize = 10;

#[track_caller]
fn generation(sandbox: &Sandbox, name: &str) -> String {
    let text = sandbox.exec_sh(name, "cat /dev/pando-generation").ok();
    let is_one = |line: &&str| line.len() == 32 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.strip_suffix('\n').filter(is_one).unwrap_or_else(|| panic!("this is no generation: {text:?}")).to_owned()
}

fn each_has_its_own(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "1000000"]);
    sandbox.guest("other", &["--", "sleep", "1000000"]);
    let first = generation(sandbox, "web");
    sandbox.pando(["freeze", "web", "warm"]).ok();
    assert_eq!(generation(sandbox, "web"), first, "it runs on");
    sandbox.pando(["clone", "warm", "-n", "3"]).ok();
    // Nobody can change it but the guest's root, and of that only its own.
    sandbox.exec_sh("warm-1", "echo >/dev/pando-generation").ok();
    sandbox.pando(["freeze", "warm-2", "again", "--stop"]).ok();
    let second = generation(sandbox, "warm-3");
    sandbox.pando(["restore", "again"]).ok();
    let all = [first, second, generation(sandbox, "other"), generation(sandbox, "warm-2")];
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
}

fn a_program_learns_it(sandbox: &Sandbox) {
    let tree = sandbox.scratch().join("tree");
    with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    std::fs::write(tree.join("root/generation.py"), ACTOR).expect("a file");
    let command = ["--start", "--", "/usr/bin/python3", "-E", "-s", "/root/generation.py"];
    sandbox.pando(["create", "web", "--from", &tree.to_string_lossy()]).args(command).limit(120).ok();
    eventually("it watches", || sandbox.exec_sh("web", "test -s /tmp/up").run().code() == 0);
    let frozen = sandbox.pando(["freeze", "web", "warm"]).run();
    assert_eq!(frozen.code(), 0, "{}", frozen.err());
    let warned = frozen.err();
    assert!(
        ["pando: warning: warm: process 2 (python3", "OpenSSL", "libcrypto.so", "/dev/pando-generation"]
            .iter()
            .all(|word| warned.contains(word)),
        "{warned}"
    );
    sandbox.pando(["clone", "warm", "-n", &CLONES.to_string()]).ok();
    let said = |name: &str| -> Vec<String> {
        sandbox.exec_sh(name, "touch /tmp/ask").ok();
        eventually("it has said its numbers", || sandbox.exec_sh(name, "test -s /tmp/said").run().code() == 0);
        sandbox.exec_sh(name, "cat /tmp/said").ok().split_ascii_whitespace().map(str::to_owned).collect()
    };
    let source = said("web");
    assert_eq!(source[1], "0", "in the guest that runs on nothing has changed");
    let clones: Vec<_> = (1..=CLONES).map(|number| said(&format!("warm-{number}"))).collect();
    for (place, what) in [(0, "generation"), (2, "secrets"), (3, "uuid"), (4, "urandom"), (5, "OpenSSL, seeded anew")] {
        let all: BTreeSet<_> = clones.iter().chain([&source]).map(|said| &said[place]).collect();
        assert_eq!(all.len(), CLONES + 1, "{what}: {all:?}");
    }
    assert!(clones.iter().all(|said| said[1] == "1"), "each is told once: {clones:?}");
}

fn nothing_is_said(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "1000000"]);
    let frozen = sandbox.pando(["freeze", "web", "warm"]).run();
    assert_eq!((frozen.code(), frozen.err().as_str()), (0, ""));
}

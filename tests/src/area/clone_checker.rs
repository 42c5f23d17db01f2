//! Many kinds of kernel objects and attributes in one guest, each of which says after a freeze, in the source and in a
//! clone, what it should be and what it is; and guests with some of them, and with some that cannot be frozen, of which
//! none is lost by `--stop`.

use crate::busybox_root::with_python;
use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};

const PYTHON: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_checker::no_kind_is_silently_other", no_kind_is_silently_other).needs(PYTHON),
    Case::new("clone_checker::ten_thousand_descriptors_come_along_or_are_refused", ten_thousand_descriptors)
        .needs(PYTHON),
    Case::new("clone_checker::no_guest_is_lost", |sandbox| no_guest_is_lost(sandbox, 10)).needs(PYTHON),
    Case::new("clone_checker::none_of_200_guests_is_lost", |sandbox| no_guest_is_lost(sandbox, 200))
        .needs(PYTHON)
        .tags(&[Tag::Slow]),
];

const KINDS: &str = include_str!("../../fixtures/kinds.py");

/// The fewest kinds that a machine has.
const FEWEST: usize = 150;

/// What docs/clones.md says is another thing in a clone: its beginning, and why.
const LOSSES: [(&str, &str); 2] = [
    ("status THP_enabled", "huge pages would undo the sharing"),
    ("memory wiped on fork", "a clone begins without it, as a fork does"),
];

/// A kind in a guest: its name, what it should be, what it is.
type Kind = (String, String, String);

fn tree(sandbox: &Sandbox) -> PathBuf {
    let tree = sandbox.scratch().join("tree");
    with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    std::fs::write(tree.join("root/kinds.py"), KINDS).expect("a file");
    tree
}

fn guest(sandbox: &Sandbox, tree: &Path, name: &str, words: &[&str]) {
    let command = ["--start", "--", "/usr/bin/python3", "-E", "-s", "/root/kinds.py"];
    sandbox.pando(["create", name, "--from", &tree.to_string_lossy()]).args(command).args(words).limit(120).ok();
    eventually("it has all of them", || sandbox.exec_sh(name, "test -s /tmp/up").run().code() == 0);
}

/// What a guest says of its kinds.
#[track_caller]
fn said(sandbox: &Sandbox, name: &str) -> Vec<Kind> {
    sandbox.exec_sh(name, "rm -f /tmp/said; touch /tmp/ask").ok();
    eventually("it has looked", || sandbox.exec_sh(name, "test -e /tmp/said").run().code() == 0);
    let text = sandbox.exec_sh(name, "cat /tmp/said").ok();
    let line = |line: &str| {
        let mut words = line.splitn(3, '\t').map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?))
    };
    text.lines().filter_map(line).collect()
}

/// Those that are not what they should be.
fn other(kinds: &[Kind]) -> Vec<&Kind> {
    kinds.iter().filter(|(_, should, is)| should != is).collect()
}

fn is_lost(kind: &Kind) -> bool {
    LOSSES.iter().any(|(name, _)| kind.0 == *name)
}

fn no_kind_is_silently_other(sandbox: &Sandbox) {
    let (_, seed) = Dice::of_this_run();
    let tree = tree(sandbox);
    guest(sandbox, &tree, "source", &[&seed.to_string()]);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    let (source, clone) = (said(sandbox, "source"), said(sandbox, "one"));
    println!("     {} kinds; not here: {}", source.len(), sandbox.exec_sh("source", "cat /tmp/lacking").ok().trim());
    assert!(source.len() >= FEWEST && source.len() == clone.len(), "{} and {}", source.len(), clone.len());
    assert_eq!(other(&source), Vec::<&Kind>::new(), "the freeze has changed the source");
    let silently: Vec<_> = other(&clone).into_iter().filter(|kind| !is_lost(kind)).collect();
    assert_eq!(silently, Vec::<&Kind>::new(), "the clone is another, and nobody says so");
    // From the disk as well, as itself.
    sandbox.pando(["freeze", "source", "cold", "--stop"]).ok();
    sandbox.end_daemon();
    sandbox.pando(["restore", "cold"]).ok();
    let restored = said(sandbox, "source");
    let silently: Vec<_> = other(&restored).into_iter().filter(|kind| !is_lost(kind)).collect();
    assert_eq!(silently, Vec::<&Kind>::new(), "the restored guest is another, and nobody says so");
}

/// Whoever makes a clone has all of them open beside those of its processes: where the daemon may not have as many,
/// that is said before anybody is stopped.
fn ten_thousand_descriptors(sandbox: &Sandbox) {
    const MANY: &str = "import os, resource, time\nmost = resource.getrlimit(7)[1]\nresource.setrlimit(7, (most, most))\n\
                        kept = [os.eventfd(number & 7) for number in range(10000)]\nopen('/tmp/up', 'w').write('up')\ntime.sleep(1e6)";
    let tree = tree(sandbox);
    let create = ["create", "many", "--from", &tree.to_string_lossy(), "--start", "--", "/usr/bin/python3", "-c", MANY];
    sandbox.pando(create).limit(120).ok();
    eventually("it has all of them", || sandbox.exec_sh("many", "test -s /tmp/up").run().code() == 0);
    let open = |name: &str| sandbox.exec_sh(name, "ls /proc/2/fd | wc -l").ok().trim().parse::<u32>().unwrap_or(0);
    let all = open("many");
    let ended = sandbox.pando(["freeze", "many"]).run();
    if ended.code() != 0 {
        ended.ended_with(125).complains_of(&[
            "cannot be frozen: process 2",
            "too many descriptors",
            "CAP_SYS_RESOURCE",
        ]);
        assert_eq!(open("many"), all);
        return;
    }
    sandbox.pando(["clone", "many", "one"]).ok();
    assert!(all > 10_000 && open("one") == all);
}

/// Each is restored, or refused before it is ended.
fn no_guest_is_lost(sandbox: &Sandbox, guests: usize) {
    let (mut dice, _) = Dice::of_this_run();
    let tree = tree(sandbox);
    let mut refused = 0;
    for number in 0..guests {
        let seed = dice.throw(1 << 40).to_string();
        guest(sandbox, &tree, "odd", &[&seed, "some"]);
        let ended = sandbox.pando(["freeze", "odd", "image", "--stop"]).run();
        match ended.code() {
            0 => {
                sandbox.pando(["restore", "image"]).ok();
                sandbox.pando(["image", "rm", "image"]).ok();
            }
            125 if ended.err().contains("cannot be frozen: process ") => refused += 1,
            code => panic!("guest {number} of seed {seed}: {code}: {}", ended.err()),
        }
        let kinds = said(sandbox, "odd");
        let silently: Vec<_> = other(&kinds).into_iter().filter(|kind| !is_lost(kind)).collect();
        assert_eq!(silently, Vec::<&Kind>::new(), "guest {number} of seed {seed}");
        sandbox.pando(["rm", "--force", "odd"]).ok();
    }
    println!("     {refused} of {guests} were refused");
    assert!(refused < guests, "some of them can be frozen");
}

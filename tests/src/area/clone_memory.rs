//! Memory that processes share since a fork is kept once: on the disk, in what holds the image, and in clones.

use super::freeze::{NEEDS, again_and_again, plays};
use super::limits::stats;
use super::unharmed::{guest_with, processes_of, proportion};
use crate::busybox_root::with_python;
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const ACTOR: &str = include_str!("../../fixtures/prefork.py");

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_memory::what_forks_share_is_each_ones_own_once_written", |sandbox| plays(sandbox, ACTOR))
        .needs(NEEDS),
    Case::new("clone_memory::what_forks_share_in_clones_of_clones", |sandbox| {
        again_and_again(sandbox, ACTOR, |_| ());
    })
    .needs(NEEDS),
    Case::new("clone_memory::what_forks_share_is_there_once", it_is_there_once),
    Case::new("clone_memory::what_was_asked_of_mappings_holds", mappings)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("clone_memory::a_guest_that_fits_by_sharing_fits_in_clones", it_fits),
];

/// Of each mapping the kernel tells the same in a clone: rights, advice, what is locked, what memory is reserved for.
fn mappings(sandbox: &Sandbox) {
    let tree = sandbox.scratch().join("tree");
    with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    std::fs::write(tree.join("root/mappings.py"), include_str!("../../fixtures/mappings.py")).expect("a file");
    let command = ["--start", "--", "/usr/bin/python3", "-E", "-s", "/root/mappings.py"];
    sandbox.pando(["create", "source", "--from", &tree.to_string_lossy()]).args(command).limit(120).ok();
    eventually("it has them", || sandbox.exec_sh("source", "test -s /tmp/up").run().code() == 0);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    let said = |name: &str| -> Vec<String> {
        sandbox.exec_sh(name, "touch /tmp/ask").ok();
        eventually("it has looked", || sandbox.exec_sh(name, "test -s /tmp/said").run().code() == 0);
        sandbox.exec_sh(name, "cat /tmp/said").ok().lines().map(str::to_owned).collect()
    };
    let (source, clone) = (said("source"), said("one"));
    assert!(source.len() > 70, "{source:#?}");
    let other: Vec<_> = source.iter().zip(&clone).filter(|(source, clone)| source != clone).collect();
    assert!(other.is_empty() && source.len() == clone.len(), "{other:#?}");
}

const WORKERS: usize = 8;
/// The guest's own first process, the server, and its workers.
const PROCESSES: usize = WORKERS + 2;

/// A server in a guest that has filled so much memory and then forked its workers, who only read it.
fn server(sandbox: &Sandbox, mebibytes: u64, options: &[&str]) {
    guest_with(sandbox, options, &["prefork", &mebibytes.to_string(), &WORKERS.to_string()]);
    eventually("its workers are there", || {
        let pids = processes_of(sandbox, "source");
        pids.len() == PROCESSES && proportion(&pids) > mebibytes << 20
    });
}

/// What holds the only image.
fn holder(sandbox: &Sandbox) -> i32 {
    let daemon = sandbox.daemon().expect("it runs");
    let is_holder = |pid: &i32| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        program.to_string_lossy().contains("pando-holder") && process::parent(*pid) == Some(daemon)
    };
    let holders: Vec<_> = process::all().into_iter().map(|process| process.pid).filter(is_holder).collect();
    assert_eq!(holders.len(), 1, "{holders:?}");
    holders[0]
}

fn resident(pid: i32) -> u64 {
    let text = process::status(pid, "VmRSS").unwrap_or_default();
    text.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn it_is_there_once(sandbox: &Sandbox) {
    const LOADED: u64 = 64 << 20;
    server(sandbox, 64, &[]);
    sandbox.pando(["freeze", "source", "warm", "--wait"]).ok();
    let kept = sandbox.places().images().join("warm/memory").metadata().expect("it is on the disk");
    let held = resident(holder(sandbox));
    let names = ["one", "two", "three"];
    for name in names {
        sandbox.pando(["clone", "warm", name]).ok();
    }
    let pids: Vec<i32> = names.iter().flat_map(|name| processes_of(sandbox, name)).collect();
    assert_eq!(pids.len(), names.len() * PROCESSES);
    let cloned = proportion(&pids);
    let figures = format!("on the disk {}, held {held}, in clones {cloned}", kept.len());
    let once = |bytes: u64| (LOADED / 2..LOADED * 3 / 2).contains(&bytes);
    assert!(once(kept.len()) && kept.blocks() * 512 < LOADED * 3 / 2 && once(held) && once(cloned), "{figures}");
    // Made anew from the disk it is held as before.
    sandbox.end_daemon();
    sandbox.pando(["clone", "warm", "four"]).ok();
    let held = resident(holder(sandbox));
    let cloned = proportion(&processes_of(sandbox, "four"));
    assert!(once(held) && cloned < LOADED * 3 / 2, "held {held}, in a clone {cloned}");
}

/// More than half of the guest's limit is shared: with a copy a process it would not fit.
fn it_fits(sandbox: &Sandbox) {
    server(sandbox, 250, &["--memory", "300M", "--swap", "0"]);
    sandbox.pando(["freeze", "source", "warm", "--memory"]).limit(120).ok();
    sandbox.pando(["clone", "warm", "one"]).limit(120).ok();
    for name in ["source", "one"] {
        // Another process has to have room, too.
        sandbox.exec_sh(name, "head -c 16000000 /dev/zero | tail -c 16000000 | wc -c").run().says("16000000\n");
        assert_eq!(processes_of(sandbox, name).len(), PROCESSES, "{name}");
        assert_eq!(stats(sandbox, name)["now"]["oom_kills"], 0, "{name}");
    }
}

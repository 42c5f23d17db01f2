//! A process of a clone that ends while the clone is made, whatever ends it: that is noticed, and said, and nothing of
//! the clone stays.

use super::freeze::{NEEDS, all_are_right, clone_into, frozen, stage};
use super::tx_filesystems::Small;
use crate::case::Case;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::spaces::Space;
use pando_freeze::{CloneError, Frozen, Ready, Target};
use rustix::process::Signal;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_losses::one_that_is_killed_is_named", one_that_is_killed_is_named).needs(NEEDS),
    Case::new("clone_losses::want_of_memory_is_noticed", |sandbox| want_of_memory_is_noticed(sandbox, HOARDER))
        .needs(NEEDS),
    Case::new("clone_losses::and_of_memory_of_system_v", |sandbox| want_of_memory_is_noticed(sandbox, KEYED_HOARDER))
        .needs(NEEDS),
];

/// How often a clone is made until somebody is stopped before it stands.
const TRIES: usize = 40;

fn make(frozen: &Frozen, space: &Space) -> Result<Ready, CloneError> {
    frozen.clone_into(&Target {
        init: space.init(),
        held: None,
        cgroup: None,
        groups: &[],
        supplied: &[],
        handoff: None,
        scopes: 0,
    })
}

/// The children of a process, those that have ended too.
fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Whether nobody lives in a space but its first process.
fn is_empty(space: &Space) -> bool {
    !children(space.init()).into_iter().any(process::is_alive)
}

/// Of a tree of sixty one is stopped, so that it never comes to the gate, and is killed when all the others wait there
/// for it.
fn one_that_is_killed_is_named(sandbox: &Sandbox) {
    let stage = stage(sandbox);
    let source = Space::new();
    let _actor = source.play(include_str!("../../fixtures/forest.py"), &stage);
    let frozen = frozen(&source).unwrap_or_else(|error| panic!("{error}"));
    let mut said = None;
    for _ in 0..TRIES {
        let space = Space::new();
        said = lose_one(&frozen, &space).err();
        if said.is_some() {
            eventually("nothing of it is left", || is_empty(&space));
            break;
        }
    }
    let said = said.expect("now and then one is stopped before it stands").to_string();
    assert!(
        said.starts_with("process ") && said.ends_with(" of the clone was ended by SIGKILL before it ran"),
        "{said}"
    );
    let clone = Space::new();
    clone_into(&frozen, &clone);
    all_are_right(&stage, &[&source, &clone]);
}

/// Makes a clone, and stops the first process of it that is seen; later kills it, unless the clone stands.
fn lose_one(frozen: &Frozen, space: &Space) -> Result<(), CloneError> {
    std::thread::scope(|scope| {
        let making = scope.spawn(|| make(frozen, space));
        let mut victim = None;
        while victim.is_none() && !making.is_finished() {
            victim = children(space.init()).first().copied();
        }
        if let Some(victim) = victim {
            process::signal(victim, Signal::STOP);
            // As long as it takes to be looked after, many times over.
            for _ in 0..30 {
                if making.is_finished() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            process::kill(victim);
        }
        making.join().expect("it does not panic").map(drop)
    })
}

/// More memory than the clone may have, which is filled for it before it runs.
const HOARDER: &str = "
import mmap
memory = mmap.mmap(-1, 96 << 20)
for page in range(0, len(memory), 4096):
    memory[page] = 7
stand(lambda: None)
";

const KEYED_HOARDER: &str = "
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
memory = libc.shmat(libc.shmget(7, 96 << 20, 0o1600), None, 0)
ctypes.memset(memory, 7, 96 << 20)
stand(lambda: None)
";

fn want_of_memory_is_noticed(sandbox: &Sandbox, hoarder: &str) {
    let stage = stage(sandbox);
    let source = Space::new();
    let _actor = source.play(hoarder, &stage);
    let frozen = frozen(&source).unwrap_or_else(|error| panic!("{error}"));
    let group = Small::make();
    let tasks = File::options().write(true).open(group.0.join("cgroup.procs")).expect("it can be joined");
    let space = Space::new();
    let groups = [tasks.as_fd()];
    let target = Target {
        init: space.init(),
        held: None,
        cgroup: None,
        groups: &groups,
        supplied: &[],
        handoff: None,
        scopes: 0,
    };
    let error = frozen.clone_into(&target).map(drop).expect_err("it does not fit");
    let said = error.to_string();
    assert!(said.contains("has to fit the limit of the guest's memory"), "{said}");
    eventually("nothing of it is left", || is_empty(&space));
    let clone = Space::new();
    clone_into(&frozen, &clone);
    all_are_right(&stage, &[&source, &clone]);
}

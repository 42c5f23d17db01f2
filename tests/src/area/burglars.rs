//! Whoever runs in a guest while clones are made gets hold of nothing that makes them, and so of no other clone: not as
//! root with all powers, and not as one that was frozen and goes on in each of them.

use crate::case::{Case, Tag};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use pando_freeze::{Frozen, Subject, Target, freeze};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

pub(crate) const CASES: &[Case] = &[
    Case::new("burglars::what_is_being_made_is_out_of_reach", out_of_reach).tags(&[Tag::Slow]),
    Case::new("burglars::what_is_killed_while_it_is_made_leaves_nothing", killers).tags(&[Tag::Slow]),
    Case::new("burglars::one_that_was_frozen_goes_on_in_clones", goes_on_in_clones).tags(&[Tag::Slow]),
];

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/burglar"));

const POWERS: &[(&str, &[&str])] = &[("plain", &[]), ("powerful", &["--cap-add", "ALL", "--seccomp", "off"])];

/// What must get through to a process of the guest's own, or the burglar proves nothing.
const WAYS: &[&str] = &[
    "mem",
    "fd",
    "map_files",
    "maps",
    "environ",
    "auxv",
    "exe",
    "cwd",
    "root",
    "ns/mnt",
    "readv",
    "writev",
    "kcmp",
    "seize",
    "attach",
    "getfd",
];

/// A guest, not started yet, that has the program.
fn den(sandbox: &Sandbox, name: &str, options: &[&str]) {
    let tree = sandbox.scratch().join("tree");
    if !tree.exists() {
        crate::line::Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
        let program = tree.join("bin/burglar");
        std::fs::write(&program, PROGRAM).expect("a file");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    }
    sandbox.pando(["create", name, "--from", &tree.to_string_lossy()]).args(options).ok();
    sandbox.pando(["start", name]).ok();
}

/// A file of a guest's own, from outside: who goes in to look would be seen there.
fn own_file(sandbox: &Sandbox, name: &str, file: &str) -> PathBuf {
    sandbox.places().guests().join(name).join("files/upper").join(file)
}

fn taken(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(own_file(sandbox, name, "taken")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Starts one, with all but `own` for prey, and gives it somebody of the guest's own first: who has all that may be
/// had. Their pids.
fn burglar(sandbox: &Sandbox, name: &str) -> String {
    let script = "sleep 100000 & victim=$!; burglar $$ >/dev/null 2>&1 & burglar=$!; echo $victim $burglar >/started; \
                  while [ ! -e /enough ]; do sleep 0.05; done; kill -9 $burglar; wait $burglar; mv /taken /control; \
                  burglar $$ $victim >/dev/null 2>&1 & echo $! >/robbing; wait";
    sandbox
        .pando(["exec", name, "--", "sh", "-c", &format!("setsid sh -c '{script}' </dev/null >/dev/null 2>&1 &")])
        .ok();
    eventually("there are a burglar and its prey", || own_file(sandbox, name, "started").exists());
    let pids = std::fs::read_to_string(own_file(sandbox, name, "started")).expect("it was there");
    let prey = pids.split_whitespace().next().expect("a pid").to_owned();
    eventually("the burglar gets what it may", || {
        let taken = taken(sandbox, name);
        WAYS.iter().all(|way| taken.contains(&format!("{prey} {way}")))
    });
    std::fs::write(sandbox.scratch().join("enough"), "").expect("a file");
    sandbox.pando(["cp", &sandbox.scratch().join("enough").to_string_lossy(), &format!("{name}:/enough")]).ok();
    eventually("it has other prey", || own_file(sandbox, name, "robbing").exists());
    prey
}

fn frozen(sandbox: &Sandbox, name: &str) -> (Frozen, File) {
    let init = sandbox.first_process(name);
    let root = File::open(format!("/proc/{init}/root")).expect("its root");
    let subject = Subject { init, outside: &[super::clones::printed(init)], ..Subject::default() };
    let frozen = freeze(&subject, || Ok(root.into())).unwrap_or_else(|error| panic!("{error}"));
    (frozen, File::open("/dev/null").expect("it is there"))
}

/// Whether a guest has a process with a number.
fn has(init: i32, pid: i32) -> bool {
    let inside = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("NSpid:"))?;
        line.split_whitespace().last()?.parse::<i32>().ok()
    };
    let own = std::fs::read_link(format!("/proc/{init}/ns/pid")).ok();
    crate::process::all().into_iter().any(|process| {
        std::fs::read_link(format!("/proc/{}/ns/pid", process.pid)).ok() == own
            && std::fs::read_to_string(format!("/proc/{}/status", process.pid))
                .is_ok_and(|text| inside(&text) == Some(pid))
    })
}

/// Clones are made where the burglar is, one after the other.
fn out_of_reach(sandbox: &Sandbox) {
    const CLONES: usize = 40;
    for (name, powers) in POWERS {
        let source = format!("{name}-source");
        sandbox.guest(&source, &[*powers, &["--", "sleep", "100000"]].concat());
        den(sandbox, name, powers);
        // What is frozen has pid 2, and who makes it 3: those are free here.
        for _ in 0..8 {
            sandbox.exec_sh(name, "true").ok();
        }
        burglar(sandbox, name);
        let (frozen, log) = frozen(sandbox, &source);
        let init = sandbox.first_process(name);
        for _ in 0..CLONES {
            let target = Target {
                init,
                held: None,
                cgroup: None,
                groups: &[],
                supplied: &[log.as_fd()],
                handoff: None,
                scopes: 0,
            };
            // Never let go, it ends.
            drop(frozen.clone_into(&target).unwrap_or_else(|error| panic!("{error}")));
            eventually("the clone has ended", || !has(init, 2));
        }
        assert_eq!(taken(sandbox, name), [""; 0], "{name}: the burglar got hold of something");
    }
}

/// They are made or not; what is not leaves nothing, and the image is as it was.
fn killers(sandbox: &Sandbox) {
    const CLONES: usize = 40;
    sandbox.guest("source", &["--", "sleep", "100000"]);
    den(sandbox, "web", &[]);
    for _ in 0..8 {
        sandbox.exec_sh("web", "true").ok();
    }
    let (frozen, log) = frozen(sandbox, "source");
    let init = sandbox.first_process("web");
    let clone = || {
        let target =
            Target { init, held: None, cgroup: None, groups: &[], supplied: &[log.as_fd()], handoff: None, scopes: 0 };
        frozen.clone_into(&target).map(drop)
    };
    let shell = "setsid sh -c 'burglar killer 1 $$ & echo $! >/killing; wait' </dev/null >/dev/null 2>&1 &";
    sandbox.pando(["exec", "web", "--", "sh", "-c", shell]).ok();
    eventually("it kills", || own_file(sandbox, "web", "killing").exists());
    let mut failed = 0;
    for _ in 0..CLONES {
        failed += usize::from(clone().is_err());
        eventually("nothing of it is left", || !has(init, 2));
    }
    assert!(failed > 0, "nobody was killed: it proves nothing");
    sandbox.pando(["kill", "web"]).ok();
    sandbox.becomes("web", "stopped");
    den_again(sandbox, &frozen, &log);
}

/// The image still serves, where nobody kills.
fn den_again(sandbox: &Sandbox, frozen: &Frozen, log: &File) {
    den(sandbox, "quiet", &[]);
    for _ in 0..8 {
        sandbox.exec_sh("quiet", "true").ok();
    }
    let init = sandbox.first_process("quiet");
    let target =
        Target { init, held: None, cgroup: None, groups: &[], supplied: &[log.as_fd()], handoff: None, scopes: 0 };
    let ready = frozen.clone_into(&target).unwrap_or_else(|error| panic!("{error}"));
    ready.go().unwrap_or_else(|error| panic!("{error}"));
    eventually("it runs", || has(init, 2));
}

/// How often the burglar has had the memory of whom it may have.
fn robbed(sandbox: &Sandbox, name: &str) -> usize {
    taken(sandbox, name).iter().filter(|line| *line == "3 mem").count()
}

#[track_caller]
fn only_the_third(sandbox: &Sandbox, name: &str) {
    let mut taken = taken(sandbox, name);
    taken.retain(|line| !line.starts_with("3 "));
    assert!(taken.is_empty(), "{name}: the burglar got hold of something: {taken:?}");
}

/// It begins again in each clone as soon as it may, when others of that are still being let go.
fn goes_on_in_clones(sandbox: &Sandbox) {
    const ROUNDS: usize = 4;
    const AT_ONCE: usize = 3;
    for (name, powers) in POWERS {
        // They and their shell have these pids. The third is of somebody whom it may have.
        let script = "sleep 100000 & burglar victim & burglar victim & burglar 2 4 5 6 7 8 9 & wait";
        den(sandbox, name, &[*powers, &["--", "sh", "-c", script]].concat());
        eventually("the victims stand", || own_file(sandbox, name, "intact").exists());
        eventually("the burglar gets what it may", || robbed(sandbox, name) == 1);
        only_the_third(sandbox, name);
        let image = format!("{name}-image");
        sandbox.pando(["freeze", name, &image]).ok();
        for round in 0..ROUNDS {
            let count = AT_ONCE.to_string();
            let first = format!("{name}-{round}");
            let clones = sandbox.pando(["clone", &image, &first, "-n", &count]).limit(120).ok();
            for clone in clones.lines() {
                eventually("its victims stand", || own_file(sandbox, clone, "intact").exists());
                eventually("the burglar gets what it may there, too", || robbed(sandbox, clone) == 2);
                only_the_third(sandbox, clone);
                assert!(!own_file(sandbox, clone, "spoilt").exists(), "{clone} differs");
            }
            let words: Vec<&str> = ["rm", "-f"].into_iter().chain(clones.lines()).collect();
            sandbox.pando(words).limit(120).ok();
        }
        sandbox.pando(["rm", "-f", name]).ok();
    }
}

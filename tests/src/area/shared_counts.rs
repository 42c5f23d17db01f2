//! What a machine has one count of for all: who is counted for what a guest takes of it, and what bounds that. Nothing
//! here is used up.

use super::attacks;
use crate::case::{Case, Tag};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use pando_kernel::cgroup::Hierarchies;
use pando_kernel::namespace;
use std::fs::File;
use std::path::PathBuf;

const VM: &[Tag] = &[Tag::Vm];

pub(crate) const CASES: &[Case] = &[
    Case::new("shared_counts::a_guest_is_counted_for_its_own_id", a_guest_is_counted_for_its_own_id).tags(VM),
    Case::new("shared_counts::groups_within_a_guest_are_bounded", groups_within_a_guest_are_bounded).tags(VM),
    Case::new("shared_counts::groups_deeper_than_a_path_hide_nobody_and_go", groups_deeper_than_a_path).tags(VM),
    Case::new("shared_counts::a_guest_has_so_many_terminals", a_guest_has_so_many_terminals).tags(VM),
    Case::new("shared_counts::sockets_hold_no_more_than_memory_does", sockets_hold_no_more_than_memory_does).tags(VM),
    Case::new("shared_counts::descriptors_in_flight_hold_nobody_up", descriptors_in_flight_hold_nobody_up).tags(VM),
];

/// Whom the kernel counts what a guest's users take of its counts for each user, beside themselves: who made the
/// guest's user namespace.
fn counted(sandbox: &Sandbox, name: &str) -> (Option<u64>, u32) {
    let pid = sandbox.first_process(name);
    let namespace = File::open(format!("/proc/{pid}/ns/user")).expect("its user namespace");
    let first = sandbox.inspect(name)["first_id"].as_u64();
    (first, namespace::maker(&namespace).expect("the kernel tells who made it"))
}

fn a_guest_is_counted_for_its_own_id(sandbox: &Sandbox) {
    let own = |name: &str| {
        let (first, maker) = counted(sandbox, name);
        assert_eq!(
            first,
            Some(u64::from(maker)),
            "{name}: inotify instances, timers, signals, … are counted for {maker}"
        );
    };
    for (name, options) in [
        ("default", &["--profile", "default"][..]),
        ("strict", &["--profile", "strict"]),
        ("system", &["--profile", "system"]),
        ("shared", &["--net", "host"]),
    ] {
        sandbox.guest(name, &[options, &["--", "sleep", "1000"]].concat());
        own(name);
    }
    sandbox.pando(["freeze", "strict", "image"]).ok();
    sandbox.pando(["clone", "image", "clone"]).ok();
    own("clone");
    // The control: whose ids are the host's has no namespace of its own, and is counted for the host's root.
    sandbox.guest("hosts-ids", &["--userns", "host", "--", "sleep", "1000"]);
    assert_eq!(counted(sandbox, "hosts-ids"), (None, 0));
}

/// The group of version 2 that a guest's lies in.
fn outer_group(sandbox: &Sandbox, name: &str) -> PathBuf {
    let pid = sandbox.first_process(name);
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    let path = text.lines().find_map(|line| line.strip_prefix("0::/")).expect("it has a group of version 2");
    let root = Hierarchies::detect().expect("mounts can be read").unified.expect("version 2 is mounted");
    root.join(path).parent().expect("it lies in one").to_owned()
}

fn groups_within_a_guest_are_bounded(sandbox: &Sandbox) {
    // By deed down, where few say it; across by what the group says.
    let down = "mkdir /srv/c && mount -t cgroup2 none /srv/c && cd /srv/c && n=0; \
                while [ $n -lt 50 ] && mkdir g 2>/srv/why; do cd g; n=$((n + 1)); done; echo $n; grep -c unavailable /srv/why";
    sandbox.guest("web", &["--profile", "system", "--", "sleep", "1000"]);
    sandbox.exec_sh("web", down).run().says("31\n1\n");
    let group = outer_group(sandbox, "web");
    let bound = std::fs::read_to_string(group.join("cgroup.max.descendants")).expect("every kernel has it");
    assert_eq!(bound.trim(), "1000", "{}", group.display());
    // It goes with all that was made in it.
    sandbox.pando(["rm", "-f", "web"]).ok();
    assert!(!group.exists(), "{} is left", group.display());
}

/// Groups with names as long as names can be, one in the other: no call takes the path of the last one.
fn groups_deeper_than_a_path(sandbox: &Sandbox) {
    let down = "mkdir /srv/c && mount -t cgroup2 none /srv/c && cd /srv/c && x=xxxxxxxxxx; n=0; \
                while [ $n -lt 24 ]; do x=${x}yyyyyyyyyy; n=$((n + 1)); done; n=0; \
                while mkdir $x 2>/dev/null; do cd -P $x 2>/dev/null; n=$((n + 1)); done; \
                echo $$ >cgroup.procs && echo $n && exec sleep 4321.5";
    sandbox.guest("web", &["--profile", "system", "--", "sleep", "1000"]);
    let group = outer_group(sandbox, "web");
    let deep = sandbox.pando(["exec", "web", "--", "sh", "-c", down]).start();
    let is_there = |line: &str| line.ends_with(" sleep 4321.5") && !line.contains("mkdir");
    eventually("it is seen", || sandbox.pando(["ps", "web"]).ok().lines().any(is_there));
    sandbox.pando(["rm", "-f", "web"]).ok();
    assert_eq!(deep.wait().out(), "31\n");
    assert!(!group.exists(), "{} is left", group.display());
}

/// The options of a guest's terminals, as its first process sees them.
fn terminals(sandbox: &Sandbox, name: &str) -> String {
    let pid = sandbox.first_process(name);
    let text = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("it runs");
    let line = text.lines().find(|line| line.contains(" - devpts ")).expect("it has terminals");
    line.rsplit(' ').next().unwrap_or_default().to_owned()
}

fn a_guest_has_so_many_terminals(sandbox: &Sandbox) {
    let bounded = |name: &str| {
        let options = terminals(sandbox, name);
        assert!(options.split(',').any(|option| option == "max=256"), "{name}: {options}");
    };
    for (name, options) in [
        ("default", &["--profile", "default"][..]),
        ("strict", &["--profile", "strict"]),
        ("system", &["--profile", "system"]),
        ("hosts-ids", &["--userns", "host"]),
    ] {
        sandbox.guest(name, &[options, &["--", "sleep", "1000"]].concat());
        bounded(name);
        // There are some.
        let own = sandbox.pando(["exec", "-t", name, "--", "tty"]).limit(20).ok();
        assert!(own.contains("/dev/pts/"), "{name}: {own}");
    }
    sandbox.pando(["freeze", "strict", "image"]).ok();
    sandbox.pando(["clone", "image", "clone"]).ok();
    bounded("clone");
}

fn sockets_hold_no_more_than_memory_does(sandbox: &Sandbox) {
    let tree = attacks::tree(sandbox).to_string_lossy().into_owned();
    // Some 48 megabytes where nothing bounds them.
    let hoard = |options: &[&str], most: &str| {
        let line = sandbox.pando(["run", "--from", &tree]).args(options);
        line.args(["--", "/bin/attack", "hoard-in-sockets", "256", most]).run()
    };
    let control = hoard(&[], "32");
    assert_eq!(control.code(), 0, "the control: without a limit there is room for them: {}", control.out());
    let bounded = hoard(&["--memory", "16M"], "16");
    // Version 2 counts them with all other memory, and may end who has too much.
    assert_ne!(bounded.code(), 0, "{}", bounded.out());
    // Where no limit of memory is set there is a bound nevertheless, if version 1 counts; a change of the limit is one
    // of the bound.
    let memory = Hierarchies::detect().expect("mounts can be read").legacy;
    let Some((root, _)) = memory.iter().find(|(_, names)| names.iter().any(|name| name == "memory")) else { return };
    sandbox.guest("web", &["--", "sleep", "1000"]);
    let pid = sandbox.first_process("web");
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    let path = text.lines().find_map(|line| line.split_once(":memory:/")).expect("it has a group of memory").1;
    let bound = || -> u64 {
        let text = std::fs::read_to_string(root.join(path).join("memory.kmem.tcp.limit_in_bytes"));
        text.expect("the kernel counts sockets").trim().parse().expect("a number")
    };
    let pool = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").expect("every kernel has it");
    let pool: u64 = pool.split_whitespace().last().expect("three numbers").parse().expect("a number");
    let own = bound();
    assert!(own <= pool * 4096 / 16, "{own} of {pool} pages");
    sandbox.pando(["set", "web", "memory.limit=32M"]).ok();
    assert_eq!(bound(), 32 << 20);
    sandbox.pando(["set", "web", "memory.limit="]).ok();
    assert_eq!(bound(), own);
}

/// The kernel bounds what is in flight for each user by the sender's limit of open files: a guest that is over that of
/// its shim may not keep what is put into it from being heard of.
fn descriptors_in_flight_hold_nobody_up(sandbox: &Sandbox) {
    let tree = attacks::tree(sandbox).to_string_lossy().into_owned();
    for profile in ["default", "strict"] {
        let options = ["--profile", profile, "--from", &tree, "--start"];
        let line = sandbox.pando(["create", profile]).args(options);
        line.args(["--", "/bin/attack", "descriptors-in-flight", "2000"]).ok();
        eventually("they are in flight", || sandbox.pando(["logs", profile]).ok().contains("2000 in flight"));
        sandbox.exec_sh(profile, "echo hi").limit(20).run().succeeded().says("hi\n");
        // One that says no word of its own.
        sandbox.pando(["exec", profile, "--", "true"]).limit(20).ok();
        sandbox.pando(["cp", &format!("{profile}:/etc/passwd"), "-"]).limit(20).ok();
        // A terminal's other end comes out of the guest, as one of its users sends it: that it could not is said.
        sandbox
            .pando(["exec", "-t", profile, "--", "true"])
            .limit(20)
            .run()
            .ended_with(125)
            .complains_of(&["terminal"]);
        // Whatever becomes of it.
        sandbox.pando(["freeze", profile, &format!("{profile}-image")]).limit(60).run();
        sandbox.pando(["stop", "-t", "1", profile]).limit(20).ok();
        sandbox.pando(["rm", "--force", profile]).limit(20).ok();
    }
}

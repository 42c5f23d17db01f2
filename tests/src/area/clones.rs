//! `pando freeze`, `clone`, `images`, `image rm`: clones as their users see them.

use crate::case::{Case, Tag, skip};
use crate::file_watcher;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::world::World;
use pando_freeze::{Subject, Target, freeze};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

pub(crate) const CASES: &[Case] = &[
    Case::new("clones::a_clone_runs_on_from_the_frozen_instant", a_clone_runs_on_from_the_frozen_instant)
        .tags(&[Tag::Vm]),
    Case::new("clones::files_are_those_of_the_instant", files_are_those_of_the_instant),
    Case::new("clones::each_has_a_disk_of_its_own_size", each_has_a_disk_of_its_own_size)
        .needs(&[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")]),
    Case::new("clones::watches_of_files_are_of_each_clones_own", watches_of_files_are_of_each_clones_own),
    Case::new("clones::whatever_holds_a_process_holds_its_clone", whatever_holds_a_process_holds_its_clone),
    Case::new("clones::clones_are_ordinary_guests", clones_are_ordinary_guests),
    Case::new("clones::an_image_outlives_its_guest", an_image_outlives_its_guest),
    Case::new("clones::a_guest_that_lies_around_its_image_is_refused", a_guest_that_lies_around_its_image),
    Case::new("clones::names_are_checked", names_are_checked),
    Case::new("clones::a_hundred_at_once", a_hundred_at_once),
    Case::new("clones::little_of_what_made_them_stays", little_of_what_made_them_stays),
    Case::new("clones::root_looks_into_processes_as_far_as_is_told", root_looks_into_processes),
    Case::new("clones::the_holder_is_out_of_reach", the_holder_is_out_of_reach).needs(&[Need::Root]),
    Case::new("clones::room_on_the_disk_is_set_aside_for_one_more_at_most", room_is_set_aside_for_one_more),
];

/// Counts in a variable, and leaves the count where it can be seen.
pub(crate) const COUNTER: &str =
    "n=0; while :; do n=$((n+1)); echo $n >/count.new; mv /count.new /count; sleep 0.02; done";

#[track_caller]
pub(crate) fn counter(sandbox: &Sandbox, name: &str) {
    sandbox.guest(name, &["--", "sh", "-c", COUNTER]);
    eventually("it counts", || count(sandbox, name) > 5);
}

/// What a guest has counted to.
pub(crate) fn count(sandbox: &Sandbox, name: &str) -> u32 {
    sandbox.exec_sh(name, "cat /count").run().out().trim().parse().unwrap_or(0)
}

/// A server that has given up being root, and so is not dumpable, and a program that is.
const LOOKED_INTO: &str = "httpd -u ada -p 8080 -h /srv; sleep 100000 & wait";

/// What docs/clones.md tells of it: memory that came from the holder is not of the clone's user namespace, until a
/// program is executed.
fn root_looks_into_processes(sandbox: &Sandbox) {
    for (userns, seen) in [("auto", false), ("host", true)] {
        let (source, clone) = (format!("web-{userns}"), format!("clone-{userns}"));
        let options = ["--cap-add", "SYS_PTRACE", "--userns", userns, "--", "sh", "-c", LOOKED_INTO];
        sandbox.guest(&source, &options);
        let sees = |guest: &str, program: &str| {
            let script = format!("pid=$(pidof {program}) && cat /proc/$pid/environ && readlink /proc/$pid/exe");
            sandbox.exec_sh(guest, &script).run().code() == 0
        };
        for program in ["httpd", "sleep"] {
            eventually("its root sees it in the guest", || sees(&source, program));
        }
        sandbox.pando(["freeze", &source, "warm"]).ok();
        sandbox.pando(["clone", "warm", &clone]).ok();
        assert!(sees(&clone, "sleep"));
        assert_eq!(sees(&clone, "httpd"), seen, "in a clone with --userns {userns}");
        // What it does without looking into it works as ever.
        sandbox.exec_sh(&clone, "pid=$(pidof httpd) && grep -q ^Uid:.1000 /proc/$pid/status && kill $pid").ok();
        eventually("it has ended", || sandbox.exec_sh(&clone, "pidof httpd").run().code() != 0);
        sandbox.exec_sh(&clone, "httpd -u ada -p 8080 -h /srv </dev/null >/dev/null 2>&1").ok();
        eventually("its root sees what was executed in the clone", || sees(&clone, "httpd"));
        sandbox.pando(["rm", "--force", &clone, &source]).ok();
        sandbox.pando(["image", "rm", "warm"]).ok();
    }
}

fn a_clone_runs_on_from_the_frozen_instant(sandbox: &Sandbox) {
    counter(sandbox, "web");
    let id = "0123456789abcdef0123456789abcdef";
    sandbox.exec_sh("web", &format!("echo {id} >/etc/machine-id")).ok();
    let said = sandbox.pando(["freeze", "web", "warm"]).ok();
    assert!(said.starts_with("warm: ") && said.contains("stood still"), "{said}");
    let frozen_at = count(sandbox, "web");
    assert_eq!(sandbox.pando(["clone", "warm", "one"]).ok(), "one\n");
    assert_eq!(sandbox.pando(["clone", "warm", "-n", "2"]).ok(), "warm-1\nwarm-2\n");
    for clone in ["one", "warm-1", "warm-2"] {
        let first = count(sandbox, clone);
        assert!(first > 5, "it began anew: {first}");
        eventually("the clone counts on", || count(sandbox, clone) > first + 5);
        assert_eq!(sandbox.exec_sh(clone, "hostname").ok().trim(), clone);
        let own = sandbox.exec_sh(clone, "cat /etc/machine-id").ok();
        assert!(own.trim().len() == id.len() && own.trim() != id, "{own}");
        assert!(sandbox.exec_sh(clone, "tr '\\0' ' ' </proc/2/cmdline").ok().starts_with("sh -c"));
    }
    eventually("the guest counts on", || count(sandbox, "web") > frozen_at + 5);
    assert_eq!(sandbox.exec_sh("web", "cat /etc/machine-id").ok().trim(), id);
}

fn files_are_those_of_the_instant(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    sandbox.exec_sh("web", "echo before >/file; echo gone >/root/removed; rm /bin/vi; mkdir -m 1777 /sticky").ok();
    sandbox.pando(["freeze", "web"]).ok();
    sandbox.exec_sh("web", "echo after >/file; rm /root/removed").ok();
    sandbox.pando(["clone", "web", "one"]).ok();
    sandbox.pando(["clone", "web", "two"]).ok();
    sandbox.exec_sh("one", "echo mine >/file").ok();
    let look = "cat /file /root/removed; ls /bin/vi 2>&1 | grep -c 'No such'; stat -c %a /sticky";
    assert_eq!(sandbox.exec_sh("two", look).ok(), "before\ngone\n1\n1777\n");
    assert_eq!(sandbox.exec_sh("one", "cat /file").ok(), "mine\n");
    assert_eq!(sandbox.exec_sh("web", "cat /file").ok(), "after\n");
}

fn each_has_a_disk_of_its_own_size(sandbox: &Sandbox) {
    const FILL: &str = "dd if=/dev/zero of=/full bs=1M count=64 2>&1 | grep -c 'No space'; rm /full";
    sandbox.guest("web", &["--disk", "32M", "--", "sh", "-c", COUNTER]);
    eventually("it counts", || count(sandbox, "web") > 5);
    sandbox.exec_sh("web", "echo before >/file").ok();
    sandbox.pando(["freeze", "web", "warm", "--wait"]).ok();
    sandbox.exec_sh("web", "echo after >/file").ok();
    sandbox.pando(["clone", "warm", "-n", "2"]).ok();
    for name in ["warm-1", "warm-2"] {
        assert_eq!(sandbox.exec_sh(name, "cat /file").ok(), "before\n");
        assert_eq!(sandbox.exec_sh(name, FILL).run().out(), "1\n", "{name} has as little room as its source");
        let seen = count(sandbox, name);
        eventually("the clone counts on", || count(sandbox, name) > seen);
    }
    assert_eq!(sandbox.exec_sh("web", "cat /file").ok(), "after\n");
    assert_eq!(sandbox.exec_sh("web", FILL).run().out(), "1\n");
    // A clone's room is its own when it is started anew, and what it wrote is there.
    sandbox.exec_sh("warm-1", "echo mine >/file").ok();
    sandbox.pando(["stop", "warm-1", "--time", "0"]).ok();
    sandbox.pando(["start", "warm-1"]).ok();
    assert_eq!(sandbox.exec_sh("warm-1", "cat /file").ok(), "mine\n");
    assert_eq!(sandbox.exec_sh("warm-1", FILL).run().out(), "1\n");
    sandbox.pando(["rm", "--force", "warm-1", "warm-2", "web"]).ok();
}

/// One watch is of a directory of the guest's own, one of a file of its layer.
fn watches_of_files_are_of_each_clones_own(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    let program = std::env::current_exe().expect("this program has a path");
    sandbox.pando(["cp"]).args([&program]).args(["web:/bin/watcher"]).ok();
    let watch = format!("mkdir /dir; setsid watcher {} /dir /etc/passwd </dev/null >/told 2>&1 &", file_watcher::WORD);
    sandbox.exec_sh("web", &watch).ok();
    let told = |name: &str, what: &str| sandbox.exec_sh(name, "cat /told").run().out().lines().any(|line| line == what);
    eventually("it watches", || told("web", "watching"));
    sandbox.pando(["freeze", "web", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    sandbox.exec_sh("one", "touch /dir/mine; chmod 600 /etc/passwd").ok();
    eventually("it sees a new file", || told("one", "1 mine"));
    eventually("it sees its own version of a file", || told("one", "2 "));
    sandbox.exec_sh("web", "touch /dir/late").ok();
    eventually("the source sees its own", || told("web", "1 late"));
    assert!(!told("web", "1 mine") && !told("one", "1 late"));
    // A clone can be frozen again, and the clone of that, whatever stands below their files.
    sandbox.pando(["freeze", "one", "again"]).ok();
    sandbox.pando(["clone", "again", "two"]).ok();
    sandbox.pando(["freeze", "two", "thrice"]).ok();
    sandbox.pando(["clone", "thrice", "three"]).ok();
    let changes = || sandbox.exec_sh("three", "grep -c '^2 ' /told").ok();
    let before = changes();
    sandbox.exec_sh("three", "touch /dir/deep; chmod 644 /etc/passwd").ok();
    eventually("the clone of a clone's clone sees a new file", || told("three", "1 deep"));
    eventually("it sees its own version of a file", || changes() != before);
    assert!(!told("one", "1 deep") && !told("two", "1 deep"));
}

/// What a process is kept from is the same in a clone: where that is given to all at once, by whoever forks them, and
/// where each takes it for itself, since forking is refused then.
fn whatever_holds_a_process_holds_its_clone(sandbox: &Sandbox) {
    let held = |name: &str| {
        let kept = "^(Uid|Gid|Groups|NoNewPrivs|Seccomp|Seccomp_filters|Cap[A-Z][a-z]*):";
        sandbox
            .exec_sh(
                name,
                &format!(
                    "for p in /proc/[0-9]*; do grep -qa '10000[01]' $p/cmdline && grep -E '{kept}' $p/status; done; true"
                ),
            )
            .ok()
    };
    for profile in ["default", "strict"] {
        let command = "sleep 100000 & sleep 100001 & wait";
        sandbox.guest(profile, &["--profile", profile, "--", "sh", "-c", command]);
        eventually("both run", || held(profile).matches("Seccomp_filters:").count() >= 3);
        let image = format!("{profile}-image");
        sandbox.pando(["freeze", profile, &image]).ok();
        sandbox.pando(["clone", &image, &format!("{profile}-clone")]).ok();
        assert_eq!(held(&format!("{profile}-clone")), held(profile), "{profile}");
    }
}

fn clones_are_ordinary_guests(sandbox: &Sandbox) {
    counter(sandbox, "web");
    sandbox.pando(["freeze", "web", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    // A clone's clone.
    sandbox.pando(["freeze", "one", "again"]).ok();
    sandbox.pando(["clone", "again", "two"]).ok();
    assert!(count(sandbox, "two") > 5);
    // Its end is that of its command, and it starts anew as any guest does.
    // Who kills it may be ended along with it before it can end by itself.
    sandbox.exec_sh("two", "kill -KILL 2").run();
    sandbox.becomes("two", "stopped");
    assert_eq!(sandbox.status("two").expect("it is listed")["exit_code"], 137);
    sandbox.pando(["start", "two"]).ok();
    sandbox.becomes("two", "running");
    sandbox.pando(["stop", "one"]).ok();
    sandbox.pando(["restart", "one"]).ok();
    sandbox.becomes("one", "running");
    assert_eq!(sandbox.status("one").expect("it is listed")["source"], "image:warm");
}

fn an_image_outlives_its_guest(sandbox: &Sandbox) {
    counter(sandbox, "web");
    sandbox.pando(["freeze", "web", "--stop"]).ok();
    assert_eq!(sandbox.state("web"), "stopped");
    sandbox.pando(["rm", "web"]).ok();
    sandbox.pando(["clone", "web", "one"]).ok();
    assert!(count(sandbox, "one") > 5);
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "web\n");
    assert_eq!(sandbox.pando(["image", "rm", "web"]).ok(), "web\n");
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "");
    let seen = count(sandbox, "one");
    eventually("the clone lives on without its image", || count(sandbox, "one") > seen + 5);
    sandbox.pando(["clone", "web", "two"]).run().ended_with(125).complains_of(&["no image", "web"]);
}

/// The host's own files have those of this test's root among them.
fn a_guest_that_lies_around_its_image(sandbox: &Sandbox) {
    let command = ["run", "--name", "web", "--", "/bin/sh", "-c", "exec sleep 100000 </dev/null >/dev/null 2>&1"];
    let _guest = sandbox.pando(command).limit(600).start();
    eventually("the guest runs", || sandbox.state("web") == "running");
    use std::os::unix::fs::MetadataExt;
    let device = |path: &std::path::Path| std::fs::metadata(path).expect("it is there").dev();
    if device(sandbox.root()) != device("/".as_ref()) {
        skip("temporary files are not on the root's disk here");
    }
    let before = World::of(sandbox);
    let refused = sandbox.pando(["freeze", "web"]).run().ended_with(125);
    refused.complains_of(&["web", "cannot be frozen", "the host's own files", "--from host"]);
    before.is_unchanged(sandbox, "a refusal");
}

fn names_are_checked(sandbox: &Sandbox) {
    sandbox.create("idle", &[]);
    sandbox.pando(["freeze", "idle"]).run().ended_with(125).complains_of(&["idle", "not running"]);
    sandbox.pando(["freeze", "nobody"]).run().ended_with(125).complains_of(&["nobody"]);
    counter(sandbox, "web");
    sandbox.pando(["freeze", "web", "../x"]).run().ended_with(125).complains_of(&["../x"]);
    sandbox.pando(["freeze", "web"]).ok();
    sandbox.pando(["freeze", "web"]).run().ended_with(125).complains_of(&["image", "web", "already"]);
    sandbox.pando(["clone", "web", "idle"]).run().ended_with(125).complains_of(&["idle", "already"]);
    sandbox.pando(["image", "rm", "nothing"]).run().ended_with(125).complains_of(&["nothing"]);
}

/// The restorer's memory goes, page tables and all, but for what the processes returned through, and a clone of a clone
/// has none of the first's.
fn little_of_what_made_them_stays(sandbox: &Sandbox) {
    sandbox.guest("source", &["--", "sleep", "100000"]);
    for (from, to) in [("source", "one"), ("one", "two")] {
        sandbox.pando(["freeze", from, &format!("image-{to}")]).ok();
        sandbox.pando(["clone", &format!("image-{to}"), to]).ok();
        let maps = sandbox.exec_sh(to, "cat /proc/2/maps").ok();
        assert!(!maps.lines().any(|line| line.starts_with("4000")), "{maps}");
        let landings = maps.lines().filter(|line| line.contains("/memfd:pando-script") && line.contains(" r-xp "));
        assert_eq!(landings.count(), 1, "{maps}");
        assert_eq!(sandbox.exec_sh(to, "tr '\\0' ' ' </proc/1/cmdline").ok().trim(), "pando-shim");
    }
}

fn a_hundred_at_once(sandbox: &Sandbox) {
    // A hundred at the usual pace would keep a small machine from doing anything else.
    sandbox.guest("web", &["--", "sh", "-c", &COUNTER.replace("0.02", "2")]);
    eventually("it counts", || count(sandbox, "web") > 0);
    sandbox.pando(["freeze", "web", "warm"]).ok();
    let names = sandbox.pando(["clone", "warm", "many", "-n", "100"]).limit(300).ok();
    assert_eq!(names.lines().count(), 100);
    for name in ["many-1", "many-50", "many-100"] {
        let seen = count(sandbox, name);
        eventually("it counts on", || count(sandbox, name) > seen);
    }
    let words: Vec<&str> = ["rm", "-f"].into_iter().chain(names.lines()).collect();
    sandbox.pando(words).limit(300).ok();
}

/// Tries, over and over, to open the memory of every low pid but its own, for reading and writing.
const BURGLAR: &str = "sleep 100000 & echo $! >/victim; echo $$ >/self; while :; do for p in 2 3 4 5 6 7 8 9; do \
                       [ $p = $(cat /self) ] || if true <>/proc/$p/mem; then echo $p; fi; done 2>/dev/null; done >/taken";

/// While clones are made, two tasks that share the holder's memory are in the guest's namespaces: whoever could write
/// to that would write to every later clone.
fn the_holder_is_out_of_reach(sandbox: &Sandbox) {
    const CLONES: usize = 50;
    let all_powers = ["--cap-add", "ALL", "--seccomp", "off"];
    sandbox.guest("web", &[&all_powers as &[&str], &["--", "sleep", "100000"]].concat());
    sandbox.guest("den", &all_powers);
    let root = File::open(format!("/proc/{}/root", sandbox.first_process("web"))).expect("its root");
    let log = File::open("/dev/null").expect("it is there");
    let outside = printed(sandbox.first_process("web"));
    let subject =
        Subject { init: sandbox.first_process("web"), outside: &[outside], in_memory: &[], ..Subject::default() };
    let frozen = freeze(&subject, || Ok(root.into())).unwrap_or_else(|error| panic!("{error}"));
    // Pids 2 and, for the maker, 3 are the clone's: the burglar has others.
    let burglar = BURGLAR.replace("for p in 2 3 4 5 6 7 8 9", "for p in 2 3 $(cat /victim)");
    for _ in 0..8 {
        sandbox.exec_sh("den", "true").ok();
    }
    let _burglar = sandbox.exec_sh("den", &burglar).limit(120).start();
    let taken = || sandbox.exec_sh("den", "sort -u /taken 2>/dev/null").run().out();
    eventually("the burglar gets what it may: the memory of its own victim", || !taken().is_empty());
    let victim = sandbox.exec_sh("den", "cat /victim").ok();
    assert!(victim.trim().parse::<i32>().expect("a pid") > 3, "{victim}");
    let groups: [BorrowedFd<'_>; 0] = [];
    let init = sandbox.first_process("den");
    for _ in 0..CLONES {
        let target = Target {
            init,
            held: None,
            cgroup: None,
            groups: &groups,
            supplied: &[log.as_fd()],
            handoff: None,
            scopes: 0,
        };
        let ready = frozen.clone_into(&target).unwrap_or_else(|error| panic!("{error}"));
        // Never let go, it ends, and its pid is free again.
        drop(ready);
        eventually("the clone has ended", || sandbox.exec_sh("den", "test ! -e /proc/2").run().code() == 0);
    }
    assert_eq!(taken(), victim, "the burglar had the memory of a process that was being made");
}

/// What the command of a guest prints into, by the guest's first process.
pub(crate) fn printed(first: i32) -> pando_freeze::Outside {
    use std::os::unix::fs::MetadataExt;
    let children =
        process::all().into_iter().map(|process| process.pid).filter(|pid| process::parent(*pid) == Some(first));
    let command = children.min().expect("it runs");
    let metadata = std::fs::metadata(format!("/proc/{command}/fd/1")).expect("its standard output");
    pando_freeze::Outside { device: metadata.dev(), inode: metadata.ino() }
}

fn room_is_set_aside_for_one_more(sandbox: &Sandbox) {
    // Places of clones to come lie beside the guests, under names that no guest has.
    let ahead = |bounded: bool| {
        let all = std::fs::read_dir(sandbox.places().state().join("guests")).expect("a directory").flatten();
        let ahead = all.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"."));
        ahead.filter(|entry| entry.path().join("disk.img").exists() == bounded).count()
    };
    sandbox.guest("bounded", &["--disk", "32M", "--", "sleep", "1000"]);
    sandbox.guest("plain", &["--", "sleep", "1000"]);
    for name in ["bounded", "plain"] {
        sandbox.pando(["freeze", name, &format!("{name}-image")]).ok();
    }
    for round in 0..4 {
        for name in ["bounded", "plain"] {
            sandbox.pando(["clone", &format!("{name}-image"), &format!("{name}-{round}")]).ok();
            assert!(ahead(true) <= 1, "room for {} clones is set aside", ahead(true));
        }
        // By then all is done that is done in idle moments.
        eventually("others are made ahead", || {
            assert!(ahead(true) <= 1, "room for {} clones is set aside", ahead(true));
            ahead(false) >= 4
        });
    }
}

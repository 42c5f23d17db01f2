//! Kinds of kernel objects that a program holds: in a clone each is what it was when it was frozen, or it is refused by
//! name.

use crate::busybox_root::with_python;
use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_objects::a_time_of_the_wall_clock_stays_that_time", wall_clock),
    Case::new("clone_objects::a_file_mapped_by_a_lost_name_is_one_in_memory", |sandbox| linked(sandbox, "/dev/shm")),
    Case::new("clone_objects::a_file_mapped_by_a_lost_name_is_one_on_the_disk", |sandbox| linked(sandbox, "/srv")),
    Case::new("clone_objects::a_mapped_file_with_a_name_elsewhere_is_refused", elsewhere),
    Case::new("clone_objects::sockets_are_found_by_the_names_that_they_have", published)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("clone_objects::files_in_memory_keep_their_names_and_times", in_memory),
    Case::new("clone_objects::names_in_memory_that_a_clone_would_lose_are_refused", lost_in_memory),
    Case::new("clone_objects::programs_that_were_deleted_run_on", deleted_programs),
    Case::new("clone_objects::the_dead_have_died_of_what_they_died_of", dead),
];

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kept"));

/// A guest that runs the program, with words.
fn guest(sandbox: &Sandbox, words: &[&str]) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    let program = tree.join("bin/kept");
    std::fs::write(&program, PROGRAM).expect("a file");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    sandbox.pando(["create", "source", "--from", &tree.to_string_lossy(), "--", "kept"]).args(words).ok();
    sandbox.pando(["start", "source"]).ok();
    eventually("it has what it holds", || !said(sandbox, "source").is_empty());
}

/// What a guest's program says.
fn said(sandbox: &Sandbox, guest: &str) -> String {
    sandbox.exec_sh(guest, "cat /said").run().out().trim().to_owned()
}

fn clone(sandbox: &Sandbox) {
    sandbox.pando(["freeze", "source", "image", "--memory"]).ok();
    sandbox.pando(["clone", "image", "clone"]).ok();
}

/// The image gets old before it is cloned.
fn wall_clock(sandbox: &Sandbox) {
    const OLD: Duration = Duration::from_secs(2);
    guest(sandbox, &["timer", "3600"]);
    sandbox.pando(["freeze", "source", "image", "--memory"]).ok();
    std::thread::sleep(OLD);
    sandbox.exec_sh("source", "rm /said").ok();
    sandbox.pando(["clone", "image", "clone"]).ok();
    let asked: i64 = sandbox.exec_sh("clone", "cat /asked").ok().trim().parse().expect("a time");
    sandbox.exec_sh("clone", "rm -f /said").ok();
    for name in ["source", "clone"] {
        eventually("it says so", || !said(sandbox, name).is_empty());
        let said = said(sandbox, name);
        let (flags, at) = said.split_once(' ').expect("two words");
        assert_eq!(flags, "3", "in the {name} it is absolute, and told of when the clock is set");
        let late = at.parse::<i64>().expect("a time") - asked;
        assert!(late.abs() < OLD.as_millis() as i64 / 2, "in the {name} it is late by {late} ms");
    }
}

fn changes(sandbox: &Sandbox, guest: &str) -> u64 {
    said(sandbox, guest).strip_suffix(" changes").and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn linked(sandbox: &Sandbox, directory: &str) {
    guest(sandbox, &["linked", directory]);
    clone(sandbox);
    for name in ["source", "clone"] {
        let before = changes(sandbox, name);
        eventually("what one writes the other reads", || changes(sandbox, name) > before);
    }
}

/// As after an upgrade: each clone has a copy of the program that it began with.
fn deleted_programs(sandbox: &Sandbox) {
    const RUNS: &str = "cp /bin/busybox /srv/busybox1; cp /bin/busybox /srv/busybox2
        /srv/busybox1 sh -c 'while sleep 0.1; do echo >/one; done' &
        exec /srv/busybox2 sh -c 'rm /srv/busybox1; echo other >/srv/new; mv /srv/new /srv/busybox2; while sleep 0.1; do echo >/two; done'";
    const LOOK: &str = "for one in /proc/[0-9]*; do if grep -q ^/srv $one/cmdline; then
        readlink $one/exe | grep -o ' (deleted)'; cmp $one/exe /bin/busybox && echo same; fi; done; cat /srv/busybox2";
    sandbox.guest("source", &["--", "sh", "-c", RUNS]);
    let goes_on = |name: &str| {
        sandbox.exec_sh(name, "rm -f /one /two").ok();
        eventually("both go on", || sandbox.exec_sh(name, "test -e /one && test -e /two").run().code() == 0);
    };
    goes_on("source");
    let was = sandbox.exec_sh("source", LOOK).ok();
    assert_eq!(was, " (deleted)\nsame\n (deleted)\nsame\nother\n");
    sandbox.pando(["freeze", "source", "warm", "--wait"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    sandbox.pando(["freeze", "one", "again", "--wait"]).ok();
    sandbox.end_daemon();
    sandbox.pando(["clone", "again", "two"]).ok();
    sandbox.pando(["freeze", "source", "ended", "--stop"]).ok();
    sandbox.pando(["restore", "ended"]).ok();
    for name in ["one", "two", "source"] {
        goes_on(name);
        assert_eq!(sandbox.exec_sh(name, LOOK).ok(), was, "{name}");
    }
}

fn elsewhere(sandbox: &Sandbox) {
    guest(sandbox, &["linked", "/srv"]);
    sandbox.exec_sh("source", "mkdir /srv/below && mv /srv/published /srv/below").ok();
    let ended = sandbox.pando(["freeze", "source", "image", "--memory"]).run();
    assert_eq!(ended.code(), 125);
    let wanted = "a shared mapping of a file that lost this name and has others (/srv/temporary (deleted))";
    assert!(ended.err().contains(wanted), "{}", ended.err());
    let before = changes(sandbox, "source");
    eventually("it goes on", || changes(sandbox, "source") > before);
}

/// What each says who connects to it by the name that it has is that name.
fn published(sandbox: &Sandbox) {
    const NAMES: [&str; 7] = ["plain", "renamed", "new", "linked", "late/socket", "home/relative", "home/other"];
    const ASK: &str = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(30); s.connect(sys.argv[1]); print(s.recv(99).decode(), end='')";
    let tree = sandbox.scratch().join("tree");
    with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    std::fs::write(tree.join("root/published.py"), include_str!("../../fixtures/published_sockets.py"))
        .expect("a file");
    let command = ["--start", "--", "/usr/bin/python3", "-E", "-s", "/root/published.py"];
    sandbox.pando(["create", "source", "--from", &tree.to_string_lossy()]).args(command).limit(120).ok();
    eventually("they listen", || sandbox.exec_sh("source", "test -s /tmp/up").run().code() == 0);
    let look =
        |name: &str| sandbox.exec_sh(name, "cd /tmp/s; stat -c '%n %F %a' * */*; cat gone; test ! -e early").ok();
    let before = look("source");
    clone(sandbox);
    for name in ["source", "clone"] {
        for path in NAMES.map(|path| format!("/tmp/s/{path}")) {
            let said = sandbox.pando(["exec", name, "--", "/usr/bin/python3", "-E", "-s", "-c", ASK, &path]).ok();
            assert_eq!(said, path, "in {name}");
        }
        assert_eq!(look(name), before, "in {name}");
    }
}

fn in_memory(sandbox: &Sandbox) {
    guest(sandbox, &["memory", "/dev/shm"]);
    clone(sandbox);
    let look = "cd /dev/shm; stat -c '%n %h %X %Y' one two one.d; echo more >>one; cat two";
    let wanted = "one 2 1000000000 1000000007\ntwo 2 1000000000 1000000007\none.d 2 1000000000 1000000007\none\nmore\n";
    assert_eq!(sandbox.exec_sh("clone", look).ok(), wanted);
    assert_eq!(sandbox.exec_sh("source", "cat /dev/shm/two").ok(), "one\n");
}

fn lost_in_memory(sandbox: &Sandbox) {
    guest(sandbox, &["memory", "/dev/shm"]);
    sandbox.exec_sh("source", "touch /dev/shm/caf$(printf '\\351')").ok();
    let ended = sandbox.pando(["freeze", "source", "image", "--memory"]).run();
    assert_eq!(ended.code(), 125);
    let wanted = "a file in memory whose name is not UTF-8 (/dev/shm/caf";
    assert!(ended.err().contains(wanted), "{}", ended.err());
    sandbox.exec_sh("source", "rm /dev/shm/caf*").ok();
    clone(sandbox);
}

fn dead(sandbox: &Sandbox) {
    guest(sandbox, &["dead"]);
    clone(sandbox);
    for name in ["source", "clone"] {
        sandbox.exec_sh(name, "touch /go").ok();
        eventually("it has asked", || said(sandbox, name) != "ready");
        assert_eq!(said(sandbox, name), "9 11 15 13 3328", "in the {name}");
    }
}

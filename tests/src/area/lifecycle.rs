//! create, start, stop, restart, kill, rm: the life of a guest that lasts.

use crate::case::{Case, Tag, skip};
use crate::line::Line;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::world::World;
use pando_kernel::cgroup::Hierarchies;
use pando_kernel::trace::foreign_memory::{Shared, compare};
use std::cmp::Ordering;

const VM: &[Tag] = &[Tag::Vm];

pub(crate) const CASES: &[Case] = &[
    Case::new("lifecycle::from_create_to_rm", from_create_to_rm).tags(VM),
    Case::new("lifecycle::files_outlive_a_restart", files_outlive_a_restart),
    Case::new("lifecycle::a_command_runs_and_its_exit_code_is_kept", a_command_runs_and_its_exit_code_is_kept),
    Case::new("lifecycle::stop_asks_and_then_kills", stop_asks_and_then_kills),
    Case::new("lifecycle::stop_uses_the_guests_own_signal", stop_uses_the_guests_own_signal),
    Case::new("lifecycle::kill_kills_and_sends_signals", kill_kills_and_sends_signals),
    Case::new("lifecycle::several_guests_at_once", several_guests_at_once),
    Case::new("lifecycle::from_a_tarball", from_a_tarball),
    Case::new("lifecycle::from_another_guest", from_another_guest),
    Case::new("lifecycle::from_the_host", from_the_host),
    Case::new("lifecycle::started_with_create", started_with_create),
    Case::new("lifecycle::rm_leaves_nothing", rm_leaves_nothing).tags(VM),
    Case::new("lifecycle::what_has_ended_keeps_nothing_of_the_kernel", what_has_ended_keeps_nothing_of_the_kernel)
        .tags(VM),
    Case::new("lifecycle::what_waits_with_a_guest_has_one_memory", what_waits_with_a_guest_has_one_memory).tags(VM),
    Case::new("lifecycle::an_own_init_is_process_one", an_own_init_is_process_one).tags(VM),
    Case::new("lifecycle::orphans_are_reaped", orphans_are_reaped),
    Case::new("lifecycle::what_is_being_done_ends_with_the_guest", what_is_being_done_ends_with_the_guest),
    Case::new("lifecycle::a_command_that_does_not_begin_is_given_up", a_command_that_does_not_begin_is_given_up),
];

fn from_create_to_rm(sandbox: &Sandbox) {
    sandbox.pando(["create", "web", "--from", sandbox.busybox()]).run().succeeded().says("web\n");
    assert_eq!(sandbox.state("web"), "stopped");
    sandbox.pando(["start", "web"]).run().succeeded().says("web\n");
    assert_eq!(sandbox.state("web"), "running");
    let first = sandbox.first_process("web");
    sandbox.pando(["restart", "web"]).ok();
    assert_eq!(sandbox.state("web"), "running");
    assert_ne!(sandbox.first_process("web"), first);
    sandbox.pando(["stop", "web"]).run().succeeded().says("web\n");
    assert_eq!(sandbox.state("web"), "stopped");
    sandbox.pando(["stop", "web"]).ok();
    sandbox.pando(["rm", "web"]).run().succeeded().says("web\n");
    assert_eq!(sandbox.state("web"), "absent");
}

fn files_outlive_a_restart(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    sandbox.exec_sh("web", "echo kept >/srv/kept; rm /etc/hostname; : >/dev/shm/gone").ok();
    sandbox.pando(["restart", "web"]).ok();
    sandbox.exec_sh("web", "cat /srv/kept; ls /etc/hostname /dev/shm/gone 2>/dev/null").run().says("kept\n");
    sandbox.pando(["stop", "web"]).ok();
    sandbox.end_daemon();
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", "cat /srv/kept").run().succeeded().says("kept\n");
}

fn a_command_runs_and_its_exit_code_is_kept(sandbox: &Sandbox) {
    sandbox.guest("job", &["--", "sh", "-c", "echo at work; echo trouble >&2; exit 7"]);
    sandbox.becomes("job", "stopped");
    assert_eq!(sandbox.status("job").expect("it is there")["exit_code"], 7);
    sandbox.pando(["logs", "job"]).run().succeeded().says("at work\ntrouble\n");
    sandbox.end_daemon();
    assert_eq!(sandbox.status("job").expect("it is there")["exit_code"], 7);
    sandbox.pando(["start", "job"]).ok();
    sandbox.becomes("job", "stopped");
    sandbox.pando(["logs", "job"]).run().succeeded().says("at work\ntrouble\nat work\ntrouble\n");
}

fn stop_asks_and_then_kills(sandbox: &Sandbox) {
    let polite = "trap 'echo asked; exit 3' TERM; : >/ready; while :; do sleep 0.1; done";
    sandbox.guest("polite", &["--", "sh", "-c", polite]);
    sandbox.exec_sh("polite", "until [ -e /ready ]; do sleep 0.1; done").ok();
    sandbox.pando(["stop", "polite"]).ok();
    assert_eq!(sandbox.status("polite").expect("it is there")["exit_code"], 3);
    sandbox.pando(["logs", "polite"]).run().says("asked\n");
    let stubborn = "trap '' TERM; : >/ready; while :; do sleep 0.1; done";
    sandbox.guest("stubborn", &["--", "sh", "-c", stubborn]);
    sandbox.exec_sh("stubborn", "until [ -e /ready ]; do sleep 0.1; done").ok();
    sandbox.pando(["stop", "--time", "1", "stubborn"]).ok();
    let status = sandbox.status("stubborn").expect("it is there");
    assert_eq!((status["state"].as_str(), status["exit_code"].as_i64()), (Some("stopped"), Some(137)));
}

fn stop_uses_the_guests_own_signal(sandbox: &Sandbox) {
    let script = "trap 'exit 4' USR1; trap '' TERM; : >/ready; while :; do sleep 0.1; done";
    sandbox.guest("own", &["--stop-signal", "USR1", "--", "sh", "-c", script]);
    sandbox.exec_sh("own", "until [ -e /ready ]; do sleep 0.1; done").ok();
    sandbox.pando(["stop", "own"]).ok();
    assert_eq!(sandbox.status("own").expect("it is there")["exit_code"], 4);
}

fn kill_kills_and_sends_signals(sandbox: &Sandbox) {
    let script = "trap 'echo heard' HUP; : >/ready; while :; do sleep 0.1; done";
    sandbox.guest("web", &["--", "sh", "-c", script]);
    sandbox.exec_sh("web", "until [ -e /ready ]; do sleep 0.1; done").ok();
    sandbox.pando(["kill", "--signal", "HUP", "web"]).ok();
    eventually("the signal is heard", || sandbox.pando(["logs", "web"]).ok() == "heard\n");
    sandbox.pando(["kill", "web"]).ok();
    sandbox.becomes("web", "stopped");
    assert_eq!(sandbox.status("web").expect("it is there")["exit_code"], 137);
}

fn several_guests_at_once(sandbox: &Sandbox) {
    for name in ["a", "b", "c"] {
        sandbox.create(name, &[]);
    }
    sandbox.pando(["start", "a", "b", "c"]).run().succeeded().says("a\nb\nc\n");
    let ended = sandbox.pando(["stop", "a", "nobody", "c"]).run();
    ended.ended_with(125).complains_of(&["nobody"]).says("a\nc\n");
    assert_eq!((sandbox.state("a"), sandbox.state("b")), ("stopped".to_owned(), "running".to_owned()));
    sandbox.pando(["rm", "-f", "a", "b", "c"]).run().succeeded().says("a\nb\nc\n");
    assert_eq!(sandbox.pando(["ls", "-q"]).ok(), "");
}

fn from_a_tarball(sandbox: &Sandbox) {
    for (option, name) in [("-cf", "root.tar"), ("-czf", "root.tar.gz")] {
        let file = sandbox.scratch().join(name);
        Line::new("tar").args(["-C", sandbox.busybox(), option]).args([file.as_os_str()]).args(["."]).ok();
        let file = file.to_string_lossy().into_owned();
        sandbox.pando(["create", "tarred", "--from", &file, "--start"]).ok();
        sandbox.exec_sh("tarred", "cat /etc/hostname; stat -c %u:%g /home/ada").run().says("tree\n1000:1000\n");
        sandbox.pando(["run", "--from", &file, "--", "cat", "/etc/hostname"]).run().succeeded().says("tree\n");
        sandbox.pando(["rm", "-f", "tarred"]).ok();
    }
}

fn from_another_guest(sandbox: &Sandbox) {
    sandbox.guest("first", &[]);
    sandbox.exec_sh("first", "echo of the first >/srv/x; chown ada /srv/x; rm /etc/hostname").ok();
    let running = sandbox.pando(["create", "second", "--from", "guest:first"]).run();
    running.ended_with(125).complains_of(&["first", "running"]);
    sandbox.pando(["stop", "first"]).ok();
    sandbox.pando(["create", "second", "--from", "guest:first", "--start"]).ok();
    sandbox.pando(["rm", "first"]).ok();
    sandbox.exec_sh("second", "cat /srv/x; stat -c %U /srv/x; ls /etc/hostname").run().says("of the first\nada\n");
}

fn from_the_host(sandbox: &Sandbox) {
    // A copy of a whole host is large; a guest in a guest's stead is not: the host of this test is only asked for what
    // it says at once.
    let ended = sandbox.pando(["run", "--from", "host", "--", "sh", "-c", "echo $((6 * 7))"]).run();
    ended.succeeded().says("42\n");
}

fn started_with_create(sandbox: &Sandbox) {
    sandbox.create("web", &["--start", "--", "sleep", "1000"]);
    assert_eq!(sandbox.state("web"), "running");
    let sleeps = sandbox.processes().into_iter().any(|process| process.words.iter().any(|word| word == "sleep"));
    assert!(sleeps, "its command does not run");
}

fn rm_leaves_nothing(sandbox: &Sandbox) {
    sandbox.create("stays", &[]);
    let before = World::of(sandbox);
    sandbox.guest("goes", &["--", "sleep", "1000"]);
    sandbox.exec_sh("goes", "mkdir -p /a/b/c; echo x >/a/b/c/d; chmod 000 /a/b; sleep 1000 >/dev/null 2>&1 &").ok();
    sandbox.pando(["rm", "goes"]).run().ended_with(125).complains_of(&["goes", "running", "--force"]);
    assert_eq!(sandbox.state("goes"), "running");
    sandbox.pando(["rm", "--force", "goes"]).ok();
    before.is_unchanged(sandbox, "after create, start, exec and rm");
}

/// A process that nobody asked after keeps its groups, its namespaces and its task in the kernel, and no listing shows
/// the groups.
fn what_has_ended_keeps_nothing_of_the_kernel(sandbox: &Sandbox) {
    let hierarchies = Hierarchies::detect().expect("the mounts");
    if hierarchies.unified_controllers().iter().any(|controller| controller == "memory") {
        skip("here a group also stays for as long as the page cache has pages that its guest was the first to read");
    }
    let unified = hierarchies.unified.expect("a hierarchy of version 2");
    let names = ["one", "two", "three", "four", "five"];
    for name in names {
        sandbox.guest(name, &[]);
    }
    sandbox.pando(["stop"].into_iter().chain(names)).ok();
    let statistics = unified.join(sandbox.places().field()).join("cgroup.stat");
    let dying = || {
        let text = std::fs::read_to_string(&statistics).expect("what the kernel counts");
        let count = text.lines().find_map(|line| line.strip_prefix("nr_dying_descendants ")).expect("those that die");
        count.parse::<u32>().expect("a number")
    };
    eventually("the kernel has let go of their groups", || dying() == 0);
}

/// The shim and the first process, which a guest has beside its own: page tables, stacks and all that there is of a
/// process's memory in the kernel are there once.
fn what_waits_with_a_guest_has_one_memory(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    sandbox.pando(["freeze", "web", "image"]).ok();
    sandbox.pando(["clone", "image", "twin"]).ok();
    for name in ["web", "twin"] {
        let first = sandbox.first_process(name);
        let shim = process::parent(first).expect("its first process has a parent");
        let same = |other| compare(Shared::Memory, (first, 0), (other, 0)).map(Ordering::is_eq);
        assert!(same(shim).unwrap(), "{name}");
        assert!(
            process::all().iter().all(|other| [first, shim].contains(&other.pid) || !same(other.pid).unwrap_or(false))
        );
        sandbox.exec_sh(name, "cat /proc/1/maps; echo done").run().says("done\n");
    }
}

fn an_own_init_is_process_one(sandbox: &Sandbox) {
    let init = "#!/bin/sh\ntrap 'exit 0' TERM\necho \"init $$\" >/pid\nwhile :; do sleep 0.1; done\n";
    sandbox.create("none", &["--init", "/bin/own-init"]);
    sandbox.pando(["start", "none"]).run().ended_with(125).complains_of(&["none", "/bin/own-init"]);
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    std::fs::write(tree.join("bin/own-init"), init).expect("a file");
    Line::new("chmod").args([std::ffi::OsStr::new("755"), tree.join("bin/own-init").as_os_str()]).ok();
    let tree = tree.to_string_lossy().into_owned();
    sandbox
        .pando(["create", "own", "--from", &tree, "--init", "/bin/own-init", "--stop-signal", "TERM", "--start"])
        .ok();
    let said = || sandbox.exec_sh("own", "cat /pid; cat /proc/1/comm").run().out();
    eventually("its init has said its number", || said() == "init 1\nown-init\n");
    sandbox.pando(["stop", "own"]).ok();
    assert_eq!(sandbox.state("own"), "stopped");
}

fn orphans_are_reaped(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    sandbox.exec_sh("web", "for i in 1 2 3 4 5; do (sh -c 'sleep 0.1 & sleep 0.1 &' &) ; done").ok();
    let rest =
        || sandbox.processes().into_iter().filter(|process| process.words.iter().any(|word| word == "sleep")).count();
    eventually("no orphan runs", || rest() == 0);
    let first = sandbox.first_process("web");
    let children = || std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap_or_default();
    eventually("no orphan is left unreaped", || {
        children().split_whitespace().all(|pid| pid.parse().is_ok_and(process::is_alive)) && children().is_empty()
    });
}

/// Something that a guest does itself before it is frozen, which takes longer than anybody waits for it.
const HELD_UP: &str = "mkdir -p /etc/pando/freeze.d; printf '#!/bin/sh\\nsleep 50\\n' >/etc/pando/freeze.d/long; \
                       chmod 755 /etc/pando/freeze.d/long";

fn what_is_being_done_ends_with_the_guest(sandbox: &Sandbox) {
    for (name, ended) in [("removed", &["rm", "--force"][..]), ("stopped", &["stop", "-t", "1"]), ("killed", &["kill"])]
    {
        sandbox.guest(name, &["--", "sleep", "1000"]);
        sandbox.exec_sh(name, HELD_UP).ok();
        let mut freezing = sandbox.pando(["freeze", name]).limit(45).start();
        eventually("it is being frozen", || sandbox.pando(["ps", name]).ok().contains("sleep 50"));
        assert!(!freezing.has_ended());
        // Whoever does not want it to end is still asked to wait.
        sandbox.pando(["rm", name]).run().ended_with(125).complains_of(&["is being frozen"]);
        sandbox.pando(ended.iter().chain([&name])).limit(30).ok();
        let frozen = freezing.wait();
        assert_ne!(frozen.code(), 0, "{}", frozen.out());
        sandbox.pando(["rm", "--force", name]).run();
        assert_eq!(sandbox.state(name), "absent");
        // Nothing is kept of it.
        sandbox.guest(name, &["--", "sleep", "1000"]);
        sandbox.pando(["rm", "--force", name]).ok();
    }
}

/// Processes of a guest whose group stands still are not begun, by whoever it is that holds it.
fn a_command_that_does_not_begin_is_given_up(sandbox: &Sandbox) {
    let hierarchies = Hierarchies::detect().expect("mounts can be read");
    let Some(root) = hierarchies.unified else { skip("there is no group of version 2") };
    sandbox.guest("web", &["--", "sleep", "1000"]);
    let pid = sandbox.first_process("web");
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    let path = text.lines().find_map(|line| line.strip_prefix("0::/")).expect("it has a group of version 2");
    let freeze = root.join(path).join("cgroup.freeze");
    std::fs::write(&freeze, "1").expect("a group can be stopped");
    let mut waiting = sandbox.pando(["exec", "web", "--", "true"]).limit(45).start();
    // Until then they end it as they end any program.
    let holds_term = |set: String| u64::from_str_radix(&set, 16).is_ok_and(|set| set & 1 << 14 != 0);
    eventually("it takes signals", || process::status(waiting.pid(), "SigBlk").is_some_and(holds_term));
    waiting.signal(rustix::process::Signal::TERM);
    waiting.signal(rustix::process::Signal::INT);
    eventually("it ends", || waiting.has_ended());
    // Its output is open in what has not begun.
    std::fs::write(&freeze, "0").expect("a group can go on");
    waiting.wait().ended_with(125).complains_of(&["has not begun"]);
}

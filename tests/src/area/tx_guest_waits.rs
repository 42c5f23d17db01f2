//! Processes that are started in a guest while it stands still for a transaction: nobody waits for them, and they wait
//! no longer than has to be.

use crate::case::Case;
use crate::line::{Line, Started};
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use rustix::process::Signal;
use std::path::PathBuf;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_guest_waits::one_that_stands_still_holds_up_no_other", holds_up_nobody),
    Case::new("tx_guest_waits::execs_beside_a_transaction_that_has_the_guest_to_itself", beside_one_alone),
    Case::new("tx_guest_waits::the_time_limit_ends_a_start_that_nobody_answers", unanswered),
    Case::new("tx_guest_waits::the_time_limit_ends_the_wait_for_another", behind_another),
];

/// The group of a guest's own processes.
fn group(sandbox: &Sandbox) -> PathBuf {
    let groups = sandbox.inspect("g")["cgroups"].clone();
    let paths = groups.as_array().expect("it has groups").iter().filter_map(|path| path.as_str());
    let mut paths = paths.map(|path| PathBuf::from(path).join("guest"));
    paths.find(|path| path.join("cgroup.freeze").exists()).expect("one of them can be frozen")
}

fn freeze(group: &std::path::Path, frozen: &str) {
    std::fs::write(group.join("cgroup.freeze"), frozen).expect("a group can be frozen");
}

/// A process of the guest's that was started while that stands still, and has not taken a step.
fn standing_still(sandbox: &Sandbox, group: &std::path::Path, script: &str) -> Started {
    let count = || std::fs::read_to_string(group.join("cgroup.procs")).map_or(0, |text| text.lines().count());
    let before = count();
    let started = sandbox.exec_sh("g", script).start();
    eventually("a process is born in the frozen group", || count() > before);
    started
}

fn tx(sandbox: &Sandbox, words: &[&str]) -> Line {
    sandbox.pando(["tx"]).args(words)
}

fn holds_up_nobody(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    tx(sandbox, &["begin", "--guest", "g", "work"]).ok();
    let group = group(sandbox);
    freeze(&group, "1");
    let [one, other] = ["echo one", "echo other"].map(|script| standing_still(sandbox, &group, script));
    // What belongs to the transaction does not stand still.
    let entered = tx(sandbox, &["enter", "--guest", "g", "work", "--", "sh", "-c", "echo in >/srv/in; cat /srv/in"]);
    assert_eq!(entered.limit(20).ok(), "in\n");
    freeze(&group, "0");
    one.wait().succeeded().says("one\n");
    other.wait().succeeded().says("other\n");
    tx(sandbox, &["commit", "--guest", "g", "work"]).ok();
    assert_eq!(sandbox.exec_sh("g", "cat /srv/in").ok(), "in\n");
}

fn beside_one_alone(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    sandbox.exec_sh("g", "echo 0 >/srv/x").ok();
    for round in 0..4 {
        let script = "cat /srv/x >/dev/null; sleep .15; echo $$ >/srv/y";
        let run = tx(sandbox, &["run", "--guest", "g", "--timeout", "15", "--retry", "0", "--", "sh", "-c", script]);
        let run = run.limit(30).start();
        let beside: Vec<Started> = (0..8)
            .map(|number| {
                std::thread::sleep(std::time::Duration::from_millis(30));
                sandbox.exec_sh("g", &format!("echo {round}.{number} >/srv/x")).start()
            })
            .collect();
        run.wait().succeeded().complains_of(&["committed"]);
        beside.into_iter().for_each(|exec| drop(exec.wait().succeeded()));
    }
}

/// Lets a process that stands still go on.
struct Stopped(i32);

impl Drop for Stopped {
    fn drop(&mut self) {
        process::signal(self.0, Signal::CONT);
    }
}

/// The process that starts all others does nothing.
fn unanswered(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    let first = sandbox.first_process("g");
    let seed = process::parent(first).expect("a guest's first process has a parent");
    let stopped = Stopped(seed);
    process::signal(seed, Signal::STOP);
    // What it says goes to a file: a copy of its output is on the way to whoever stands still.
    let script = "\"$PANDO\" --root \"$ROOT\" tx run --guest g --timeout 0.5 -- sh -c 'echo in >/srv/in' >said 2>&1; echo $?; cat said";
    let run = Line::new("sh").args(["-c", script]).directory(sandbox.scratch());
    let run = run.env("PANDO", sandbox.program()).env("ROOT", sandbox.root()).limit(20).run();
    drop(stopped);
    let out = run.out();
    assert!(out.starts_with("125\n") && out.contains("aborted: it took too long"), "{out}");
    assert_eq!(sandbox.exec_sh("g", "ls /srv").limit(20).ok(), "");
    let run = tx(sandbox, &["run", "--guest", "g", "--", "sh", "-c", "echo in >/srv/in"]);
    run.limit(20).run().succeeded();
}

/// One that has the guest to itself has no end.
fn behind_another(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    sandbox.exec_sh("g", "echo 0 >/srv/x").ok();
    let script = "cat /srv/x >/dev/null; echo >/srv/read; test -e /srv/again && exec sleep 1000; sleep 1";
    let alone = tx(sandbox, &["run", "--guest", "g", "--retry", "0", "--", "sh", "-c", script]).start();
    let at = sandbox.places().guests().join("g/tx");
    let read =
        || Line::new("find").args([at.as_path()]).args(["-path", "*/upper/srv/read"]).run().out().contains("read");
    eventually("it has read", read);
    sandbox.exec_sh("g", "echo 1 >/srv/x; touch /srv/again").ok();
    let group = group(sandbox);
    let is_frozen = || std::fs::read_to_string(group.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1");
    eventually("it has the guest to itself", is_frozen);
    let run = tx(sandbox, &["run", "--guest", "g", "--timeout", "0.5", "--", "true"]);
    run.limit(20).run().ended_with(125).complains_of(&["another transaction held it all the time"]);
    alone.signal(Signal::KILL);
    alone.wait().ended_with(137);
    eventually("the guest goes on", || !is_frozen());
    assert_eq!(sandbox.exec_sh("g", "cat /srv/x").limit(20).ok(), "1\n");
}

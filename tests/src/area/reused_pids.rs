//! The kernel gives pids again. A guest's processes end when the guest likes, between two steps of the daemon, and
//! their pids go to others of the host, who are nobody's part.

use crate::area::crash::daemon_with;
use crate::case::{Case, skip};
use crate::line::{Line, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use rustix::process::Signal;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("reused_pids::no_command_is_executed_on_the_host", exec_on_the_host),
    Case::new("reused_pids::no_setting_of_the_hosts_is_changed", setting_of_the_hosts)
        .needs(&[Need::Program("unshare", "util-linux"), Need::Program("nsenter", "util-linux")]),
    Case::new("reused_pids::no_process_of_the_hosts_gets_a_clients_signal", clients_signal),
    Case::new("reused_pids::no_process_of_the_hosts_is_ended_for_a_guests_files", guests_files),
];

/// The last pid that was given; root may set it.
const LAST: &str = "/proc/sys/kernel/ns_last_pid";

/// Has a line be the process that has a pid, once whoever has it has gone.
fn taken(pid: i32, words: &[&str]) -> Started {
    eventually("its pid is free", || !Path::new(&format!("/proc/{pid}")).exists());
    // Others take pids as well.
    for _ in 0..1000 {
        if Path::new(&format!("/proc/{pid}")).exists() {
            skip("another process of this machine took the pid first");
        }
        std::fs::write(LAST, (pid - 1).to_string()).unwrap();
        let started = Line::new(words[0]).args(&words[1..]).start();
        if started.pid() == pid {
            return started;
        }
    }
    skip("the pid is not to be had: processes begin too fast on this machine")
}

fn can_give_pids() {
    if !Path::new(LAST).exists() {
        skip("the kernel does not say which pid was the last (CONFIG_CHECKPOINT_RESTORE)");
    }
}

/// A daemon that pauses at a step, until it is let go on.
fn paused_at(sandbox: &Sandbox, step: &str) -> Started {
    sandbox.end_daemon();
    daemon_with(sandbox, "PANDO_PAUSE_AT", step)
}

fn await_pause(daemon: &Started, step: &str) {
    eventually(&format!("the daemon pauses at {step}"), || process::state(daemon.pid()) == Some('T'));
}

fn end(sandbox: &Sandbox, daemon: Started) {
    sandbox.end_daemon();
    daemon.wait().succeeded();
}

/// With the host's ids a guest's shim may enter the namespaces of the host's root.
fn exec_on_the_host(sandbox: &Sandbox) {
    can_give_pids();
    sandbox.guest("web", &["--userns", "host"]);
    let first = sandbox.first_process("web");
    let (step, marker) = ("exec.begun", sandbox.scratch().join("marker"));
    let daemon = paused_at(sandbox, step);
    let exec = sandbox.exec_sh("web", &format!("echo was here >{}", marker.display())).start();
    await_pause(&daemon, step);
    process::kill(first);
    let other = taken(first, &["sleep", "1000"]);
    daemon.signal(Signal::CONT);
    exec.wait().ended_with(125).complains_of(&["web"]);
    assert!(!marker.exists(), "it was executed among the host's files");
    sandbox.becomes("web", "stopped");
    end(sandbox, daemon);
    assert!(process::is_alive(first));
    drop(other);
}

fn setting_of_the_hosts(sandbox: &Sandbox) {
    can_give_pids();
    sandbox.guest("web", &["--userns", "host", "--sysv-shm", "64M"]);
    let first = sandbox.first_process("web");
    let step = "set.applied";
    let daemon = paused_at(sandbox, step);
    let set = sandbox.pando(["set", "web", "memory.sysv=32M"]).start();
    await_pause(&daemon, step);
    process::kill(first);
    // In a namespace of its own: the machine's is left alone, whatever becomes of the test.
    let script = "trap 'cat /proc/sys/kernel/shmall' TERM; echo there; while :; do sleep 0.1; done";
    let other = taken(first, &["unshare", "--ipc", "sh", "-c", script]);
    let own = || std::fs::read_link("/proc/self/ns/ipc").unwrap();
    eventually("it has a namespace of its own", || {
        std::fs::read_link(format!("/proc/{first}/ns/ipc")).is_ok_and(|ipc| ipc != own())
            && std::fs::read_to_string(format!("/proc/{first}/comm")).is_ok_and(|name| name == "sh\n")
    });
    daemon.signal(Signal::CONT);
    set.wait();
    let bounded = (32 << 20) / rustix::param::page_size();
    let setting = Line::new("nsenter").args(["-t", &first.to_string(), "--ipc", "cat", "/proc/sys/kernel/shmall"]).ok();
    assert_ne!(setting.trim(), bounded.to_string());
    sandbox.becomes("web", "stopped");
    end(sandbox, daemon);
    drop(other);
}

/// The process of a guest's that runs a program with some words.
fn inside(sandbox: &Sandbox, program: &str, words: &str) -> Option<i32> {
    let is_it = |one: &process::Process| one.words[0] == program && one.words.iter().any(|word| word.contains(words));
    sandbox.processes().into_iter().find(is_it).map(|one| one.pid)
}

/// Whether a process handles SIGTERM.
fn is_caught(pid: i32) -> bool {
    let set = process::status(pid, "SigCgt").and_then(|set| u64::from_str_radix(&set, 16).ok());
    set.is_some_and(|set| set & 1 << (Signal::TERM.as_raw() - 1) != 0)
}

fn clients_signal(sandbox: &Sandbox) {
    can_give_pids();
    sandbox.guest("web", &[]);
    let step = "signal.found";
    let daemon = paused_at(sandbox, step);
    let exec = sandbox.exec_sh("web", "trap : TERM; echo up; while :; do sleep 0.1; done").start();
    let theirs = || inside(sandbox, "sh", "trap : TERM").filter(|pid| is_caught(*pid));
    eventually("it runs", || theirs().is_some());
    let pid = theirs().unwrap();
    exec.signal(Signal::TERM);
    await_pause(&daemon, step);
    process::kill(pid);
    let other = taken(pid, &["sleep", "1000"]);
    daemon.signal(Signal::CONT);
    exec.wait().ended_with(137);
    assert!(process::is_alive(pid), "another process got the signal");
    end(sandbox, daemon);
    drop(other);
}

/// It opens more files than the whole guest may have.
const GREEDY: &str =
    "i=3; while [ $i -lt 103 ]; do eval \"exec $i</dev/null\" || exit 7; i=$((i+1)); done; exec sleep 1234";

fn guests_files(sandbox: &Sandbox) {
    can_give_pids();
    let step = "files.counted";
    let daemon = paused_at(sandbox, step);
    sandbox.guest("web", &["--files-total", "50"]);
    let greedy = sandbox.exec_sh("web", GREEDY).start();
    await_pause(&daemon, step);
    let pid = inside(sandbox, "sleep", "1234").unwrap();
    process::kill(pid);
    let other = taken(pid, &["sleep", "1000"]);
    daemon.signal(Signal::CONT);
    greedy.wait();
    // It has looked again by then.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(process::is_alive(pid), "a process of the host's was killed for a guest's files");
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    end(sandbox, daemon);
    drop(other);
}

//! `pando move`: processes of one guest go on in another.

use super::attacks::races::{directory_of, exchanging};
use super::limits::{hog, stats};
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[
    Case::new("moving::a_server_goes_on_in_another_guest", a_server_goes_on_in_another_guest),
    Case::new("moving::what_cannot_be_moved_runs_on", what_cannot_be_moved_runs_on),
    Case::new("moving::who_has_mounts_of_its_own_stays", who_has_mounts_of_its_own_stays),
    Case::new("moving::a_python_server_keeps_what_it_has", a_python_server_keeps_what_it_has)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("moving::what_was_moved_counts_where_it_is", what_was_moved_counts_where_it_is)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("moving::what_is_a_pipe_by_then_is_not_waited_for", what_is_a_pipe_by_then_is_not_waited_for),
    Case::new("moving::what_has_no_room_there_runs_on", what_has_no_room_there_runs_on),
];

/// Counts in a variable, and writes that to a file that it holds open, and to one by name.
const COUNTER: &str = "exec 5>>/var/held; n=0; while :; do n=$((n+1)); echo $n >&5; echo $n >/count.new; mv /count.new /count; sleep 0.02; done";

/// The pid on the host of the process of a guest whose command begins so.
#[track_caller]
fn pid(sandbox: &Sandbox, guest: &str, begins: &str) -> i64 {
    let mut found = None;
    eventually("the process is there", || {
        let listed = sandbox.pando(["ps", "--json", guest]).ok();
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("a list");
        let ours =
            |one: &&serde_json::Value| one["command"].as_str().is_some_and(|command| command.starts_with(begins));
        found = listed.as_array().expect("an array").iter().find(ours).and_then(|one| one["host_pid"].as_i64());
        found.is_some()
    });
    found.expect("it was found")
}

fn has(sandbox: &Sandbox, guest: &str, begins: &str) -> bool {
    sandbox.pando(["ps", guest]).ok().contains(begins)
}

/// A process of a guest's that nothing holds on to.
#[track_caller]
fn set_going(sandbox: &Sandbox, guest: &str, script: &str) {
    let script = format!("cd /; cat >/script <<'END'\n{script}\nEND\nsetsid sh /script </dev/null >/dev/null 2>&1 &");
    sandbox.exec_sh(guest, &script).ok();
}

fn counted(sandbox: &Sandbox, guest: &str) -> u32 {
    sandbox.exec_sh(guest, "cat /count").run().out().trim().parse().unwrap_or(0)
}

fn a_server_goes_on_in_another_guest(sandbox: &Sandbox) {
    sandbox.guest("from", &[]);
    sandbox.guest("into", &[]);
    sandbox.exec_sh("from", "mkdir -p /var").ok();
    set_going(sandbox, "from", COUNTER);
    eventually("it counts", || counted(sandbox, "from") > 5);
    let said = sandbox.pando(["move", &pid(sandbox, "from", "sh /script").to_string(), "--to", "into"]).ok();
    assert!(said.contains("processes") && said.contains("moved from from to into"), "{said}");
    assert!(!has(sandbox, "from", "/script") && has(sandbox, "into", "/script"));
    let there = counted(sandbox, "from");
    eventually("it counts on in the other guest", || counted(sandbox, "into") > there + 5);
    assert_eq!(counted(sandbox, "from"), there, "it does not count on where it was");
    // The file that it holds open came along, and is its own.
    let held =
        |guest: &str| sandbox.exec_sh(guest, "tail -n 1 /var/held").ok().trim().parse::<u32>().expect("a number");
    let (before, after) = (held("from"), held("into"));
    assert!(after > before, "{after} after {before}");
    assert_eq!(held("from"), before);
    assert_eq!(sandbox.exec_sh("into", "head -n 1 /var/held").ok(), "1\n");
    // It is the other guest's: it ends with that, and not with the one that it came from.
    sandbox.pando(["kill", "from"]).ok();
    let there = counted(sandbox, "into");
    eventually("it counts on", || counted(sandbox, "into") > there + 5);
}

/// Somebody in the guest that they are moved into exchanges the program that they run for a pipe that nobody writes to.
fn what_is_a_pipe_by_then_is_not_waited_for(sandbox: &Sandbox) {
    const TRIES: usize = 20;
    sandbox.guest("from", &[]);
    sandbox.guest("into", &["--profile", "strict"]);
    let programs = directory_of(sandbox, "into", "bin");
    sandbox.exec_sh("into", "mkfifo /bin/pipe; chmod 755 /bin/pipe").ok();
    exchanging(&programs, ["busybox", "pipe"], &[Duration::ZERO], || {
        for _ in 0..TRIES {
            if !has(sandbox, "from", "sh /script") {
                set_going(sandbox, "from", "while :; do sleep 100; done");
            }
            // Whether or not they can be moved: it ends.
            let pid = pid(sandbox, "from", "sh /script").to_string();
            sandbox.pando(["move", &pid, "--to", "into"]).limit(20).run();
        }
    });
    sandbox.pando(["rm", "--force", "from", "into"]).ok();
}

fn what_cannot_be_moved_runs_on(sandbox: &Sandbox) {
    sandbox.guest("from", &[]);
    sandbox.guest("into", &[]);
    sandbox.exec_sh("from", "mkdir -p /var").ok();
    set_going(sandbox, "from", COUNTER);
    eventually("it counts", || counted(sandbox, "from") > 5);
    let process = pid(sandbox, "from", "sh /script").to_string();
    let runs_on = |what: &str| {
        let before = counted(sandbox, "from");
        eventually(what, || counted(sandbox, "from") > before + 3);
    };
    let refused = |words: &[&str], complaints: &[&str]| {
        sandbox.pando(words).run().ended_with(125).complains_of(complaints);
        runs_on("what was refused runs on");
    };
    refused(&["move", &process, "--to", "from"], &["from", "already"]);
    refused(&["move", &process, "--to", "none"], &["none"]);
    refused(&["move", &std::process::id().to_string(), "--to", "into"], &["of no guest"]);
    let first = sandbox.first_process("from").to_string();
    refused(&["move", &first, "--to", "into"], &["cannot be moved"]);
    // Somebody there has another file of the name that it holds open.
    sandbox.exec_sh("into", "mkdir -p /var; echo other >/var/held").ok();
    refused(&["move", &process, "--to", "into"], &["/var/held", "another"]);
    let _ = sandbox.exec_sh("into", "rm /var/held; mv /bin/busybox /bin/busybox.away").run();
    refused(&["move", &process, "--to", "into"], &["busybox", "lacks"]);
}

/// Keeps a word in memory and a file open, and serves both.
const SERVER: &str = r#"
import socket, threading
word = "word of mine"
file = open("/var/tmp/notes", "a+")
file.write("noted\n"); file.flush()
threading.Thread(target=threading.Event().wait, daemon=True).start()
server = socket.create_server(("127.0.0.1", 7000))
count = 0
while True:
    client, _ = server.accept()
    count += 1
    file.seek(0)
    client.send(f"{word} {count} {file.read().strip()} {threading.active_count()}".encode())
    client.close()
"#;

/// What it has is made of the mounts of the guest that it is in.
fn who_has_mounts_of_its_own_stays(sandbox: &Sandbox) {
    sandbox.guest("from", &["--profile", "system"]);
    sandbox.guest("into", &["--profile", "system"]);
    set_going(
        sandbox,
        "from",
        &format!("exec unshare -m sh -c 'mkdir -p /srv; mount -t tmpfs tmpfs /srv; {COUNTER}' apart"),
    );
    sandbox.exec_sh("from", "mkdir -p /var").ok();
    eventually("it counts", || counted(sandbox, "from") > 5);
    let process = pid(sandbox, "from", "sh -c mkdir").to_string();
    let said = sandbox.pando(["move", &process, "--to", "into"]).run().err();
    assert!(said.contains("a mnt namespace of its own") && said.contains("clone the whole guest"), "{said}");
    let before = counted(sandbox, "from");
    eventually("it runs on", || counted(sandbox, "from") > before);
}

fn a_python_server_keeps_what_it_has(sandbox: &Sandbox) {
    let _guests = ["from", "into"]
        .map(|name| sandbox.pando(["run", "--name", name, "--", "/bin/sleep", "100000"]).limit(600).start());
    for name in ["from", "into"] {
        eventually("the guest runs", || sandbox.state(name) == "running");
    }
    let script = format!(
        "cat >/var/tmp/serve.py <<'END'\n{SERVER}\nEND\ncd /; setsid /usr/bin/python3 /var/tmp/serve.py </dev/null >/dev/null 2>&1 &"
    );
    sandbox.exec_sh("from", &script).ok();
    let ask = |guest: &str| {
        let script = "import socket; s = socket.create_connection(('127.0.0.1', 7000)); print(s.recv(100).decode())";
        sandbox.pando(["exec", guest, "--", "/usr/bin/python3", "-c", script]).run().out()
    };
    eventually("it serves", || ask("from").starts_with("word of mine"));
    let before: u32 = ask("from").split(' ').nth(3).and_then(|count| count.parse().ok()).expect("a count");
    let process = pid(sandbox, "from", "/usr/bin/python3 /var/tmp/serve.py").to_string();
    sandbox.pando(["move", &process, "--to", "into"]).ok();
    assert_eq!(ask("into"), format!("word of mine {} noted 2\n", before + 1));
    assert_eq!(ask("from"), "");
    assert!(!has(sandbox, "from", "serve.py") && has(sandbox, "into", "serve.py"));
}

/// Takes 64 MiB of memory and three threads.
const BIG: &str = r#"
import threading
memory = bytearray(b"x") * (64 << 20)
for _ in range(2): threading.Thread(target=threading.Event().wait, daemon=True).start()
open("/var/tmp/ready", "w").close()
threading.Event().wait()
"#;

/// Bytes of memory that is no page cache, threads, and milliseconds of processor time.
fn used(sandbox: &Sandbox, guest: &str) -> [i64; 3] {
    let now = stats(sandbox, guest)["now"].clone();
    let number = |key: &str| now[key].as_i64().unwrap_or_else(|| panic!("no {key} in {now}"));
    [number("memory") - number("cache"), number("pids"), number("cpu_ms")]
}

fn what_was_moved_counts_where_it_is(sandbox: &Sandbox) {
    const MOST: i64 = 60 << 20;
    let _guests = ["from", "into"].map(|name| {
        sandbox.pando(["run", "--name", name, "--profile", "default", "--", "/bin/sleep", "100000"]).limit(600).start()
    });
    for name in ["from", "into"] {
        eventually("the guest runs", || sandbox.state(name) == "running");
    }
    let start = [used(sandbox, "from"), used(sandbox, "into")];
    let script = format!(
        "cat >/var/tmp/big.py <<'END'\n{BIG}\nEND\ncd /; setsid /usr/bin/python3 /var/tmp/big.py </dev/null >/dev/null 2>&1 &"
    );
    sandbox.exec_sh("from", &script).ok();
    eventually("it has its memory", || sandbox.exec_sh("from", "[ -e /var/tmp/ready ]").run().code() == 0);
    let taken = |guest: &str, at: usize| {
        let now = used(sandbox, guest);
        (now[0] - start[at][0] > MOST, now[1] - start[at][1])
    };
    let counts = |what: &str, from: (bool, i64), into: (bool, i64)| {
        eventually(what, || (taken("from", 0), taken("into", 1)) == (from, into));
    };
    counts("it counts where it began", (true, 3), (false, 0));
    let spent = used(sandbox, "from")[2];
    let process = pid(sandbox, "from", "/usr/bin/python3 /var/tmp/big.py").to_string();
    sandbox.pando(["move", &process, "--to", "into"]).ok();
    counts("it counts where it is now, and there alone", (false, 0), (true, 3));
    assert!(used(sandbox, "from")[2] >= spent, "what it spent was spent there");
    // Back again: it has everything with it.
    let process = pid(sandbox, "into", "/usr/bin/python3 /var/tmp/big.py").to_string();
    sandbox.pando(["move", &process, "--to", "from"]).ok();
    counts("it counts where it began once more", (true, 3), (false, 0));
    sandbox.exec_sh("from", "kill -9 $(cat /proc/[0-9]*/stat | grep python3 | cut -d' ' -f1)").ok();
    counts("what ends counts nowhere", (false, 0), (false, 0));
}

fn what_has_no_room_there_runs_on(sandbox: &Sandbox) {
    sandbox.guest("from", &[]);
    let bounded = |key: &str, value: &str| {
        sandbox.pando(["set", "into", &format!("{key}={value}")]).ok();
    };
    sandbox.guest("into", &["--memory", "16M", "--swap", "0"]);
    let script = format!("{}; {COUNTER}", hog(32));
    sandbox.exec_sh("from", "mkdir -p /var").ok();
    set_going(sandbox, "from", &script);
    eventually("it counts", || counted(sandbox, "from") > 5);
    let process = pid(sandbox, "from", "sh /script").to_string();
    let runs_on = |words: &[&str]| {
        sandbox.pando(["move", &process, "--to", "into"]).run().ended_with(125).complains_of(words);
        let before = counted(sandbox, "from");
        eventually("it runs on", || counted(sandbox, "from") > before + 3);
        assert_eq!(stats(sandbox, "into")["now"]["oom_kills"], 0, "nobody there pays for it");
        assert_eq!(sandbox.state("into"), "running");
    };
    runs_on(&["into", "memory.limit", "16M"]);
    bounded("memory.limit", "256M");
    bounded("pids", "1");
    runs_on(&["into", "pids", "1"]);
    bounded("pids", "");
    sandbox.pando(["move", &process, "--to", "into"]).ok();
    let there = counted(sandbox, "into");
    eventually("it counts on in the other guest", || counted(sandbox, "into") > there + 3);
}

//! What a guest sees of the machine, and the limits that Pando itself looks after: open files in all, figures over
//! HTTP, a disk's size.

use crate::case::{Case, Tag, skip};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::io::{Read, Write};

pub(crate) const CASES: &[Case] = &[
    Case::new("views::a_guest_sees_what_it_may_have", a_guest_sees_what_it_may_have).tags(&[Tag::Vm]),
    Case::new("views::who_is_not_limited_sees_the_host", who_is_not_limited_sees_the_host).tags(&[Tag::Vm]),
    Case::new("views::they_follow_a_change_both_ways", they_follow_a_change_both_ways).tags(&[Tag::Vm]),
    Case::new("views::nobody_hangs_when_the_daemon_dies", nobody_hangs_when_the_daemon_dies).tags(&[Tag::Vm]),
    Case::new("views::they_cannot_be_written", they_cannot_be_written).tags(&[Tag::Vm]),
    Case::new("limits::open_files_in_all_are_bounded", open_files_in_all_are_bounded).tags(&[Tag::Vm]),
    Case::new("limits::a_disk_grows_and_shrinks", a_disk_grows_and_shrinks).tags(&[Tag::Vm]),
    Case::new("limits::use_is_told_over_http", use_is_told_over_http).tags(&[Tag::Vm]),
];

/// A line of the guest's /proc/meminfo, in kilobytes.
fn meminfo(sandbox: &Sandbox, name: &str, key: &str) -> u64 {
    let text = sandbox.exec_sh(name, "cat /proc/meminfo").ok();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_else(|| panic!("no {key} in {text}"))
}

fn host_total() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("the host's");
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("a total");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

fn a_guest_sees_what_it_may_have(sandbox: &Sandbox) {
    sandbox.guest("small", &["--memory", "64M", "--swap", "0", "--cpu-limit", "0.5"]);
    assert_eq!(meminfo(sandbox, "small", "MemTotal"), 65536);
    assert_eq!(meminfo(sandbox, "small", "SwapTotal"), 0);
    assert!(meminfo(sandbox, "small", "MemAvailable") <= 65536);
    let count = |file: &str, pattern: &str| format!("grep -c '{pattern}' {file}");
    sandbox.exec_sh("small", &count("/proc/cpuinfo", "^processor")).run().says("1\n");
    sandbox.exec_sh("small", &count("/proc/stat", "^cpu[0-9]")).run().says("1\n");
    sandbox.exec_sh("small", "cat /sys/devices/system/cpu/online").run().says("0\n");
    sandbox.exec_sh("small", "wc -l </proc/swaps").run().says("1\n");
    let uptime = sandbox.exec_sh("small", "cat /proc/uptime").ok();
    let seconds: f64 = uptime.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(seconds < 600.0, "{uptime}: the guest was just started");
    let load = sandbox.exec_sh("small", "cat /proc/loadavg").ok();
    assert!(load.starts_with("0.") && load.split(' ').count() == 5, "{load}");
    // What is in use is seen, while it is in use: in the same open file too, as top(1) reads it.
    let free = meminfo(sandbox, "small", "MemFree");
    let used = "head -c 24m /dev/zero >/dev/shm/x; cat /proc/meminfo | grep MemFree | tr -dc 0-9; rm /dev/shm/x";
    let left: u64 = sandbox.exec_sh("small", used).ok().parse().expect("a number");
    assert!(left + 20_000 < free, "{left} of {free} kB are free with 24 MB in use");
}

fn who_is_not_limited_sees_the_host(sandbox: &Sandbox) {
    sandbox.guest("plain", &["--pids", "100"]);
    assert_eq!(meminfo(sandbox, "plain", "MemTotal"), host_total());
    sandbox.exec_sh("plain", "grep -c 'proc/meminfo' /proc/self/mountinfo").run().says("0\n");
    assert!(!sandbox.places().run().join("views").exists(), "nothing is made for it");
}

fn they_follow_a_change_both_ways(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    sandbox.pando(["set", "web", "memory.limit=64M"]).ok();
    assert_eq!(meminfo(sandbox, "web", "MemTotal"), 65536);
    sandbox.pando(["set", "web", "memory.limit=128M"]).ok();
    eventually("it sees more", || meminfo(sandbox, "web", "MemTotal") == 131_072);
    sandbox.pando(["set", "web", "memory.limit="]).ok();
    eventually("it sees the host", || meminfo(sandbox, "web", "MemTotal") == host_total());
    sandbox.pando(["restart", "-t", "0", "web"]).ok();
    sandbox.exec_sh("web", "grep -c 'proc/meminfo' /proc/self/mountinfo").run().says("0\n");
}

fn nobody_hangs_when_the_daemon_dies(sandbox: &Sandbox) {
    sandbox.guest("web", &["--memory", "64M"]);
    let endless =
        "while :; do cat /proc/meminfo >/dev/null || exit 7; cat /proc/uptime /proc/stat >/dev/null || exit 8; done";
    let reading = sandbox.exec_sh("web", &format!("touch /reads; {endless}")).start();
    eventually("somebody reads", || sandbox.exec_sh("web", "test -e /reads").run().code() == 0);
    for _ in 0..3 {
        let daemon = sandbox.daemon().expect("it runs");
        let pid = sandbox.first_process("web");
        crate::process::signal(daemon, rustix::process::Signal::KILL);
        eventually("the daemon has gone", || !crate::process::is_alive(daemon));
        // Nobody serves: what is read is what was true last.
        let text = std::fs::read_to_string(format!("/proc/{pid}/root/proc/meminfo")).expect("it can be read");
        assert!(text.contains("MemTotal:          65536 kB"), "{text}");
        // The last thread of the dead one may still be closing the socket.
        eventually("the next daemon takes over", || sandbox.exec_sh("web", "true").run().code() == 0);
        assert_eq!(meminfo(sandbox, "web", "MemTotal"), 65536);
    }
    sandbox.pando(["set", "web", "memory.limit=96M"]).ok();
    eventually("it sees more", || meminfo(sandbox, "web", "MemTotal") == 98304);
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    let _ = reading.wait();
}

fn they_cannot_be_written(sandbox: &Sandbox) {
    for options in [&["--memory", "64M"][..], &["--memory", "64M", "--userns", "host"]] {
        let created =
            sandbox.pando(["create", "web", "--from", sandbox.busybox(), "--start"].iter().chain(options)).run();
        if created.code() != 0 {
            continue;
        }
        let script = "echo x >/proc/meminfo || chmod 777 /proc/meminfo || mount -o remount,rw,bind /proc/meminfo";
        assert!(sandbox.exec_sh("web", script).run().code() != 0);
        assert_eq!(meminfo(sandbox, "web", "MemTotal"), 65536);
        sandbox.pando(["rm", "-f", "web"]).ok();
    }
}

fn open_files_in_all_are_bounded(sandbox: &Sandbox) {
    sandbox.guest("web", &["--files-total", "300"]);
    sandbox.guest("other", &[]);
    let events = sandbox.pando(["events", "--json"]).start();
    // Four processes with a hundred files each; who can open no more, or is killed, ends otherwise than the script
    // says.
    let open = "i=3; while [ $i -lt 103 ]; do eval \"exec $i</dev/null\" || exit 7; i=$((i+1)); done; sleep 1000";
    let script = format!("for n in 1 2 3 4; do sh -c '{}' & done; wait", open.replace('\'', "'\\''"));
    let many = sandbox.exec_sh("web", &script).start();
    let count = |name: &str| {
        let text = sandbox.exec_sh(name, "ls /proc/[0-9]*/fd 2>/dev/null | grep -c '^[0-9]'").run();
        text.out().trim().parse::<u64>().unwrap_or(0)
    };
    eventually("they are held within their bound", || {
        // Where nobody may be bounded one of them is ended.
        std::thread::sleep(std::time::Duration::from_secs(1));
        count("web") < 360
    });
    sandbox.exec_sh("other", "true").ok();
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    let _ = many.wait();
    events.signal(rustix::process::Signal::TERM);
    let told = events.wait().out();
    let told = told.lines().find(|line| line.contains("\"files\"")).unwrap_or_else(|| panic!("nothing in {told}"));
    assert!(told.contains("web") && told.contains("300 may be"), "{told}");
    sandbox.pando(["set", "web", "files_total="]).ok();
    sandbox.pando(["set", "web", "files_total=3"]).run().ended_with(125).complains_of(&["files_total", "at least"]);
}

fn a_disk_grows_and_shrinks(sandbox: &Sandbox) {
    if !std::path::Path::new("/dev/loop-control").exists() {
        skip("there are no loop devices (/dev/loop-control)");
    }
    sandbox.guest("web", &["--disk", "32M"]);
    let megabytes = || -> u64 {
        sandbox.exec_sh("web", "df -m / | awk 'NR == 2 { print $2 }'").ok().trim().parse().expect("a number")
    };
    sandbox.exec_sh("web", "echo kept >/kept").ok();
    sandbox.pando(["set", "web", "disk.size=16M"]).run().ended_with(125).complains_of(&["disk.size", "stop it"]);
    let grown = sandbox.pando(["set", "web", "disk.size=96M"]).run();
    if grown.code() == 0 {
        assert!(megabytes() > 60, "{}", megabytes());
    } else {
        // Only who may pass over limits may make a file system larger that is in use.
        assert!(grown.err().contains("stop"), "{}", grown.err());
        assert!(megabytes() <= 32);
    }
    for (size, least, most) in [("128M", 90, 128), ("48M", 30, 48)] {
        sandbox.pando(["stop", "-t", "0", "web"]).ok();
        sandbox.pando(["set", "web", &format!("disk.size={size}")]).ok();
        sandbox.pando(["start", "web"]).ok();
        assert!((least..=most).contains(&megabytes()), "{} of {size}", megabytes());
        sandbox.exec_sh("web", "cat /kept").run().says("kept\n");
    }
    sandbox.pando(["set", "web", "disk.inodes=9000"]).run().ended_with(125).complains_of(&["disk.inodes"]);
    sandbox.pando(["set", "web", "disk.size="]).run().ended_with(125).complains_of(&["created"]);
}

fn use_is_told_over_http(sandbox: &Sandbox) {
    let socket = sandbox.scratch().join("metrics");
    sandbox.settings(&format!("[metrics]\nlisten = \"{}\"\n", socket.display()));
    sandbox.guest("web", &["--memory", "64M"]);
    let ask = |question: &[u8]| {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("somebody listens");
        stream.write_all(question).expect("it takes questions");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    eventually("somebody listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let answer = ask(b"GET /metrics HTTP/1.1\r\nHost: pando\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("pando_memory_limit_bytes{guest=\"web\"} 67108864"), "{answer}");
    assert!(ask(b"GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(b"\xff\xfe\r\n\r\n").starts_with("HTTP/1.1 400"));
}

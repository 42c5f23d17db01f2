//! Resources: each limit enforced, held, changed live, and kept over restarts; what cannot be granted refused with a
//! sentence.

use crate::case::{Case, Tag, skip};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::swap_file::SwapFile;
use serde_json::Value;

pub(crate) const CASES: &[Case] = &[
    Case::new("limits::memory_bounds_a_hog", memory_bounds_a_hog).tags(&[Tag::Vm]),
    Case::new("limits::page_cache_is_bounded", page_cache_is_bounded).tags(&[Tag::Vm]),
    Case::new("limits::processes_are_bounded", processes_are_bounded).tags(&[Tag::Vm]),
    Case::new("limits::processes_without_a_number_are_bounded", processes_without_a_number).tags(&[Tag::Vm]),
    Case::new("limits::processor_time_is_bounded", processor_time_is_bounded).tags(&[Tag::Vm]),
    Case::new("limits::processors_are_bounded", processors_are_bounded).tags(&[Tag::Vm]),
    Case::new("limits::each_process_is_bounded", each_process_is_bounded).tags(&[Tag::Vm]),
    Case::new("limits::shared_memory_is_bounded", shared_memory_is_bounded).tags(&[Tag::Vm]),
    Case::new("limits::every_limit_is_held", every_limit_is_held).tags(&[Tag::Vm]),
    Case::new("limits::traffic_is_bounded_by_device", traffic_is_bounded_by_device).tags(&[Tag::Vm]),
    Case::new("limits::traffic_is_held_back", traffic_is_held_back).tags(&[Tag::Vm]),
    Case::new("limits::swap_is_bounded", swap_is_bounded)
        .needs(&[Need::Root, Need::Program("mkswap", "util-linux")])
        .tags(&[Tag::Vm]),
    Case::new("limits::bounded_memory_bounds_swap", bounded_memory_bounds_swap).tags(&[Tag::Vm]),
    Case::new("limits::room_on_the_disk_is_bounded", room_on_the_disk_is_bounded).tags(&[Tag::Vm]),
    Case::new("limits::a_change_holds_at_once_both_ways", a_change_holds_at_once_both_ways).tags(&[Tag::Vm]),
    Case::new("limits::every_limit_changes_both_ways_and_lasts", every_limit_changes_both_ways_and_lasts)
        .tags(&[Tag::Vm]),
    Case::new("limits::use_is_told", use_is_told).tags(&[Tag::Vm]),
];

/// The values of a guest's limit, in the files that hold it.
#[track_caller]
pub(super) fn held(sandbox: &Sandbox, name: &str, key: &str) -> Vec<String> {
    let seen = sandbox.inspect(name);
    let limits = seen["limits"].as_array().expect("an array").iter();
    limits.filter(|limit| limit["key"] == key).filter_map(|limit| Some(limit["value"].as_str()?.to_owned())).collect()
}

pub(super) fn stats(sandbox: &Sandbox, name: &str) -> Value {
    let text = sandbox.pando(["stats", "--json", name]).ok();
    let all: Value = serde_json::from_str(&text).expect("stats --json prints JSON");
    all["guests"][0].clone()
}

/// A shell script that takes so many megabytes of memory of its own.
pub(super) fn hog(megabytes: u32) -> String {
    format!("x=$(head -c {megabytes}m /dev/zero | tr '\\0' x); echo ${{#x}}")
}

fn memory_bounds_a_hog(sandbox: &Sandbox) {
    let mut events = sandbox.pando(["events", "--json"]).start();
    sandbox.guest("small", &["--memory", "24M", "--swap", "0"]);
    sandbox.guest("other", &[]);
    // A listener hears of what happens after it began; the kills are repeated until it must have.
    for _ in 0..3 {
        sandbox.exec_sh("small", &hog(64)).run().ended_with(137);
    }
    sandbox.exec_sh("small", "echo alive").run().says("alive\n");
    sandbox.exec_sh("other", &hog(8)).run().says("8388608\n");
    assert!(stats(sandbox, "small")["now"]["oom_kills"].as_i64() >= Some(3));
    assert_eq!(stats(sandbox, "other")["now"]["oom_kills"], 0);
    assert!(!events.has_ended());
    if std::fs::File::open("/dev/kmsg").is_err() {
        skip("the kernel's log cannot be read, which alone names the process");
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    events.signal(rustix::process::Signal::TERM);
    let told = events.wait().out();
    let kill = told.lines().find(|line| line.contains("\"oom\"")).unwrap_or_else(|| panic!("no kill in {told}"));
    assert!(kill.contains("small") && kill.contains("(sh)"), "{kill}");
    assert!(!told.lines().any(|line| line.contains("\"oom\"") && line.contains("other")), "{told}");
}

fn page_cache_is_bounded(sandbox: &Sandbox) {
    sandbox.guest("small", &["--memory", "32M"]);
    // A disk that is slower than memory by far, as an emulated one, leaves a small group with nothing but pages that
    // wait to be written.
    sandbox
        .exec_sh("small", "for i in 1 2 3 4 5 6 7 8; do head -c 8m /dev/zero >/f$i; sync; done; cat /f* | wc -c")
        .run()
        .says("67108864\n");
    let now = &stats(sandbox, "small")["now"];
    assert!(now["memory"].as_i64().is_some_and(|bytes| bytes <= 32 << 20), "{now}");
}

fn processes_are_bounded(sandbox: &Sandbox) {
    sandbox.guest("few", &["--pids", "8"]);
    let script = "i=0; while [ $i -lt 30 ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done; wait";
    let ended = sandbox.exec_sh("few", script).run();
    assert!(ended.code() != 0 && ended.err().contains("fork"), "{}", ended.err());
    let pids = stats(sandbox, "few")["now"]["pids"].as_i64();
    assert!(pids.is_some_and(|pids| pids <= 8), "{pids:?}");
    sandbox.pando(["stop", "-t", "0", "few"]).ok();
}

/// The bound of processes that the kernel holds a guest to.
fn most_processes(sandbox: &Sandbox, name: &str) -> String {
    let seen = sandbox.inspect(name);
    let groups = seen["cgroups"].as_array().expect("an array").iter().filter_map(Value::as_str);
    let ours = sandbox.places().field();
    let bound = |path: &std::path::Path| std::fs::read_to_string(path.join("pids.max")).ok();
    let own = groups.flat_map(|group| std::path::Path::new(group).ancestors());
    let own = own.filter(|path| path.parent().is_some_and(|above| above.ends_with(&ours)));
    own.filter_map(bound).next().unwrap_or_default().trim().to_owned()
}

/// Nobody takes all numbers of the machine, by whatever way he came to be.
fn processes_without_a_number(sandbox: &Sandbox) {
    sandbox.guest("plain", &["--", "sleep", "100000"]);
    sandbox.guest("system", &["--profile", "system", "--userns", "host", "--", "sleep", "100000"]);
    sandbox.pando(["freeze", "plain"]).ok();
    sandbox.pando(["clone", "plain", "clone"]).ok();
    let numbers = std::fs::read_to_string("/proc/sys/kernel/pid_max").expect("the host's setting");
    let half = numbers.trim().parse::<u64>().expect("a number") / 2;
    let is_bounded = |name: &str| {
        let bound = most_processes(sandbox, name);
        assert!(bound.parse::<u64>().is_ok_and(|bound| (1000..=half).contains(&bound)), "{name}: {bound:?}");
        bound
    };
    for name in ["plain", "system", "clone"] {
        is_bounded(name);
    }
    let before = is_bounded("plain");
    sandbox.pando(["set", "plain", "pids=50"]).ok();
    assert_eq!(most_processes(sandbox, "plain"), "51");
    sandbox.pando(["set", "plain", "pids="]).ok();
    assert_eq!(is_bounded("plain"), before, "it is given back");
}

/// How often the guest's processes were held back for having used up their time.
pub(super) fn throttled(sandbox: &Sandbox, name: &str) -> u64 {
    let seen = sandbox.inspect(name);
    let groups = seen["cgroups"].as_array().expect("an array").iter().filter_map(Value::as_str);
    let stats = groups.filter_map(|group| std::fs::read_to_string(format!("{group}/cpu.stat")).ok());
    let count = |text: String| text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse::<u64>().ok());
    stats.filter_map(count).max().expect("a group counts it")
}

fn processor_time_is_bounded(sandbox: &Sandbox) {
    for option in [["--cpu-limit", "0.2"], ["--cpu-reserve", "10%"]] {
        sandbox.guest("capped", &option);
        let spinning = sandbox.exec_sh("capped", "while :; do :; done").start();
        eventually("a busy guest is held back", || throttled(sandbox, "capped") > 3);
        sandbox.pando(["set", "capped", "cpu.limit=", "cpu.reserve="]).ok();
        drop(spinning);
        sandbox.pando(["rm", "-f", "capped"]).ok();
    }
}

fn processors_are_bounded(sandbox: &Sandbox) {
    sandbox.run_sh(&["--cpus", "0"], "nproc").run().succeeded().says("1\n");
    sandbox.guest("one", &["--cpus", "0"]);
    sandbox.exec_sh("one", "grep Cpus_allowed_list /proc/self/status | tr -dc 0-9,-").run().says("0");
    let all = sandbox.run_sh(&[], "nproc").ok();
    sandbox.pando(["set", "one", "cpu.cpus="]).ok();
    sandbox.exec_sh("one", "nproc").run().says(&all);
}

fn each_process_is_bounded(sandbox: &Sandbox) {
    let options = ["--files", "64", "--memory-locked", "64K", "--memory-virtual", "512M", "--memory-anonymous", "256M"];
    let script = "ulimit -n; ulimit -l; ulimit -v; ulimit -d";
    sandbox.run_sh(&options, script).run().succeeded().says("64\n64\n524288\n262144\n");
    sandbox.guest("web", &options);
    sandbox.exec_sh("web", script).run().says("64\n64\n524288\n262144\n");
    let open = "i=3; while [ $i -lt 99 ]; do eval \"exec $i</dev/null\" || exit 7; i=$((i+1)); done";
    // What a process carries holds from the next start on, for whoever starts it, both ways.
    for value in ["32", "48"] {
        sandbox.pando(["set", "web", &format!("files={value}")]).ok();
        sandbox.end_daemon();
        sandbox.pando(["restart", "-t", "0", "web"]).ok();
        sandbox.exec_sh("web", "ulimit -n").run().says(&format!("{value}\n"));
    }
    assert!(sandbox.exec_sh("web", open).run().code() != 0, "a process opened more files than it may");
    sandbox.run_sh(&["--memory-anonymous", "32M"], &hog(64)).run().complains_of(&["memory"]);
}

fn shared_memory_is_bounded(sandbox: &Sandbox) {
    let full = "head -c 2m /dev/zero >/dev/shm/x; stat -c %s /dev/shm/x";
    sandbox.run_sh(&["--shm-size", "1M"], full).run().says("1048576\n");
    let pages = "cat /proc/sys/kernel/shmall";
    sandbox.guest("web", &["--sysv-shm", "8M"]);
    sandbox.exec_sh("web", pages).run().says("2048\n");
    sandbox.pando(["set", "web", "memory.sysv=4M"]).ok();
    sandbox.exec_sh("web", pages).run().says("1024\n");
    let of_host = std::fs::read_to_string("/proc/sys/kernel/shmall").expect("the host's");
    assert!(of_host.trim() != "1024" && of_host.trim() != "2048", "the host's is its own");
}

fn every_limit_is_held(sandbox: &Sandbox) {
    let options = ["--cpu-limit", "0.5", "--memory", "64M", "--memory-reserve", "16M", "--swap", "0", "--pids", "100"];
    sandbox.guest("web", &options);
    let one = |key: &str| held(sandbox, "web", key);
    assert!(one("memory.limit") == ["67108864"], "{:?}", one("memory.limit"));
    assert!(one("memory.reserve") == ["16777216"], "{:?}", one("memory.reserve"));
    // Version 1 counts memory and swap together.
    assert!(matches!(one("memory.swap").as_slice(), [value] if value == "0" || value == "67108864"));
    // The shim is not the guest's.
    assert_eq!(one("pids"), ["101"]);
    let quota = one("cpu.limit");
    assert!(quota == ["10000 20000"] || quota == ["20000", "10000"], "{quota:?}");
    let ended = sandbox.pando(["set", "web", "io.weight=300"]).run();
    if ended.code() == 0 {
        assert!(one("io.weight").iter().all(|value| value.contains("300")), "{:?}", one("io.weight"));
    } else {
        assert!(ended.err().contains("does not offer"), "{}", ended.err());
    }
}

fn traffic_is_bounded_by_device(sandbox: &Sandbox) {
    let ended =
        sandbox.pando(["create", "web", "--from", sandbox.busybox(), "--io-write", "1M", "--io-read-ops", "50"]).run();
    if ended.err().contains("no block device") {
        skip("the test's files lie on no block device");
    }
    ended.succeeded();
    sandbox.pando(["start", "web"]).ok();
    let (writes, reads) = (held(sandbox, "web", "io.write_rate"), held(sandbox, "web", "io.read_ops"));
    assert!(writes.iter().chain(&reads).any(|value| value.contains("1048576")), "{writes:?} {reads:?}");
    sandbox.pando(["set", "web", "io.write_rate=2M", "io.read_ops="]).ok();
    let found = held(sandbox, "web", "io.write_rate");
    assert!(found.iter().all(|value| value.contains("2097152") && !value.contains("riops=50")), "{found:?}");
}

/// Whoever may write a megabyte a second takes at least so long for some; how much longer depends on who else wants the
/// disk.
fn traffic_is_held_back(sandbox: &Sandbox) {
    const MEGABYTES: u32 = 6;
    let made =
        sandbox.pando(["create", "slow", "--from", sandbox.busybox(), "--io-write", "1M", "--io-read", "1M"]).run();
    if made.err().contains("no block device") {
        skip("the test's files lie on no block device");
    }
    made.succeeded();
    sandbox.pando(["start", "slow"]).ok();
    let seen = sandbox.inspect("slow");
    let held_back = |script: &str| {
        let begun = std::time::Instant::now();
        sandbox.exec_sh("slow", script).ok();
        begun.elapsed().as_secs() + 2 >= u64::from(MEGABYTES)
    };
    let direct = format!("dd if=/dev/zero of=/file bs=64k count={} oflag=direct 2>/dev/null", MEGABYTES * 16);
    assert!(held_back(&direct), "{MEGABYTES} MB were written directly in less than {MEGABYTES} seconds: {seen}");
    let read = format!("dd if=/file of=/dev/null bs=64k count={} iflag=direct 2>/dev/null", MEGABYTES * 16);
    assert!(held_back(&read), "{MEGABYTES} MB were read in less than {MEGABYTES} seconds: {seen}");
    let note = seen["limits"].as_array().expect("an array").iter().find(|limit| limit["key"] == "io.write_rate");
    if note.is_some_and(|limit| limit["note"].as_str().is_some_and(|note| note.contains("direct writes only"))) {
        return;
    }
    let buffered = format!("head -c {MEGABYTES}m /dev/zero >/other; sync -f /other 2>/dev/null || sync");
    assert!(
        held_back(&buffered),
        "{MEGABYTES} MB went through the page cache in less than {MEGABYTES} seconds: {seen}"
    );
}

/// A program that holds 28 MB, and takes them in parts. Version 2 does not let who wants memory wait for what is on its
/// way to swap: with a slow disk whoever asks for all of it at once is killed before anything has arrived there.
const PATIENT_HOG: &str = "hold() { head -c 7m /dev/zero | tr '\\0' x; sleep 1; }
a=$(hold); b=$(hold); c=$(hold); d=$(hold); echo $((${#a} + ${#b} + ${#c} + ${#d}))";

fn swap_is_bounded(sandbox: &Sandbox) {
    // Where there is swap the kernel puts memory there that nobody has used for a while, whosever it is: there has to
    // be room for that too.
    let _swap = SwapFile::make(sandbox.scratch().join("swap"), 256);
    sandbox.guest("swapper", &["--memory", "24M", "--swap", "48M"]);
    sandbox.exec_sh("swapper", PATIENT_HOG).run().says("29360128\n");
    sandbox.exec_sh("swapper", &hog(100)).run().ended_with(137);
    sandbox.pando(["set", "swapper", "memory.swap=0"]).ok();
    sandbox.exec_sh("swapper", &hog(28)).run().ended_with(137);
    sandbox.pando(["rm", "-f", "swapper"]).ok();
}

/// Nobody fills the machine's swap because nothing was said of it.
fn bounded_memory_bounds_swap(sandbox: &Sandbox) {
    let megabytes = |name| -> Option<u64> {
        let seen = sandbox.inspect(name);
        let groups = seen["cgroups"].as_array().expect("an array").iter().filter_map(|group| group.as_str());
        let files = groups
            .flat_map(|group| ["memory.memsw.limit_in_bytes", "memory.swap.max"].map(|file| format!("{group}/{file}")));
        let value = files.filter_map(|file| std::fs::read_to_string(file).ok()).next()?;
        // What was never bounded is a number too large for any machine, or a word.
        value.trim().parse().ok().map(|bytes: u64| bytes >> 20).filter(|megabytes| *megabytes < 1 << 30)
    };
    sandbox.guest("bounded", &["--memory", "24M"]);
    let Some(swap) = megabytes("bounded") else { skip("this kernel does not account for swap") };
    // Version 1 counts memory with it.
    let with_memory = swap == 48;
    assert!(with_memory || swap == 24, "{swap}");
    let expected = |memory: u64, swap: u64| Some(if with_memory { memory + swap } else { swap });
    for (settings, memory, swap) in [
        (&["memory.limit=32M"][..], 32, 32),
        (&["memory.limit=16M"], 16, 16),
        (&["memory.swap=64M"], 16, 64),
        (&["memory.limit=40M"], 40, 64),
    ] {
        sandbox.pando(["set", "bounded"].iter().chain(settings)).ok();
        assert_eq!(megabytes("bounded"), expected(memory, swap), "{settings:?}");
    }
    sandbox.guest("free", &[]);
    assert_eq!(megabytes("free"), None);
}

fn room_on_the_disk_is_bounded(sandbox: &Sandbox) {
    if !std::path::Path::new("/dev/loop-control").exists() {
        skip("there are no loop devices (/dev/loop-control)");
    }
    sandbox.guest("full", &["--disk", "32M", "--inodes", "600"]);
    sandbox.guest("other", &["--disk", "32M"]);
    sandbox.exec_sh("full", "echo kept >/kept; test $(df -m / | awk 'NR == 2 { print $2 }') -le 32").ok();
    let ended = sandbox.exec_sh("full", "cat /dev/zero >/big").run();
    assert!(ended.code() != 0, "the disk never filled");
    sandbox.exec_sh("full", "test $(stat -c %s /big) -le 33554432 && ! echo x >/more").run();
    sandbox.exec_sh("other", "head -c 8m /dev/zero >/file && stat -c %s /file").run().says("8388608\n");
    sandbox
        .exec_sh("full", "rm /big; i=0; while : >/f$i; do i=$((i+1)); [ $i -lt 2000 ] || exit 9; done")
        .run()
        .ended_with(1);
    // Its files last, whoever starts it, and the image is never in use twice.
    for _ in 0..3 {
        sandbox.pando(["restart", "-t", "0", "full"]).ok();
    }
    sandbox.exec_sh("full", "cat /kept").run().says("kept\n");
    sandbox.pando(["set", "full", "disk.inodes=900"]).run().ended_with(125).complains_of(&["disk.inodes", "created"]);
    sandbox.run_sh(&["--disk", "32M"], "true").run().ended_with(125).complains_of(&["disk"]);
    sandbox
        .pando(["create", "odd", "--from", sandbox.busybox(), "--inodes", "600"])
        .run()
        .ended_with(125)
        .complains_of(&["disk.size"]);
    sandbox.pando(["stop", "-t", "0", "full"]).ok();
    sandbox.pando(["create", "copy", "--from", "guest:full", "--disk", "64M", "--start"]).ok();
    sandbox.exec_sh("copy", "cat /kept").run().says("kept\n");
}

fn a_change_holds_at_once_both_ways(sandbox: &Sandbox) {
    sandbox.guest("web", &["--memory", "64M", "--pids", "100"]);
    sandbox.pando(["set", "web", "memory.limit=128M", "pids=50", "cpu.limit=0.5"]).ok();
    assert_eq!(
        (held(sandbox, "web", "memory.limit"), held(sandbox, "web", "pids")),
        (vec!["134217728".into()], vec!["51".into()])
    );
    sandbox.exec_sh("web", &hog(40)).run().says("41943040\n");
    sandbox.pando(["set", "web", "memory.limit=24M", "memory.swap=0", "cpu.limit=", "pids="]).ok();
    sandbox.exec_sh("web", &hog(40)).run().ended_with(137);
    assert!(held(sandbox, "web", "pids").is_empty() && held(sandbox, "web", "cpu.limit").is_empty());
    sandbox.pando(["set", "web", "memory.limit=", "memory.swap="]).ok();
    sandbox.exec_sh("web", &hog(40)).run().says("41943040\n");
}

/// A key and two values.
type Row = (&'static str, &'static str, &'static str);

/// Everything that a group holds: two values of each, which differ from each other and from nothing.
const HELD: [Row; 11] = [
    ("cpu.limit", "0.5", "0.8"),
    ("cpu.reserve", "10%", "20%"),
    ("cpu.share", "50", "200"),
    ("memory.limit", "64M", "96M"),
    ("memory.reserve", "8M", "16M"),
    ("memory.swap", "0", "16M"),
    ("pids", "50", "60"),
    ("io.read_rate", "1M", "2M"),
    ("io.write_rate", "1M", "2M"),
    ("io.read_ops", "100", "200"),
    ("io.write_ops", "100", "200"),
];

fn every_limit_changes_both_ways_and_lasts(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let weights = sandbox.pando(["set", "web", "io.weight=200"]).run().code() == 0;
    let mut table = HELD.to_vec();
    if weights {
        table.push(("io.weight", "200", "300"));
    }
    if sandbox.pando(["set", "web", "io.read_rate=1M"]).run().err().contains("no block device") {
        table.retain(|row| !row.0.contains("rate") && !row.0.contains("ops"));
    }
    let set = |value: fn(&Row) -> &'static str| {
        let words: Vec<String> = table.iter().map(|row| format!("{}={}", row.0, value(row))).collect();
        sandbox.pando(["set", "web"]).args(words).ok();
    };
    let shown =
        || -> Vec<(&str, Vec<String>)> { table.iter().map(|row| (row.0, held(sandbox, "web", row.0))).collect() };
    set(|row| row.1);
    let first = shown();
    set(|row| row.2);
    for (one, other) in first.iter().zip(shown()) {
        assert!(!one.1.is_empty() && one.1 != other.1, "{one:?} became {other:?}");
    }
    set(|row| row.1);
    assert_eq!(shown(), first);
    let daemon = sandbox.daemon().expect("it runs");
    crate::process::signal(daemon, rustix::process::Signal::KILL);
    eventually("the daemon has gone", || !crate::process::is_alive(daemon));
    assert_eq!(shown(), first, "after the daemon's end");
    sandbox.pando(["restart", "-t", "0", "web"]).ok();
    assert_eq!(shown(), first, "after the guest's");
    set(|_| "");
    assert!(shown().iter().all(|(_, values)| values.is_empty()), "{:?}", shown());
}

fn use_is_told(sandbox: &Sandbox) {
    sandbox.guest("web", &["--memory", "64M", "--pids", "100", "--cpu-reserve", "25%"]);
    sandbox.exec_sh("web", "head -c 8m /dev/zero >/file; sync; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").ok();
    let seen = stats(sandbox, "web");
    assert_eq!(
        (&seen["memory_limit"], &seen["pids_limit"], &seen["cpu_reserve"]),
        (&Value::from(64 << 20), &Value::from(100), &Value::from(25.0))
    );
    // Of what was written the kernel may have dropped some again.
    assert!(seen["now"]["cpu_ms"].as_i64() > Some(0) && seen["now"]["memory"].as_i64() > Some(4 << 20), "{seen}");
    assert!(sandbox.pando(["stats"]).ok().contains("/ 64M"));
    let prometheus = sandbox.pando(["stats", "--prometheus"]).ok();
    assert!(prometheus.contains("pando_memory_limit_bytes{guest=\"web\"} 67108864"), "{prometheus}");
    sandbox.pando(["stop", "web"]).ok();
    sandbox.pando(["stats", "web"]).run().ended_with(125).complains_of(&["not running"]);
    assert!(!sandbox.pando(["stats"]).ok().contains("web"));
}

//! What a guest prints, and its log: a file of the host's that the guest never has.

use super::crash::daemon_with;
use crate::case::{Case, Tag};
use crate::own_init::scripted;
use crate::patience::{comes_true, eventually, seconds};
use crate::process;
use crate::sandbox::Sandbox;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

pub(crate) const CASES: &[Case] = &[
    Case::new("logs::never_take_more_than_their_bound", |sandbox| never_take_more_than_their_bound(sandbox, 1 << 30))
        .tags(&[Tag::Vm]),
    Case::new("logs::never_take_more_without_a_daemon", never_take_more_without_a_daemon),
    Case::new("logs::a_new_bound_holds_for_guests_that_run", a_new_bound_holds_for_guests_that_run),
    Case::new("logs::a_console_prints_no_more_than_the_bound", a_console_prints_no_more_than_the_bound),
    Case::new("logs::a_log_that_is_a_file_is_noticed", a_log_that_is_a_file_is_noticed),
    Case::new("logs::a_guest_can_only_print", a_guest_can_only_print).tags(&[Tag::Vm]),
    Case::new("logs::standard_output_has_a_name", standard_output_has_a_name).tags(&[Tag::Vm]),
    Case::new("logs::all_is_there_when_the_end_is_told", all_is_there_when_the_end_is_told),
    Case::new("logs::a_short_command_is_heard", a_short_command_is_heard),
    Case::new("logs::what_was_printed_before_a_daemon_came_is_there", what_was_printed_before_a_daemon_came_is_there),
    Case::new("logs::each_clone_prints_into_its_own", each_clone_prints_into_its_own),
    Case::new("logs::nothing_is_lost_by_a_freeze", nothing_is_lost_by_a_freeze),
    Case::new("logs::who_was_moved_prints_where_it_is", who_was_moved_prints_where_it_is),
    Case::new("logs::who_has_lost_its_shim_prints_on", who_has_lost_its_shim_prints_on),
    Case::new("logs::lines_have_their_times", lines_have_their_times),
    Case::new("logs::several_are_shown_in_the_order_of_time", several_are_shown_in_the_order_of_time),
    Case::new("logs::times_never_take_more_than_their_bound", times_never_take_more_than_their_bound),
    Case::new("logs::a_slow_follower_holds_nobody_up", a_slow_follower_holds_nobody_up),
];

const BOUND: u64 = 1 << 20;

fn bounded(sandbox: &Sandbox) {
    sandbox.settings("[logs]\nsize = \"1M\"\n");
}

fn log(sandbox: &Sandbox, name: &str) -> PathBuf {
    sandbox.places().guest(&name.parse().expect("a name")).join("log")
}

/// Looks at a log until so much was printed into it: the most that it took of the disk meanwhile, in bytes.
#[track_caller]
fn largest(sandbox: &Sandbox, name: &str, printed: u64) -> u64 {
    let (log, mut largest, until) = (log(sandbox, name), 0, Instant::now() + seconds(120));
    loop {
        assert!(Instant::now() < until, "{name} does not print what it is to print");
        let Ok(about) = std::fs::metadata(&log) else { continue };
        largest = largest.max(about.blocks() * 512);
        if about.len() >= printed {
            return largest;
        }
    }
}

/// Prints so many bytes as fast as it can, and waits.
fn flood(bytes: u64) -> String {
    format!("dd if=/dev/zero bs=64k count={} 2>/dev/null; sleep 100000", bytes >> 16)
}

fn never_take_more_than_their_bound(sandbox: &Sandbox, printed: u64) {
    bounded(sandbox);
    sandbox.guest("job", &["--", "sh", "-c", &flood(printed)]);
    let most = largest(sandbox, "job", printed);
    assert!(most <= BOUND, "{most} bytes");
    sandbox.pando(["kill", "job"]).ok();
}

fn never_take_more_without_a_daemon(sandbox: &Sandbox) {
    const PRINTED: u64 = 64 << 20;
    bounded(sandbox);
    sandbox.guest("job", &["--", "sh", "-c", &format!("until [ -e /go ]; do sleep 0.1; done; {}", flood(PRINTED))]);
    sandbox.exec_sh("job", "(sleep 1; : >/go) >/dev/null 2>&1 </dev/null &").ok();
    process::kill(sandbox.daemon().expect("it runs"));
    let most = largest(sandbox, "job", PRINTED);
    assert!(most <= BOUND, "{most} bytes");
    // The next one finds it, and the log goes on.
    sandbox.becomes("job", "running");
    sandbox.pando(["kill", "job"]).ok();
}

fn a_new_bound_holds_for_guests_that_run(sandbox: &Sandbox) {
    const PRINTED: u64 = 64 << 20;
    bounded(sandbox);
    sandbox.guest("job", &["--", "sh", "-c", &format!("until [ -e /go ]; do sleep 0.1; done; {}", flood(PRINTED))]);
    sandbox.end_daemon();
    sandbox.settings("[logs]\nsize = \"8M\"\n");
    sandbox.exec_sh("job", ": >/go").ok();
    let most = largest(sandbox, "job", PRINTED);
    assert!(most > BOUND && most <= 8 * BOUND, "{most} bytes");
    sandbox.pando(["kill", "job"]).ok();
}

fn a_console_prints_no_more_than_the_bound(sandbox: &Sandbox) {
    bounded(sandbox);
    scripted(sandbox, "own", "seq 1000000");
    let most = largest(sandbox, "own", 7_888_896);
    assert!(most <= BOUND, "{most} bytes");
}

/// Guests that have their logs themselves, as none may.
fn a_log_that_is_a_file_is_noticed(sandbox: &Sandbox) {
    const PRINTED: u64 = 64 << 20;
    bounded(sandbox);
    let daemon = daemon_with(sandbox, "PANDO_PLANT", "log-is-a-file");
    sandbox.guest("job", &["--", "sh", "-c", &flood(PRINTED)]);
    assert!(largest(sandbox, "job", PRINTED) > BOUND, "the test does not notice a log that is too large");
    sandbox.pando(["kill", "job"]).ok();
    sandbox.end_daemon();
    daemon.wait();
}

fn a_guest_can_only_print(sandbox: &Sandbox) {
    for userns in ["auto", "host"] {
        let name = format!("job-{userns}");
        let tries = "
            until [ -e /go ]; do sleep 0.1; done
            : >/dev/stdout; echo overwritten 1<>/proc/self/fd/1
            sh -c 'timeout 1 cat /proc/self/fd/1 >/read; timeout 1 cat <&1 >>/read' 2>/dev/null
            dd if=/dev/zero of=/dev/stdout bs=1 seek=1000000 count=0 2>/dev/null
            fallocate -l 8000000 /proc/self/fd/1 2>/dev/null
            chmod 666 /proc/self/fd/1; chown 1000 /proc/self/fd/1
            echo last";
        let script = format!("echo first; echo second; {tries}");
        sandbox.guest(&name, &["--userns", userns, "--", "sh", "-c", &script]);
        eventually("it prints", || sandbox.pando(["logs", &name]).ok() == "first\nsecond\n");
        sandbox.exec_sh(&name, ": >/go").ok();
        eventually("it has tried", || sandbox.pando(["logs", "-n", "1", &name]).ok() == "last\n");
        sandbox.becomes(&name, "stopped");
        sandbox.pando(["logs", &name]).run().succeeded().says("first\nsecond\noverwritten\nlast\n");
        let read = sandbox.scratch().join("read");
        sandbox.pando(["cp", &format!("{name}:/read"), &read.to_string_lossy()]).ok();
        assert_eq!(std::fs::read_to_string(&read).expect("it was copied"), "", "with --userns {userns}");
        let about = std::fs::metadata(log(sandbox, &name)).expect("its log");
        assert_eq!((about.uid(), about.mode() & 0o777), (0, 0o644), "with --userns {userns}");
        assert!(about.len() < 100 && about.blocks() < 100, "{about:?}");
    }
}

fn standard_output_has_a_name(sandbox: &Sandbox) {
    let script = "echo one; echo two >&2; echo three >/dev/stdout; echo four >>/dev/stdout; echo five >/dev/stderr; echo six >>/proc/self/fd/2
        ln -s /dev/stdout /dev/shm/access.log; echo seven >>/dev/shm/access.log; sh -c 'echo eight >/proc/1/fd/1' 2>/dev/null; echo nine | tee /dev/stderr >/dev/null";
    for userns in ["auto", "host"] {
        for user in ["root", "ada"] {
            let name = format!("{user}-{userns}");
            sandbox.guest(&name, &["--userns", userns, "-u", user, "--", "sh", "-c", script]);
            sandbox.becomes(&name, "stopped");
            let said = sandbox.pando(["logs", &name]).ok();
            assert_eq!(said, "one\ntwo\nthree\nfour\nfive\nsix\nseven\nnine\n", "{user}, --userns {userns}");
        }
    }
}

fn all_is_there_when_the_end_is_told(sandbox: &Sandbox) {
    const LINES: usize = 100_000;
    sandbox.create("many", &["--", "seq", &LINES.to_string()]);
    let turns = "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); echo $i >&2; i=$((i+1)); done";
    sandbox.create("turns", &["--", "sh", "-c", turns]);
    for name in ["many", "turns"] {
        sandbox.pando(["start", name]).ok();
    }
    for (name, numbers) in [("many", 1..LINES + 1), ("turns", 0..2000)] {
        sandbox.becomes(name, "stopped");
        let said = sandbox.pando(["logs", name]).ok();
        let lines: Vec<usize> = said.lines().map(|line| line.parse().expect("a number")).collect();
        assert!(lines == Vec::from_iter(numbers), "{} lines of {name}, the last {:?}", lines.len(), lines.last());
    }
}

/// Whose end comes no later than the shim is told of the log.
fn a_short_command_is_heard(sandbox: &Sandbox) {
    sandbox.create("short", &["--", "echo", "word"]);
    for times in 1..20 {
        sandbox.pando(["start", "short"]).ok();
        sandbox.becomes("short", "stopped");
        assert_eq!(sandbox.pando(["logs", "short"]).ok(), "word\n".repeat(times));
    }
}

fn what_was_printed_before_a_daemon_came_is_there(sandbox: &Sandbox) {
    let script = "until [ -e /go ]; do sleep 0.1; done; seq 100000";
    sandbox.guest("job", &["--", "sh", "-c", script]);
    sandbox.exec_sh("job", "(sleep 1; : >/go) >/dev/null 2>&1 </dev/null &").ok();
    process::kill(sandbox.daemon().expect("it runs"));
    eventually("all is in the log", || std::fs::metadata(log(sandbox, "job")).is_ok_and(|log| log.len() == 588_895));
    sandbox.becomes("job", "stopped");
    sandbox.pando(["logs", "-n", "1", "job"]).run().succeeded().says("100000\n");
}

/// Says its numbers, by descriptor and by name in turn.
const TELLER: &str = "[ $(id -u) != 0 ] || chmod 666 /dev/stdout; n=0; while :; do n=$((n+1)); echo $n; n=$((n+1)); echo $n >/dev/stdout; sleep 0.02; done";

/// The numbers in a guest's log, but for one that is cut off: they follow one another.
#[track_caller]
fn numbers(sandbox: &Sandbox, name: &str) -> Vec<u64> {
    let said = sandbox.pando(["logs", name]).ok();
    let numbers: Vec<u64> = said.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{line:?}"))).collect();
    let gap = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]);
    assert_eq!(gap, None, "in the log of {name}");
    numbers
}

#[track_caller]
fn says_more(sandbox: &Sandbox, name: &str) -> Vec<u64> {
    let before = numbers(sandbox, name).len();
    eventually(&format!("{name} says more"), || numbers(sandbox, name).len() > before + 10);
    numbers(sandbox, name)
}

fn each_clone_prints_into_its_own(sandbox: &Sandbox) {
    for user in ["root", "ada"] {
        sandbox.guest("source", &["-u", user, "--", "sh", "-c", TELLER]);
        says_more(sandbox, "source");
        sandbox.pando(["freeze", "source", "warm"]).ok();
        sandbox.pando(["clone", "warm", "one"]).ok();
        sandbox.pando(["clone", "warm", "two"]).ok();
        let (source, one, two) = (says_more(sandbox, "source"), says_more(sandbox, "one"), says_more(sandbox, "two"));
        assert_eq!((source[0], one[0]), (1, two[0]), "the clones begin where the guest was frozen");
        assert!(one[0] > 10, "{one:?}");
        // A clone of a clone, and from the disk.
        sandbox.pando(["freeze", "one", "warmer"]).ok();
        sandbox.end_daemon();
        sandbox.pando(["clone", "warmer", "three"]).ok();
        let (one, three) = (says_more(sandbox, "one"), says_more(sandbox, "three"));
        assert!(one.contains(&three[0]) && three[0] > one[0], "{} is in {one:?}", three[0]);
        says_more(sandbox, "source");
        sandbox.pando(["rm", "--force", "source", "one", "two", "three"]).ok();
        sandbox.pando(["image", "rm", "warm", "warmer"]).ok();
    }
}

/// Frozen while it waits for its words to be carried.
fn nothing_is_lost_by_a_freeze(sandbox: &Sandbox) {
    sandbox.settings("[logs]\nsize = \"256M\"\n");
    sandbox.guest("source", &["--", "seq", "1", "1000000000"]);
    let length = |name: &str| std::fs::metadata(log(sandbox, name)).map_or(0, |log| log.len());
    eventually("it says much", || length("source") > 1 << 20);
    for image in ["first", "second", "third"] {
        sandbox.pando(["freeze", "source", image]).ok();
        let before = length("source");
        eventually("it goes on", || length("source") > before + (1 << 18));
    }
    sandbox.pando(["clone", "third", "one"]).ok();
    eventually("the clone goes on", || length("one") > 1 << 20);
    sandbox.pando(["freeze", "source", "last", "--stop"]).ok();
    let ended = sandbox.pando(["logs", "-n", "1", "source"]).ok();
    sandbox.pando(["restore", "last"]).ok();
    eventually("it goes on", || sandbox.pando(["logs", "-n", "1", "source"]).ok() != ended);
    for name in ["source", "one"] {
        sandbox.pando(["kill", name]).ok();
        sandbox.becomes(name, "stopped");
        let said = sandbox.pando(["logs", name]).ok();
        // Both may have been stopped within a line, and what was in the pipe is in the log of whoever wrote it there.
        let whole = &said[said.find('\n').map_or(0, |end| end + 1)..said.rfind('\n').unwrap_or(0)];
        let numbers: Vec<u64> = whole.lines().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]), None, "in the log of {name}");
        assert!(numbers.len() > 1000);
    }
}

fn who_was_moved_prints_where_it_is(sandbox: &Sandbox) {
    // Its number, and that of its session, is free elsewhere.
    let script = format!(
        "cat >/script <<'END'\n{TELLER}\nEND\nfor n in 1 2 3 4 5 6 7 8 9; do (:); done; setsid sh /script & wait"
    );
    sandbox.guest("from", &["--", "sh", "-c", &script]);
    sandbox.guest("idle", &[]);
    sandbox.guest("busy", &["--", "sh", "-c", "echo 1; sleep 100000"]);
    let mut said = says_more(sandbox, "from");
    for (here, there) in [("from", "idle"), ("idle", "busy")] {
        let pid = process::all().into_iter().find_map(|process| {
            let theirs = std::fs::read_link(format!("/proc/{}/ns/pid", process.pid)).ok();
            let ours = std::fs::read_link(format!("/proc/{}/ns/pid", sandbox.first_process(here))).ok();
            (process.words.get(1).is_some_and(|word| word == "/script") && theirs == ours).then_some(process.pid)
        });
        let words = ["move".to_owned(), pid.expect("it runs").to_string(), "--to".to_owned(), there.to_owned()];
        // What it has begun just now may have a number that is taken there.
        eventually("it can be moved", || sandbox.pando(&words).run().code() == 0);
        let log = || sandbox.pando(["logs", there]).ok();
        eventually("it prints into the other log", || log().lines().count() > 10);
        let then: Vec<u64> = log().lines().filter_map(|line| line.parse().ok()).filter(|number| *number > 1).collect();
        said = numbers(sandbox, here).into_iter().chain(said).collect();
        let last = said.iter().max().expect("it said something");
        assert_eq!(then[0], last + 1, "moved from {here} to {there}");
        said = Vec::new();
    }
}

fn who_has_lost_its_shim_prints_on(sandbox: &Sandbox) {
    bounded(sandbox);
    sandbox
        .guest("job", &["--", "sh", "-c", "until [ -e /go ]; do sleep 0.1; done; seq 1000000; : >/done; sleep 100000"]);
    let shim = process::parent(sandbox.first_process("job")).expect("it has one");
    sandbox.exec_sh("job", "(sleep 1; : >/go) >/dev/null 2>&1 </dev/null &").ok();
    process::kill(shim);
    let most = largest(sandbox, "job", 6_888_896);
    assert!(most <= BOUND + (64 << 10), "{most} bytes");
    sandbox.pando(["logs", "-n", "1", "job"]).run().succeeded().says("1000000\n");
    sandbox.pando(["kill", "job"]).ok();
}

fn a_slow_follower_holds_nobody_up(sandbox: &Sandbox) {
    sandbox
        .create("job", &["--", "sh", "-c", "until [ -e /go ]; do sleep 0.1; done; seq 400000; : >/done; sleep 100000"]);
    sandbox.pando(["start", "job"]).ok();
    let words = ["--root", &sandbox.root().to_string_lossy(), "logs", "-f", "job"].map(str::to_owned);
    let mut follower = Command::new(sandbox.program()).args(words).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut out = follower.stdout.take().expect("it was asked for");
    sandbox.exec_sh("job", ": >/go").ok();
    let done = || sandbox.exec_sh("job", "[ -e /done ]").run().code() == 0;
    let goes_on = comes_true(done);
    sandbox.pando(["kill", "job"]).ok();
    let mut said = String::new();
    out.read_to_string(&mut said).expect("it says what the guest said");
    follower.wait().expect("it ends");
    assert!(goes_on, "the guest waits for who follows its log");
    assert!(said.lines().eq((1..=400_000).map(|number| number.to_string())), "{} lines", said.lines().count());
}

/// Prints a line, waits to be told so and prints another.
const TWO_LINES: &str = "echo first; until [ -e /go ]; do sleep 0.1; done; echo second; sleep 100000";

fn lines_have_their_times(sandbox: &Sandbox) {
    sandbox.guest("job", &["--", "sh", "-c", TWO_LINES]);
    eventually("it prints", || sandbox.pando(["logs", "job"]).ok() == "first\n");
    let timed = sandbox.pando(["logs", "-t", "job"]).ok();
    let (time, rest) = timed.split_once(' ').expect("a time and a line");
    assert!(rest == "first\n" && time.len() == 24 && time.ends_with('Z'), "{timed}");
    assert_eq!(sandbox.pando(["logs", "--since", "1h", "job"]).ok(), "first\n");
    assert_eq!(sandbox.pando(["logs", "--until", "1h", "job"]).ok(), "");
    // The next one comes in another millisecond, and is told apart from what was printed until then.
    std::thread::sleep(std::time::Duration::from_millis(20));
    sandbox.exec_sh("job", ": >/go").ok();
    eventually("it prints on", || sandbox.pando(["logs", "job"]).ok() == "first\nsecond\n");
    assert_eq!(sandbox.pando(["logs", "--until", time, "job"]).ok(), "first\n");
    let since = sandbox.pando(["logs", "--timestamps", "--since", time, "-n", "1", "job"]).ok();
    assert!(since.ends_with(" second\n") && !since.starts_with(time), "{since}");
    sandbox.pando(["logs", "--since", "soon", "job"]).run().ended_with(125).complains_of(&["soon", "10m"]);
    sandbox.pando(["kill", "job"]).ok();
    // A follower shows what is there, and ends with the guest.
    let followed = sandbox.pando(["logs", "-f", "-t", "job"]).ok();
    assert!(followed.lines().count() == 2 && followed.ends_with(" second\n"), "{followed}");
}

fn several_are_shown_in_the_order_of_time(sandbox: &Sandbox) {
    sandbox.guest("job", &["--", "sh", "-c", TWO_LINES]);
    eventually("it prints", || sandbox.pando(["logs", "job"]).ok() == "first\n");
    sandbox.guest("other", &["--", "sh", "-c", "echo between; sleep 100000"]);
    eventually("it prints", || sandbox.pando(["logs", "other"]).ok() == "between\n");
    sandbox.exec_sh("job", ": >/go").ok();
    eventually("it prints on", || sandbox.pando(["logs", "job"]).ok() == "first\nsecond\n");
    let both = "job   | first\nother | between\njob   | second\n";
    assert_eq!(sandbox.pando(["logs", "job", "other"]).ok(), both);
    for name in ["job", "other"] {
        sandbox.pando(["kill", name]).ok();
    }
    assert_eq!(sandbox.pando(["logs", "--follow", "job", "other"]).ok(), both);
    sandbox.pando(["logs", "job", "nobody"]).run().ended_with(125).complains_of(&["nobody"]);
}

/// Of a guest that prints as often as it can.
fn times_never_take_more_than_their_bound(sandbox: &Sandbox) {
    sandbox.settings("[logs]\nsize = \"64K\"\n");
    sandbox.guest("job", &["--", "sh", "-c", "while :; do echo; sleep 0.001; done"]);
    let times = log(sandbox, "job").with_extension("times");
    let mut most = 0;
    eventually("it has printed", || {
        let about = std::fs::metadata(&times).expect("times");
        most = most.max(about.blocks() * 512);
        about.len() > 64 << 10
    });
    assert!(most <= 16 << 10, "{most} bytes");
    sandbox.pando(["kill", "job"]).ok();
}

//! A command does not leave the control group of its transaction: it can change no group, and what others have put into
//! another, or what was born there, is taken back before the transaction ends.

use crate::case::Case;
use crate::line::Ended;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::io::Write;
use std::path::{Path, PathBuf};

const PROGRAMS: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux"), Need::Program("python3", "python3")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_control_groups::a_command_changes_none", changes_none).needs(PROGRAMS),
    Case::new("tx_control_groups::in_a_guest_neither", in_a_guest),
    Case::new("tx_control_groups::what_was_put_elsewhere_ends_with_an_abort", put_elsewhere_aborted).needs(PROGRAMS),
    Case::new("tx_control_groups::what_was_put_elsewhere_stands_still_for_a_commit", put_elsewhere).needs(PROGRAMS),
    Case::new("tx_control_groups::what_was_born_elsewhere_ends_with_an_abort", born_elsewhere).needs(PROGRAMS),
    Case::new("tx_control_groups::what_was_put_elsewhere_ends_with_an_open_transaction", open).needs(PROGRAMS),
];

/// Tries to leave, or to make a group to read in; prints what worked.
const LEAVE: &str = "try() { \"$@\" 2>>said && echo \"$1: done\"; }
leave() { for one in $(sed -n 's/^[^ ]* \\([^ ]*\\) cgroup2* .*/\\1/p' /proc/self/mounts); do
try sh -c \"echo 0 >$one/cgroup.procs\"; try mkdir $one/pando-test-own; done; }
";

fn changes_none(sandbox: &Sandbox) {
    let before = std::fs::read_to_string("/proc/self/cgroup").expect("it is there");
    let own = "umount -l /sys/fs/cgroup/* /sys/fs/cgroup; leave
        mkdir -p own; try mount -t cgroup2 none own; try mount -t cgroup -o memory none own
        try mount -o remount,bind,rw $(sed -n 's/^[^ ]* \\([^ ]*\\) cgroup2* .*/\\1/p' /proc/self/mounts | head -1)
        try python3 -c 'import ctypes
libc = ctypes.CDLL(None)
exit(libc.syscall(430, b\"cgroup2\", 0) < 0)'";
    let (scratch, file) = (sandbox.scratch(), sandbox.scratch().join("inner.sh"));
    std::fs::write(&file, format!("{LEAVE}{own}\nexit 0\n")).expect("a script");
    let script = format!("{LEAVE}leave; cat /proc/self/cgroup >group; unshare -m --propagation private sh inner.sh");
    let line = sandbox.pando(["tx", "run", "--retry", "0", "--unsupported", "warn", "--", "sh", "-c", &script]);
    let ended = line.directory(&scratch).run();
    // What is warned of is done, and named: that is the one way.
    let told = ended.out();
    let done: Vec<_> = told.lines().filter(|line| !["mount: done", "python3: done"].contains(line)).collect();
    assert!(done.is_empty(), "{done:?} {}", ended.err());
    let line = sandbox.pando(["tx", "run", "--retry", "0", "--", "unshare", "-m", "--propagation", "private"]);
    let ended = line.args(["sh", "inner.sh"]).directory(&scratch).run();
    assert_eq!(ended.out(), "", "{}", ended.err());
    assert!(ended.code() != 0 && ended.err().contains("cannot be a part of a transaction"), "{}", ended.err());
    assert_eq!(std::fs::read_to_string("/proc/self/cgroup").expect("it is there"), before);
}

fn in_a_guest(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    let script = format!("{LEAVE}leave; echo inside");
    let line = sandbox.pando(["tx", "run", "--guest", "g", "--", "sh", "-c", &script]);
    assert_eq!(line.run().succeeded().out(), "inside\n");
}

/// Writes line N to F, then to G: at each moment both have as many lines, or F has one more. It has no standard
/// descriptors of others', and ends by itself if nobody ends it.
const WRITER: &str = "exec 0<&- 1>&- 2>&-
n=0; while [ $n -lt 30000000 ]; do n=$((n+1)); echo $n >>F; echo $n >>G; done";

/// The group of version 2 that the test is in.
fn own_group() -> PathBuf {
    let own = std::fs::read_to_string("/proc/self/cgroup").expect("it is there");
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("it is there");
    let at = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).expect("version 2 is mounted");
    Path::new(at.split(' ').nth(1).expect("a place")).join(own).join("cgroup.procs")
}

/// The pid of the writer, once it writes.
fn writer(sandbox: &Sandbox) -> i32 {
    let script = sandbox.scratch().join("writer.sh").display().to_string();
    let mut found = None;
    eventually("the writer runs", || {
        let is_it = |one: &process::Process| one.words.starts_with(&["sh".to_owned(), script.clone()]);
        found = process::all().into_iter().find(is_it).map(|one| one.pid);
        // What it had open has been closed, so that it writes.
        found.is_some_and(|pid| !Path::new(&format!("/proc/{pid}/fd/2")).exists())
    });
    found.expect("it runs")
}

/// Runs a command that leaves a writer, which others put into their group meanwhile; its pid, and how the command
/// ended.
fn run_and_put_elsewhere(sandbox: &Sandbox, code: i32) -> (i32, Ended) {
    let scratch = sandbox.scratch();
    let script = scratch.join("writer.sh");
    std::fs::write(&script, WRITER).expect("a script");
    let command = format!("sh {} & read -r go; exit {code}", script.display());
    let line = sandbox.pando(["tx", "run", "--retry", "0", "--", "sh", "-c", &command]).directory(&scratch);
    let mut started = line.start_with_open_input();
    let pid = writer(sandbox);
    std::fs::write(own_group(), pid.to_string()).expect("it is put elsewhere");
    started.input().write_all(b"go\n").expect("it is read");
    (pid, started.wait())
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).expect("it is there").lines().count()
}

fn put_elsewhere_aborted(sandbox: &Sandbox) {
    let (pid, ended) = run_and_put_elsewhere(sandbox, 3);
    assert_eq!(ended.code(), 3, "{}", ended.err());
    let is_alive = process::is_alive(pid);
    process::kill(pid);
    assert!(!is_alive, "it goes on: {}", ended.err());
    assert!(!sandbox.scratch().join("F").exists());
}

fn put_elsewhere(sandbox: &Sandbox) {
    let (pid, ended) = run_and_put_elsewhere(sandbox, 0);
    let words = ended.succeeded().err();
    let (f, g) = (sandbox.scratch().join("F"), sandbox.scratch().join("G"));
    let is_alive = process::is_alive(pid);
    process::kill(pid);
    // Its working directory is in the view, so that it cannot go on.
    assert!(!is_alive && words.contains("its working directory is"), "{words}");
    let (f, g) = (lines(&f), lines(&g));
    assert!(f == g || f == g + 1, "a state that never was: {f} {g}");
}

fn born_elsewhere(sandbox: &Sandbox) {
    let (scratch, group) = (sandbox.scratch(), own_group());
    // `struct clone_args`: CLONE_INTO_CGROUP, SIGCHLD, the descriptor of the group.
    let program = "import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
group = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
arguments = struct.pack('11Q', 0x200000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, group)
pid = libc.syscall(435, arguments, len(arguments))
if pid == 0:
    os.closerange(0, 10)
    time.sleep(600)
    os._exit(0)
print(pid, flush=True)
sys.exit(3)";
    let group = group.parent().expect("a directory");
    let line = sandbox.pando(["tx", "run", "--retry", "0", "--", "python3", "-c", program]).directory(&scratch);
    let ended = line.args([group]).run().ended_with(3);
    let pid: i32 = ended.out().trim().parse().expect("a pid");
    assert!(pid > 0, "a kernel of this age has the call");
    let is_alive = process::is_alive(pid);
    process::kill(pid);
    assert!(!is_alive, "it goes on: {}", ended.err());
}

fn open(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let script = scratch.join("writer.sh");
    std::fs::write(&script, WRITER).expect("a script");
    for end in ["abort", "commit"] {
        sandbox.pando(["tx", "begin", "t"]).ok();
        let command = format!("sh {} & read -r go", script.display());
        let line = sandbox.pando(["tx", "enter", "t", "--", "sh", "-c", &command]).directory(&scratch);
        let mut started = line.start_with_open_input();
        let pid = writer(sandbox);
        std::fs::write(own_group(), pid.to_string()).expect("it is put elsewhere");
        started.input().write_all(b"go\n").expect("it is read");
        started.wait().succeeded();
        let ended = sandbox.pando(["tx", end, "t"]).run();
        let is_alive = process::is_alive(pid);
        process::kill(pid);
        assert!(!is_alive, "{end}: it goes on: {}", ended.err());
        ended.succeeded();
    }
    let (f, g) = (lines(&scratch.join("F")), lines(&scratch.join("G")));
    assert!(f == g || f == g + 1, "a state that never was: {f} {g}");
}

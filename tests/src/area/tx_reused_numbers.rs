//! The kernel gives numbers again: the pid of a process that has gone, the number of a namespace that has gone. Whoever
//! has them then is nobody's part, is not looked into, and lives on.

use crate::case::Case;
use crate::line::{Line, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] =
    &[
        Case::new("tx_reused_numbers::who_has_a_holders_pid_is_left_alone", holders_pid),
        Case::new("tx_reused_numbers::who_has_the_number_of_a_views_mounts_is_left_alone", views_number)
            .needs(&[Need::Program("unshare", "util-linux")]),
        Case::new("tx_reused_numbers::who_has_the_pid_of_one_that_was_left_running_is_left_alone", left_running)
            .needs(&[Need::Root, Need::Linux(6, 14), Need::Program("unshare", "util-linux"), PYTHON]),
    ];

const PYTHON: Need = Need::Program("python3", "python3");

/// A process with mounts of its own, that a program which takes it for somebody else would end alone.
fn bystander() -> (Started, i32) {
    let started = Line::new("unshare").args(["-m", "sleep", "1000"]).start();
    let pid = started.pid();
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    eventually("it sleeps", || name() == "sleep\n");
    (started, pid)
}

/// Its holder is killed, and its pid given to another. That cannot be waited for: the record is made to say so.
fn holders_pid(sandbox: &Sandbox) {
    sandbox.pando(["tx", "begin", "work"]).ok();
    let record = sandbox.root().join("var/lib/pando/tx/work/record.json");
    let read = || -> serde_json::Value { serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap() };
    let mut value = read();
    process::kill(i32::try_from(value["holder"].as_i64().unwrap()).unwrap());
    let (started, pid) = bystander();
    value["holder"] = pid.into();
    std::fs::write(&record, serde_json::to_vec(&value).unwrap()).unwrap();
    let enter = sandbox.pando(["tx", "enter", "work", "--", "readlink", "/proc/self/ns/mnt"]).run();
    let theirs = std::fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
    assert!(enter.code() != 0 && !enter.out().contains(&*theirs.to_string_lossy()), "{}{}", enter.out(), enter.err());
    sandbox.pando(["tx", "commit", "work"]).run().ended_with(125);
    assert!(process::is_alive(pid), "a commit has ended it");
    sandbox.pando(["tx", "abort", "work"]).run();
    sandbox.pando(["tx", "recover"]).ok();
    assert!(process::is_alive(pid), "an abort has ended it");
    assert_eq!(sandbox.pando(["tx", "ls", "--json"]).ok().trim(), "[]");
    drop(started);
}

/// Makes mount namespaces, one after another and each for a moment, until a file is there.
const MOUNTS: &str = "until [ -e stop ]; do unshare -m sh -c 'sleep .02; :' || exit; done 2>/dev/null; [ -e stop ]";

/// What a command leaves is in a namespace of its own when that of its view has gone.
const COMMAND: [&str; 5] = ["unshare", "-m", "sh", "-c", "setsid sleep 100 >/dev/null 2>&1 & :"];

fn views_number(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let others: Vec<Started> =
        (0..4).map(|_| Line::new("sh").args(["-c", MOUNTS]).directory(scratch.clone()).limit(300).start()).collect();
    for _ in 0..60 {
        sandbox.pando(["tx", "run", "--retry", "0", "--"]).args(COMMAND).limit(60).run().succeeded();
    }
    std::fs::write(scratch.join("stop"), "").unwrap();
    others.into_iter().for_each(|one| drop(one.wait().succeeded()));
}

/// Leaves a process that its parent does not wait for.
const LEAVE: &str = "import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
word = '4343' if os.fork() else '4242'
os.execvp('sleep', ['sleep', word])
";

/// Ends a process that was left running once it stands still, has its pid taken by another, and looks what became of
/// that and of the machine's mounts. All in a pid and a mount namespace of its own, which play the machine.
const TAKER: &str = r#"
import os, subprocess, sys, time
pando, root, live = sys.argv[1:]
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
# Of this pid namespace alone.
open("/proc/sys/kernel/pid_max", "w").write("1500")
def spend():
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
# The first 300 are never given again.
for _ in range(320): spend()
words = lambda pid: open(f"/proc/{pid}/cmdline").read().split("\0")
def found(*wanted):
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and words(name)[:-1] == list(wanted): return int(name)
        except OSError: pass
def until(what, holds):
    for _ in range(3000):
        if got := holds(): return got
        time.sleep(.01)
    sys.exit("never: " + what)
state = lambda pid: open(f"/proc/{pid}/stat").read().rsplit(") ")[1][0]
mounts = lambda: sorted(line.split()[0] for line in open("/proc/self/mountinfo") if line.split()[4] in ("/", root + "/var/lib/pando/tx"))
script = f"cd /; python3 {live}/leave.py >/dev/null 2>&1 </dev/null & cd {live}; echo x >a; echo y >b; until grep -qs '[4]242' /proc/[0-9]*/cmdline; do sleep .05; done; sleep .1"
run = subprocess.Popen([pando, "--root", root, "tx", "run", "--gate", "none", "--no-durable", "--", "sh", "-c", script],
    env=dict(os.environ, PANDO_TX_STOP_STEP="2"), stderr=subprocess.PIPE, text=True)
until("the commit stops", lambda: state(run.pid) == "T")
before, victim = mounts(), found("sleep", "4242")
os.kill(victim, 9)
until("it is gone", lambda: not os.path.exists(f"/proc/{victim}"))
taker, tries = 0, 0
while taker != victim and (tries := tries + 1) < 5000:
    taker = os.fork()
    if taker == 0:
        if os.getpid() == victim:
            os.chdir("/")
            os.execvp("sleep", ["sleep", "4444"])
        os._exit(0)
    if taker != victim: os.waitpid(taker, 0)
until("it sleeps", lambda: found("sleep", "4444"))
group = lambda: open(f"/proc/{taker}/cgroup").read()
was_in = group()
os.kill(run.pid, 18)
said = run.communicate()[1]
print(f"{run.returncode} {mounts() == before} {os.path.exists(f'/proc/{taker}') and state(taker)} {group() == was_in}", said.count("sleep, pid"))
"#;

fn left_running(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    std::fs::write(scratch.join("leave.py"), LEAVE).unwrap();
    std::fs::write(scratch.join("taker.py"), TAKER).unwrap();
    let line = Line::new("unshare").args(["-mpf", "--kill-child", "--mount-proc", "python3"]);
    let line = line.args([&scratch.join("taker.py"), sandbox.program(), sandbox.root(), &scratch]);
    line.limit(120).run().succeeded().says("0 True S True 1\n");
}

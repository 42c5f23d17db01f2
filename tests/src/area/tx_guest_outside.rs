//! What a transaction in a guest does outside of files, and what it gets from there.

use crate::case::Case;
use crate::line::{Line, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_guest::signals_wait_for_the_commit", signals_wait),
    Case::new("tx_guest::signals_of_entered_commands_wait_too", signals_of_entered),
    Case::new("tx_guest::signals_that_nobody_may_send_are_refused", signals_without_a_right),
    Case::new("tx_guest::what_cannot_be_undone_is_named", unsupported_is_named),
    Case::new("tx_guest::objects_with_a_key_are_its_own", objects).needs(PYTHON),
    Case::new("tx_guest::calls_that_make_no_sense_do_no_harm", nonsense).needs(PYTHON),
    Case::new("tx_guest::connections_are_named", connections),
    Case::new("tx_guest::what_was_read_is_validated_before_something_passes", validated_before),
    Case::new("tx_guest::what_was_listed_before_something_passed_counts_at_the_commit", listed_before),
    Case::new("tx_guest::a_look_is_no_change", look_is_no_change),
    Case::new("tx_guest::servers_of_the_guest_cannot_be_undone", local_servers).needs(PYTHON),
    Case::new("tx_guest::piped_input_comes_again", input_comes_again),
    Case::new("tx_guest::daemons_go_on_in_the_live_tree", daemons_go_on),
    Case::new("tx_guest::what_a_daemon_would_lose_ends_it", daemons_that_lose),
];

/// It runs in the guest, where the host's programs are shown.
const PYTHON: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

/// `pando tx run --guest g OPTIONS -- sh -c SCRIPT`.
fn run(sandbox: &Sandbox, options: &[&str], script: &str) -> Line {
    sandbox.pando(["tx", "run", "--guest", "g"]).args(options).args(["--", "sh", "-c", script])
}

fn sh(sandbox: &Sandbox, script: &str) -> String {
    sandbox.exec_sh("g", script).ok()
}

fn is_there(sandbox: &Sandbox, path: &str) -> bool {
    sandbox.exec_sh("g", &format!("test -e {path}")).run().code() == 0
}

/// A process of the guest's that notes a signal, and its pid there.
fn listener(sandbox: &Sandbox) -> (Started, String) {
    // That of an earlier one is not to be taken for its.
    sh(sandbox, "rm -f /tmp/pid /tmp/got");
    let script = "trap 'echo got >/tmp/got; exit 0' USR1; echo $$ >/tmp/pid; while :; do sleep 0.05; done";
    let started = sandbox.exec_sh("g", &format!("mkdir -p /tmp; {script}")).start();
    eventually("the listener is ready", || {
        sandbox.exec_sh("g", "cat /tmp/pid 2>/dev/null").run().out().ends_with('\n')
    });
    let pid = sh(sandbox, "cat /tmp/pid").trim().to_owned();
    (started, pid)
}

/// To a process, from one in a pid namespace of its guest, whose numbers mean others outside.
fn signals_wait(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    let (outside, pid) = listener(sandbox);
    let kill = format!("kill -USR1 {pid} && sleep 0.4");
    run(sandbox, &[], &format!("{kill}; exit 7")).run().ended_with(7).complains_of(&["aborted: exit code 7"]);
    assert!(!is_there(sandbox, "/tmp/got"), "a signal of a transaction that was aborted has come");
    // A control: the same without a transaction comes at once. A process of the transaction gets it at once, too.
    run(sandbox, &[], "trap 'exit 8' USR1; kill -USR1 $$; sleep 5").run().ended_with(8);
    run(sandbox, &["--no-daemons"], "sleep 1000 & kill $! && wait $!; test $? = 143").run().succeeded();
    let running = run(sandbox, &[], &format!("kill -USR1 {pid} && sleep 1.5")).start();
    std::thread::sleep(Duration::from_millis(900));
    assert!(!is_there(sandbox, "/tmp/got"), "a signal has come before the commit");
    running.wait().succeeded();
    eventually("the signal has come", || is_there(sandbox, "/tmp/got"));
    outside.wait().succeeded();
    let (outside, pid) = listener(sandbox);
    sh(sandbox, &format!("kill -USR1 {pid}"));
    outside.wait().succeeded();
    // Those that wait take no room without end.
    let (outside, pid) = listener(sandbox);
    let flood = format!(
        "for i in $(seq 400); do kill -USR1 {pid} || exit 8; done; for i in $(seq 400); do kill -USR1 {pid} || exit 9; done"
    );
    run(sandbox, &[], &flood).run().ended_with(9).complains_of(&["nothing was changed"]);
    assert!(!is_there(sandbox, "/tmp/got"));
    sh(sandbox, &format!("kill -USR1 {pid}"));
    outside.wait().succeeded();
    // The first process of the guest is not to be ended from inside it, in a transaction neither.
    run(sandbox, &[], "kill -9 1; test -e /proc/1 && kill -0 1").run().succeeded();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(sandbox.state("g"), "running");
}

fn signals_of_entered(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    let (outside, pid) = listener(sandbox);
    let tx = |verb: &str| sandbox.pando(["tx", verb, "--guest", "g", "work"]);
    tx("begin").ok();
    tx("enter").args(["--", "kill", "-USR1", &pid]).ok();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!is_there(sandbox, "/tmp/got"));
    tx("commit").ok();
    eventually("the signal has come", || is_there(sandbox, "/tmp/got"));
    outside.wait().succeeded();
}

/// What is sent for a command later is sent with all rights: only what the command may send itself.
fn signals_without_a_right(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    sh(sandbox, "echo 'root:x:0:0::/:/bin/sh' >/etc/passwd; echo 'user:x:1000:1000::/:/bin/sh' >>/etc/passwd");
    let (outside, pid) = listener(sandbox);
    let kill = |who: &str| format!("su {who} -c 'kill -USR1 {pid}'");
    run(sandbox, &[], &format!("{} 2>/tmp/why && exit 9; grep -q permitted /tmp/why", kill("user"))).run().succeeded();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!is_there(sandbox, "/tmp/got"), "somebody's signal has come whose it was not to send");
    run(sandbox, &[], &kill("root")).run().succeeded();
    eventually("the signal has come", || is_there(sandbox, "/tmp/got"));
    outside.wait().succeeded();
}

fn unsupported_is_named(sandbox: &Sandbox) {
    // What the guest has not the right to is refused to it in a transaction as without one.
    sandbox.guest("plain", &[]);
    let unprivileged = sandbox.pando([
        "tx",
        "run",
        "--guest",
        "plain",
        "--",
        "sh",
        "-c",
        "mkdir m; mount -t tmpfs none m; hostname other; true",
    ]);
    unprivileged.run().succeeded().complains_of(&["committed"]);
    sandbox.guest("g", &["--profile", "system"]);
    sh(sandbox, "mkdir /srv/m");
    let mount = "echo >/srv/made; mount -t tmpfs none /srv/m";
    let said = ["mount by process", "of /srv/m, cannot be a part of a transaction", "nothing was changed"];
    run(sandbox, &[], mount).run().ended_with(125).complains_of(&said);
    run(sandbox, &[], "hostname other").run().ended_with(125).complains_of(&["sethostname by process", "of other,"]);
    assert_ne!(sh(sandbox, "hostname"), "other\n");
    run(sandbox, &[], "kill -USR2 -1").run().ended_with(125).complains_of(&["kill by process", "of all processes"]);
    assert!(!is_there(sandbox, "/srv/made"));
    // In mounts of its own it is nobody's matter; where it is let, it happens.
    run(sandbox, &[], "unshare -m mount -t tmpfs none /srv/m; echo >/srv/own").run().succeeded();
    assert!(is_there(sandbox, "/srv/own"));
    let warned = run(sandbox, &["--unsupported=warn"], "hostname other").run().succeeded();
    warned.complains_of(&["sethostname by process", "it was done"]);
    assert_eq!(sh(sandbox, "hostname"), "other\n");
    let tx = |verb: &str| sandbox.pando(["tx", verb, "--guest", "g", "work"]);
    tx("begin").ok();
    let entered = tx("enter").args(["--", "sh", "-c", "hostname third && exit 9; echo >/srv/on"]).run().succeeded();
    entered.complains_of(&["sethostname by process", "it was not done"]);
    tx("enter").args(["--unsupported=warn", "--", "hostname", "fourth"]).ok();
    tx("commit").ok();
    assert_eq!(sh(sandbox, "hostname; ls /srv/on"), "fourth\n/srv/on\n");
}

/// A guest that has the host's programs.
pub(super) fn guest_with_programs(sandbox: &Sandbox) {
    let volumes = ["/usr:/usr:ro", "/lib:/lib:ro", "/lib64:/lib64:ro"].into_iter().filter(|volume| {
        let host = volume.split(':').next().unwrap_or_default();
        std::path::Path::new(host).exists()
    });
    let options: Vec<&str> = volumes.flat_map(|volume| ["-v", volume]).collect();
    sandbox.guest("g", &options);
}

/// Numbers and addresses that make no sense, from threads that end while their calls wait: whoever answers them goes
/// on, and what the kernel says is said.
const NONSENSE: &str = r#"
import ctypes, os, threading
call = ctypes.CDLL(None, use_errno=True).syscall
KILL, TKILL, TGKILL, MOUNT, CONNECT, SENDTO, SHMGET, PIDFD, SOCKET = 62, 200, 234, 165, 42, 44, 29, 424, 41
odd = [0, 1, -1, 8, 110, 4095, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 47, (1 << 63) - 1, -(1 << 63)]
word = lambda number: ctypes.c_long(number)
fd = call(SOCKET, 1, 1, 0)
def all():
    for number in odd:
        if number not in (0, -1, 1 << 47, 1 << 63, -(1 << 63)): call(KILL, word(number), 0)
        call(KILL, word(-(1 << 31)), 10)
        call(TKILL, word(number | 1 << 30), 10)
        call(TGKILL, word(number | 1 << 30), 1, 10)
        call(PIDFD, word(number), 10, 0, 0)
        call(MOUNT, word(number), word(number), word(number), 0, 0)
        for length in odd:
            call(CONNECT, fd, word(number), word(length))
            call(SENDTO, fd, word(number), 1, 0, word(number), word(length))
threads = [threading.Thread(target=all) for _ in range(4)]
[thread.start() for thread in threads]
for _ in range(50):
    child = os.fork()
    if child == 0:
        all() if os.getpid() % 2 else None
        os._exit(0)
    os.kill(child, 9)
    os.waitpid(child, 0)
[thread.join() for thread in threads]
"#;

fn nonsense(sandbox: &Sandbox) {
    guest_with_programs(sandbox);
    let line = sandbox.pando(["tx", "run", "--guest", "g", "--", "python3", "-c", NONSENSE]);
    line.run().succeeded().complains_of(&["committed"]);
    // Whoever has gone through that can still be committed to.
    run(sandbox, &[], "echo >/srv/after").run().succeeded();
    assert!(is_there(sandbox, "/srv/after"));
}

fn objects(sandbox: &Sandbox) {
    guest_with_programs(sandbox);
    let get = "import ctypes; number = ctypes.CDLL(None).shmget(4660, 4096, 0o1600); assert number >= 0";
    let python = |line: Line| line.args(["--", "python3", "-c", get]).run();
    let in_transaction = || python(sandbox.pando(["tx", "run", "--guest", "g"]));
    in_transaction().succeeded();
    let there = || sh(sandbox, "grep -cw 4660 /proc/sysvipc/shm || true");
    assert_eq!(there(), "0\n", "an object of a transaction's is seen outside");
    python(sandbox.pando(["exec", "g"])).succeeded();
    assert_eq!(there(), "1\n");
    in_transaction().ended_with(125).complains_of(&["shmget by process", "key 0x1234"]);
}

fn connections(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    // Nobody has to listen: what matters is that it was tried.
    let connect = "nc -w 1 127.0.0.1 9 </dev/null; true";
    run(sandbox, &[], connect).run().succeeded().complains_of(&["committed", "1 connection had passed: 127.0.0.1:9"]);
    let aborted = run(sandbox, &[], "nc -w 1 127.0.0.1 9 </dev/null; exit 3").run().ended_with(3);
    aborted.complains_of(&["nothing was changed", "1 connection had passed"]);
    let refused = run(sandbox, &["--net=refuse"], connect).run().ended_with(125);
    refused.complains_of(&["socket by process", "cannot be a part of a transaction"]);
    let plain = run(sandbox, &["--net=refuse"], "echo >/srv/made").run().succeeded();
    assert!(!plain.err().contains("had passed"), "{}", plain.err());
}

/// Connects to where nobody has to listen.
const CONNECT: &str = "nc -w 1 127.0.0.1 9 </dev/null || true";

/// Starts a transaction that reads, says so, waits for a line, and goes on.
fn begun(sandbox: &Sandbox, options: &[&str], reads: &str, goes_on: &str) -> Started {
    let script = format!("{reads}; echo >/srv/ready; read line || true; {goes_on}");
    let started = run(sandbox, options, &script).start_with_open_input();
    let kept = sandbox.places().guests().join("g/tx");
    eventually("the transaction has read", || {
        let found = Line::new("find").args([kept.as_path()]).args(["-path", "*/upper/srv/ready"]).run();
        !found.out().is_empty()
    });
    started
}

/// It is stopped right there: what follows would take longer than the test may.
fn validated_before(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    sh(sandbox, "echo old >/srv/read; mkdir /srv/d");
    for (reads, changes, said) in [
        ("cat /srv/read", "echo new >/srv/read", "/srv/read was changed by others"),
        ("ls /srv/d", "echo >/srv/d/new", "/srv/d was listed, and changed by others"),
    ] {
        let lingers = format!("{CONNECT}; test -e /srv/again || exec sleep 1000");
        let started = begun(sandbox, &[], reads, &lingers);
        sh(sandbox, &format!("{changes}; echo >/srv/again"));
        let ended = started.close_input().wait().succeeded();
        ended.complains_of(&[said, "running it again (1 of 3)", "1 retry", "1 connection had passed"]);
        sh(sandbox, "rm /srv/again");
    }
    // With the guest to itself nobody looks, and there is nothing to be seen.
    let started = begun(sandbox, &["--retry", "0"], "cat /srv/read", CONNECT);
    sh(sandbox, "echo newer >/srv/read");
    started.close_input().wait().succeeded().complains_of(&["frozen", "freeze for the whole run"]);
}

/// The kernel tells once of a directory that was opened.
fn listed_before(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    sh(sandbox, "mkdir /srv/d /srv/e");
    let reads = format!("ls /srv/d; {CONNECT}; ls /srv/e; {CONNECT}");
    for directory in ["d", "e"] {
        let started = begun(sandbox, &[], &reads, "true");
        sh(sandbox, &format!("echo >/srv/{directory}/new"));
        let said = format!("/srv/{directory} was listed, and changed by others");
        started.close_input().wait().succeeded().complains_of(&[&said, "1 retry"]);
        sh(sandbox, &format!("rm /srv/{directory}/new"));
    }
}

/// What the guest has of its layers alone is copied up where it is asked whether it can be written to.
fn look_is_no_change(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    let script = format!(
        "echo more >>/etc/hostname; cp /bin/busybox /tmp/b; cat /tmp/b >/bin/not-a-program; mv /home/ada /home/eve; \
         rm /etc/group; rmdir /var/log; {CONNECT}; echo more >>/etc/passwd; sleep 1; {CONNECT}; chmod 600 /etc/passwd"
    );
    run(sandbox, &[], &script).run().succeeded().complains_of(&["committed", "0 retries"]);
    assert_eq!(sh(sandbox, "cat /etc/hostname; ls /etc /home"), "tree\nmore\n/etc:\nhostname\npasswd\n\n/home:\neve\n");
}

/// A server in the guest's own files, which are an overlay as the view is; it is the same as on the host.
fn local_servers(sandbox: &Sandbox) {
    guest_with_programs(sandbox);
    sh(sandbox, "mkdir -p /srv/real; ln -s real /srv/link");
    let server = "import socket\n\
                  stream = socket.socket(socket.AF_UNIX); stream.bind('/srv/link/server'); stream.listen()\n\
                  words = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); words.bind('/srv/words')\n\
                  print(words.recv(9).decode(), flush=True); there, _ = stream.accept(); print(there.recv(9).decode())";
    let server = sandbox.pando(["exec", "g", "--", "python3", "-c", server]).start();
    eventually("the server listens", || is_there(sandbox, "/srv/words"));
    let python = |options: &[&str], script: &str| {
        let script = format!("import socket; new = lambda *kind: socket.socket(socket.AF_UNIX, *kind)\n{script}");
        sandbox.pando(["tx", "run", "--guest", "g"]).args(options).args(["--", "python3", "-c", &script]).run()
    };
    let connect = "s = new(); s.connect('/srv/real/server'); s.send(b'stream')";
    let said = ["connect by process", "of socket /srv/real/server, cannot be a part of a transaction"];
    python(&[], connect).ended_with(125).complains_of(&said);
    let message = "new(socket.SOCK_DGRAM).sendmsg([b'word'], [], 0, '/srv/words')";
    python(&[], message)
        .ended_with(125)
        .complains_of(&["sendmsg by process", "of socket /srv/words, cannot be a part"]);
    python(&["--unsupported=warn"], message).succeeded().complains_of(&["socket /srv/words", "it was done"]);
    python(&["--unsupported=warn"], connect).succeeded().complains_of(&["socket /srv/real/server", "it was done"]);
    assert_eq!(server.wait().succeeded().out(), "word\nstream\n");
    // One of its own, at a path and through messages, and one that nobody listens on any more.
    let own = "s = new(); s.bind('/srv/own'); s.listen(); new().connect('/srv/own')\n\
               d = new(socket.SOCK_DGRAM); d.bind('/srv/more'); new(socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, '/srv/more')\n\
               assert d.recv(9) == b'x' and new().connect_ex('/srv/real/server')";
    python(&[], own).succeeded();
}

/// The first run lingers until somebody else has changed what it has read.
fn input_comes_again(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    sh(sandbox, "echo >/srv/read");
    let script = "cat /srv/read >/dev/null; cat >/srv/got; test -e /srv/again || sleep 1000 || true";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // By its name alone: the shell's own words hold those of the sleep that it has yet to start.
            eventually("the first run lingers", || sandbox.exec_sh("g", "pidof sleep").run().code() == 0);
            // It may have been found doomed, and ended, by then.
            sh(sandbox, "echo >/srv/again; echo changed >/srv/read; kill $(pidof sleep) 2>/dev/null || true");
        });
        let ended = run(sandbox, &[], script).input("one\ntwo\n").run().succeeded();
        ended.complains_of(&["running it again"]);
    });
    assert_eq!(sh(sandbox, "cat /srv/got"), "one\ntwo\n");
}

/// A daemon that answers what it is asked by files, and sends signals, which is among what is caught in a transaction.
const SERVER: &str = "mkdir -p /srv/d; cat >/srv/d/server <<'END'
echo $$ >/srv/d/pid
while :; do
    test -e /srv/d/whom && kill -USR1 $(cat /srv/d/whom) && rm /srv/d/whom
    cat /srv/d/asked >/srv/d/answered 2>/dev/null
    sleep 0.1
done
END
cd /; (setsid sh /srv/d/server </dev/null >/dev/null 2>&1 &); until test -s /srv/d/pid; do sleep 0.05; done";

fn daemons_go_on(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    let ended = run(sandbox, &[], SERVER).run().succeeded();
    ended.complains_of(&["committed", "go", " on: ", "sh, pid"]);
    let pid = sh(sandbox, "cat /srv/d/pid").trim().to_owned();
    // It sees what comes later, is seen, and what it sends comes at once.
    sh(sandbox, "echo later >/srv/d/asked");
    eventually("the daemon answers", || sh(sandbox, "cat /srv/d/answered 2>/dev/null || true") == "later\n");
    let (outside, listener) = listener(sandbox);
    sh(sandbox, &format!("echo {listener} >/srv/d/new; mv /srv/d/new /srv/d/whom"));
    eventually("its signal has come", || is_there(sandbox, "/tmp/got"));
    outside.wait().succeeded();
    let roots = sh(sandbox, &format!("stat -c '%d %i' / /proc/{pid}/root/; grep -c ' / / ' /proc/{pid}/mountinfo"));
    let roots: Vec<&str> = roots.lines().collect();
    assert_eq!((roots[0], roots[2]), (roots[1], "1"), "{roots:?}");
    // It is one of the guest's: it is frozen with the others, and ends with them.
    run(sandbox, &[], "echo again >/srv/d/asked").run().succeeded();
    eventually("the daemon answers", || sh(sandbox, "cat /srv/d/answered") == "again\n");
    sandbox.pando(["stop", "g"]).ok();
    sandbox.pando(["start", "g"]).ok();
    assert_eq!(sh(sandbox, "cat /srv/d/answered"), "again\n");
    // One that is started by a transaction that fails, or is to leave none, is gone with it.
    for (options, end, code) in [(&[][..], "exit 4", 4), (&["--no-daemons"], "exit 0", 0)] {
        let script = format!("rm -rf /srv/d; {SERVER}; {end}");
        run(sandbox, options, &script).run().ended_with(code).complains_of(&["left in it ended"]);
        assert!(!sh(sandbox, "ps").contains("/srv/d/server"));
    }
}

/// In a guest a new file is copied, so that one which is open to be written to is another than the guest gets.
fn daemons_that_lose(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    let start = |what: &str| {
        format!(
            "cd /; (setsid sleep 1000 </dev/null {what} &); until ps | grep -q '[0-9t] *sleep 1000'; do sleep 0.02; done"
        )
    };
    let ended = run(sandbox, &[], &start(">/srv/log 2>/dev/null")).run().succeeded();
    ended.complains_of(&["1 process left in it ended: sleep, pid", "what it writes to /srv/log would be lost"]);
    let ended = run(sandbox, &[], &start(">/dev/null 2>&1").replace("cd /;", "cd /srv;")).run().succeeded();
    ended.complains_of(&["1 process left in it ended: sleep, pid", "its working directory is /srv"]);
    assert!(!sh(sandbox, "ps").contains("sleep 1000"));
    let ended = run(sandbox, &[], &start(">/dev/null 2>&1")).run().succeeded();
    ended.complains_of(&["1 process goes on: sleep, pid"]);
    assert!(sh(sandbox, "ps").contains("sleep 1000"));
}

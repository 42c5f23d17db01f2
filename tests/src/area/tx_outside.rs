//! What a transaction does outside of files, and what it gets from there.

use crate::case::{Case, skip};
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::one_right_after_another_is_no_conflict", right_after),
    Case::new("tx::signals_of_32_bit_programs_wait_too", signals_of_older_programs),
    Case::new("tx::signals_of_entered_commands_wait_too", signals_of_entered),
    Case::new("tx::what_an_entered_command_cannot_undo_is_refused", entered_is_refused),
    Case::new("tx::connections_are_named", connections_are_named),
    Case::new("tx::connections_of_entered_commands_are_named_at_the_end", connections_of_entered),
    Case::new("tx::connections_of_runs_that_were_lost_or_stopped_are_named", connections_of_lost),
    Case::new("tx::the_network_can_be_refused", network_refused),
    Case::new("tx_outside::no_family_of_sockets_reaches_outside", no_family)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("tx::rings_are_not_there", no_rings).needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("tx::piped_input_comes_again", input_comes_again),
    Case::new("tx::piped_input_that_is_not_read_stays", input_stays),
    Case::new("tx::a_mount_that_takes_no_part_is_read_only", takes_no_part),
    Case::new("tx::input_of_a_file_comes_again", input_of_a_file),
    Case::new("tx::the_daemon_recovers_first", daemon_recovers),
    Case::new("tx::what_cannot_be_undone_is_named", objects_are_named),
    Case::new("tx::what_is_written_through_a_mapping_is_committed", mapped),
    Case::new("tx::servers_that_end_meanwhile_are_no_conflict", servers_that_end),
    Case::new("tx::daemons_go_on_in_the_live_tree", daemons_go_on),
    Case::new("tx::what_a_daemon_would_lose_ends_it", daemons_that_lose),
    Case::new("tx::daemons_end_with_their_transaction", daemons_end),
];

fn run_sh(sandbox: &Sandbox, options: &[&str], directory: &Path, script: &str) -> Line {
    sandbox.pando(["tx", "run"]).args(options).args(["--", "sh", "-c", script]).directory(directory)
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A process outside that notes a signal, and its pid.
fn listener(directory: &Path) -> (crate::line::Started, i32) {
    let script = "trap 'echo got >signalled; exit 0' USR1; echo $$ >pid; while :; do sleep 0.05; done";
    let started = Line::new("sh").args(["-c", script]).directory(directory).start();
    eventually("the process outside is ready", || read(directory.join("pid")).ends_with('\n'));
    let pid = started.pid();
    (started, pid)
}

fn right_after(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::write(directory.join("count"), "").expect("a file can be written");
    for _ in 0..10 {
        run_sh(sandbox, &["--retry", "0"], &directory, "read x <count; echo a$x >>count; ls >/dev/null")
            .run()
            .succeeded();
    }
    assert_eq!(read(directory.join("count")).lines().count(), 10);
}

/// A program that sends a signal by the calls that 32-bit programs make (`int 0x80`), which a program of this
/// architecture can make too.
fn older_program(directory: &Path, pid: i32, signal: u32) -> PathBuf {
    const START: u64 = 0x40_0000;
    const HEADS: u64 = 64 + 56;
    let mut code = vec![0xb8, 37, 0, 0, 0, 0xbb];
    code.extend(pid.to_le_bytes());
    code.push(0xb9);
    code.extend(signal.to_le_bytes());
    // Then exit(0).
    code.extend([0xcd, 0x80, 0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80]);
    let size = HEADS + code.len() as u64;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    file.resize(16, 0);
    for half in [2_u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    for long in [START + HEADS, 64, 0] {
        file.extend(long.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for word in [1_u32, 5] {
        file.extend(word.to_le_bytes());
    }
    for long in [0, START, START, size, size, 0x1000] {
        file.extend(long.to_le_bytes());
    }
    file.extend(code);
    let path = directory.join("older");
    fs::write(&path, file).expect("a file can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode can be set");
    path
}

fn signals_of_older_programs(sandbox: &Sandbox) {
    if !cfg!(target_arch = "x86_64") {
        skip("other architectures have other older programs");
    }
    let directory = sandbox.scratch();
    let (outside, pid) = listener(&directory);
    // By signal 0 nothing is sent: whether this machine runs such programs.
    let asks = older_program(&directory, pid, 0);
    if Line::new(&asks).run().code() != 0 {
        skip("this kernel runs no 32-bit programs");
    }
    older_program(&directory, pid, rustix::process::Signal::USR1.as_raw().unsigned_abs());
    run_sh(sandbox, &[], &directory, "./older && sleep 0.3; test -e signalled && exit 9; exit 7").run().ended_with(7);
    assert!(!directory.join("signalled").exists());
    run_sh(sandbox, &[], &directory, "./older").run().succeeded();
    eventually("the signal has come", || directory.join("signalled").exists());
    outside.wait().succeeded();
}

fn signals_of_entered(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let (outside, pid) = listener(&directory);
    sandbox.pando(["tx", "begin", "work"]).run().succeeded();
    let kill = format!("kill -USR1 {pid}");
    sandbox.pando(["tx", "enter", "work", "--", "sh", "-c", &kill]).run().succeeded();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!directory.join("signalled").exists());
    sandbox.pando(["tx", "commit", "work"]).run().succeeded();
    eventually("the signal has come", || directory.join("signalled").exists());
    outside.wait().succeeded();
}

fn entered_is_refused(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    sandbox.pando(["tx", "begin", "work"]).run().succeeded();
    let script = "mkdir m; mount -t tmpfs none m && exit 9; echo on >here";
    let enter = sandbox.pando(["tx", "enter", "work", "--", "sh", "-c", script]).directory(&directory);
    enter.run().succeeded().complains_of(&["mount by process", "it was not done"]);
    sandbox.pando(["tx", "commit", "work"]).run().succeeded();
    assert_eq!(read(directory.join("here")), "on\n");
}

/// A server on the loopback, and a command that connects to it.
fn server() -> (TcpListener, String, String) {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    let address = server.local_addr().expect("it has an address");
    let command = format!("exec 3<>/dev/tcp/127.0.0.1/{}", address.port());
    (server, address.to_string(), command)
}

fn connections_are_named(sandbox: &Sandbox) {
    let (_server, address, connect) = server();
    let ended = sandbox.pando(["tx", "run", "--", "bash", "-c", &connect]).run().succeeded();
    ended.complains_of(&["1 connection had passed", &address]);
    let ended = sandbox.pando(["tx", "run", "--", "bash", "-c", &format!("{connect}; exit 3")]).run().ended_with(3);
    ended.complains_of(&["nothing was changed", "1 connection had passed"]);
}

fn connections_of_entered(sandbox: &Sandbox) {
    let (_server, address, connect) = server();
    for (end, ended) in [("commit", "committed: 0 paths"), ("abort", "aborted: as asked; nothing was changed")] {
        sandbox.pando(["tx", "begin", "work"]).ok();
        sandbox.pando(["tx", "enter", "work", "--", "bash", "-c", &connect]).ok();
        sandbox.pando(["tx", "enter", "work", "--", "true"]).ok();
        let said = sandbox.pando(["tx", end, "work"]).run().succeeded();
        said.complains_of(&[ended, "1 connection had passed", &address]);
    }
}

fn connections_of_lost(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let (_server, address, connect) = server();
    let passed = ["1 connection had passed", &address];
    let bash = |options: &[&str], script: &str| {
        let line = sandbox.pando(["tx", "run"]).args(options).args(["--", "bash", "-c", script]);
        line.directory(&directory)
    };
    let stopped = format!("{connect}; mkdir -p m; mount -t tmpfs none m; sleep 5");
    bash(&[], &stopped).run().ended_with(125).complains_of(&["mount by process"]).complains_of(&passed);
    bash(&["--timeout", "0.5"], &format!("{connect}; sleep 1000")).run().ended_with(125).complains_of(&passed);
    // Only the first run connects, and is lost.
    let script = format!("test -e again || {{ {connect}; }}; {}", lost_once(&directory, "5.31415"));
    let other = changed_meanwhile(&directory, "5.31415");
    let ended = bash(&[], &script).run().succeeded();
    other.join().expect("it does not panic");
    ended.complains_of(&["running it again"]).complains_of(&passed);
}

/// Whatever goes through a ring of io_uring goes past everybody who looks at calls: connections, for one.
fn no_rings(sandbox: &Sandbox) {
    let script = "import ctypes; call = ctypes.CDLL(None, use_errno=True).syscall; room = ctypes.create_string_buffer(256)\n\
                  print([(call(number, 4, room, 0, 0, 0, 0), ctypes.get_errno()) for number in (425, 426, 427)])";
    for network in ["--net=refuse", "--net=pass"] {
        let said = sandbox.pando(["tx", "run", network, "--", "python3", "-c", script]).ok();
        assert_eq!(said.trim(), "[(-1, 38), (-1, 38), (-1, 38)]", "a ring was made, or used");
    }
    let said = Line::new("python3").args(["-c", script]).ok();
    if said.starts_with("[(-1") {
        skip(format!("this machine makes no rings outside of transactions either: {}", said.trim()));
    }
}

fn network_refused(sandbox: &Sandbox) {
    let (_server, _, connect) = server();
    let refused = sandbox.pando(["tx", "run", "--net=refuse", "--", "bash", "-c", &connect]).run().ended_with(125);
    refused.complains_of(&["socket by process", "cannot be a part of a transaction"]);
    sandbox.pando(["tx", "run", "--net=refuse", "--", "true"]).run().succeeded();
}

/// TCP goes by way of several families (SMC, MPTCP's own aside), and others reach the neighbours of a machine without
/// it.
fn no_family(sandbox: &Sandbox) {
    let netlink = 16;
    let made = |family: i32| {
        let script = format!("import socket; socket.socket({family}, {})", if family == netlink { 3 } else { 1 });
        sandbox.pando(["tx", "run", "--retry", "0", "--net=refuse", "--", "python3", "-E", "-s", "-c", &script]).run()
    };
    // IPv4, IPv6, packets, RDS, CAN, TIPC, Bluetooth, vsock, SMC, XDP, MCTP, and one that there may be one day.
    for family in [2, 10, 17, 21, 29, 30, 31, 40, 43, 44, 45, 60] {
        made(family).ended_with(125).complains_of(&["socket by process"]);
    }
    made(netlink).succeeded();
}

/// A view has the sockets of servers in it, which the transaction itself never asked for; here one is reached by a
/// link.
fn servers_that_end(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::create_dir(directory.join("run")).expect("a directory can be made");
    std::os::unix::fs::symlink("run", directory.join("link")).expect("a link can be made");
    let socket = directory.join("link/server");
    let server = std::os::unix::net::UnixListener::bind(&socket).expect("a socket can be bound");
    let started =
        run_sh(sandbox, &["--retry", "0"], &directory, "echo >made; read line || true").start_with_open_input();
    // Where the transactions lie is made with the first.
    let is_made = || Line::new("find").args([sandbox.root().join("var/lib/pando")]).args(["-name", "made"]).run();
    eventually("the command runs", || !is_made().out().is_empty());
    drop(server);
    fs::remove_file(socket).expect("it can be removed");
    started.close_input().wait().succeeded();
}

/// A file of before, which others have mapped, and a new one; and none of it where it is not committed.
fn mapped(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::write(directory.join("old"), "old text").expect("a file can be written");
    let write = "import mmap\n\
                 open('new', 'wb').write(b'-' * 8)\n\
                 for name in ['old', 'new']:\n  file = open(name, 'r+b'); there = mmap.mmap(file.fileno(), 0); there[:3] = b'now'";
    let holds = "import mmap, sys; file = open('old', 'r+b'); there = mmap.mmap(file.fileno(), 0); print(flush=True)\n\
                 for _ in range(2): sys.stdin.readline(); print(there[:8].decode(), flush=True)";
    let holder = Line::new("python3").args(["-c", holds]).directory(&directory).start_with_open_input();
    let run = |options: &[&str]| {
        let line = sandbox.pando(["tx", "run"]).args(options).args(["--", "python3", "-c", write]);
        line.directory(&directory).run().succeeded()
    };
    run(&["--dry-run"]);
    assert_eq!((read(directory.join("old")).as_str(), directory.join("new").exists()), ("old text", false));
    run(&[]);
    assert_eq!((read(directory.join("old")), read(directory.join("new"))), ("now text".into(), "now-----".into()));
    // At its input's end it says twice what it sees.
    assert_eq!(holder.close_input().wait().succeeded().out(), "\nnow text\nnow text\n");
}

fn objects_are_named(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::create_dir(directory.join("m")).expect("a directory can be made");
    let at = directory.join("m").display().to_string();
    run_sh(sandbox, &[], &directory, &format!("mount -t tmpfs none {at}")).run().ended_with(125).complains_of(&[&at]);
    // An object that others have is theirs; one that the transaction makes is its own, and nobody sees it.
    let key = (std::process::id() << 8 | 0x70).cast_signed();
    let get = format!("import ctypes; number = ctypes.CDLL(None).shmget({key}, 4096, 0o1600); assert number >= 0");
    let run = || sandbox.pando(["tx", "run", "--", "python3", "-c", &get]).run();
    let there = || read("/proc/sysvipc/shm").lines().any(|line| line.trim_start().starts_with(&format!("{key} ")));
    run().succeeded();
    assert!(!there());
    sandbox.pando(["tx", "begin", "work"]).ok();
    for _ in 0..2 {
        sandbox.pando(["tx", "enter", "work", "--", "python3", "-c", &get]).ok();
    }
    sandbox.pando(["tx", "abort", "work"]).ok();
    Line::new("python3").args(["-c", &get]).ok();
    assert!(there());
    let ended = run();
    Line::new("ipcrm").args(["-M", &key.to_string()]).ok();
    ended.ended_with(125).complains_of(&["shmget by process", &format!("key {key:#x}")]);
}

/// A command that reads its input and then, the first time, lingers, for a span that no other program sleeps for, and
/// meets a conflict: somebody outside changes what it has read.
fn lost_once(directory: &Path, linger: &str) -> String {
    fs::write(directory.join("read"), "").expect("a file can be written");
    format!("cat read; cat >got; test -e again || sleep {linger}")
}

fn lingers(linger: &str) -> bool {
    let words = format!("sleep\0{linger}\0");
    let all = fs::read_dir("/proc").expect("processes can be listed").flatten();
    all.into_iter().any(|one| read(one.path().join("cmdline")) == words)
}

fn changed_meanwhile(directory: &Path, linger: &'static str) -> std::thread::JoinHandle<()> {
    let directory = directory.to_owned();
    std::thread::spawn(move || {
        eventually("the first run lingers", || lingers(linger));
        fs::write(directory.join("read"), "changed").expect("a file can be written");
        fs::write(directory.join("again"), "").expect("a file can be written");
    })
}

fn input_comes_again(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let script = lost_once(&directory, "5.14159");
    let other = changed_meanwhile(&directory, "5.14159");
    let words = sandbox.pando(["tx", "run", "--", "sh", "-c"]).args([&script]).directory(&directory);
    let ended = words.input("one\ntwo\n").run().succeeded();
    other.join().expect("it does not panic");
    ended.complains_of(&["running it again"]);
    assert_eq!(read(directory.join("got")), "one\ntwo\n");
}

/// A shell's loop and the transactions in it read one pipe.
fn input_stays(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let (program, root) = (sandbox.program().display().to_string(), sandbox.root().display().to_string());
    let around =
        format!("while read line; do echo $line; {program} --root {root} tx run -q -- sh -c 'echo >>made'; done");
    let ended = Line::new("bash").args(["-c", &around]).directory(&directory).input("one\ntwo\nthree\n").run();
    assert_eq!(ended.succeeded().out(), "one\ntwo\nthree\n");
    assert_eq!(read(directory.join("made")), "\n\n\n");
}

/// A file system without room for a directory is none that a transaction could write to.
fn takes_no_part(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::create_dir(directory.join("full")).expect("a directory can be made");
    let (program, root) = (sandbox.program().display().to_string(), sandbox.root().display().to_string());
    let inside =
        format!("{program} --root {root} tx run -- sh -c 'echo new >made; ls full; ! touch full/x 2>/dev/null'");
    let around = format!("mount -t tmpfs -o nr_inodes=2 none full && touch full/there && {inside}");
    let ended = Line::new("unshare").args(["-m", "sh", "-c", &around]).directory(&directory).run().succeeded();
    assert_eq!(ended.out(), "there\n");
    ended.complains_of(&["read-only inside: ", "/full"]);
    assert_eq!(read(directory.join("made")), "new\n");
}

fn input_of_a_file(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let script = lost_once(&directory, "5.27182");
    let mut file = fs::File::create(directory.join("input")).expect("a file can be made");
    file.write_all(b"skipped\none\n").expect("a file can be written");
    let other = changed_meanwhile(&directory, "5.27182");
    // The shell reads a line of it first.
    let program = sandbox.program().display().to_string();
    let root = sandbox.root().display().to_string();
    let around = format!("exec <input; read x; exec {program} --root {root} tx run -- sh -c '{script}'");
    let ended = Line::new("bash").args(["-c", &around]).directory(&directory).run().succeeded();
    other.join().expect("it does not panic");
    ended.complains_of(&["running it again"]);
    assert_eq!(read(directory.join("got")), "one\n");
}

fn daemon_recovers(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let run = run_sh(sandbox, &[], &directory, "echo x >made; exec sleep 1000").start();
    eventually("the transaction is there", || sandbox.pando(["tx", "ls"]).run().out().contains("run-"));
    crate::process::kill(run.pid());
    let _ = run.wait();
    // Any command about guests starts the daemon.
    sandbox.pando(["ls"]).run().succeeded();
    assert!(!sandbox.pando(["tx", "ls"]).run().out().contains("run-"));
    assert!(sandbox.daemon_log().contains("was not committed, and is removed"), "{}", sandbox.daemon_log());
}

/// A daemon as they are: in a session and in a directory of its own. It answers on a port, says what the file `asked`
/// has, and appends to a log that it has made and keeps open; it sends signals, which is among what is caught in a
/// transaction.
fn server_program(directory: &Path) -> PathBuf {
    let text = format!(
        r#"
import os, socket, sys
at = {directory:?}
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", 0))
server.listen()
if os.fork(): os._exit(0)
os.setsid()
os.chdir("/")
log = open(at + "/log", "w", buffering=1)
null = os.open("/dev/null", os.O_RDWR)
for fd in range(3): os.dup2(null, fd)
open(at + "/port.new", "w").write("%d %d" % (server.getsockname()[1], os.getpid()))
os.rename(at + "/port.new", at + "/port")
child = os.fork()
if child == 0:
    import time
    while True: time.sleep(1000)
while True:
    asked, _ = server.accept()
    os.kill(child, 0)
    text = open(at + "/asked").read() if os.path.exists(at + "/asked") else "nothing"
    log.write(text + "\n")
    open(at + "/answered", "w").write(text)
    asked.sendall((text + " " + os.readlink("/proc/self/cwd")).encode())
    asked.close()
"#,
        directory = directory.display().to_string()
    );
    let path = directory.join("server.py");
    fs::write(&path, text).expect("a file can be written");
    path
}

fn ask(port: u16) -> String {
    let asked = std::net::TcpStream::connect(("127.0.0.1", port)).expect("the daemon listens");
    std::io::read_to_string(asked).expect("the daemon answers")
}

fn daemons_go_on(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let program = server_program(&directory);
    let started = format!(
        "python3 {}; until [ -e port ]; do sleep 0.01; done; echo of the transaction >asked",
        program.display()
    );
    let ended = run_sh(sandbox, &[], &directory, &started).run().succeeded();
    ended.complains_of(&["committed", "2 processes go on: python3"]);
    let said = read(directory.join("port"));
    let (port, pid) = said.split_once(' ').expect("it is a port and a pid");
    let (port, pid) = (port.parse().expect("it is a port"), pid.parse::<i32>().expect("it is a pid"));
    assert_eq!(ask(port), "of the transaction\n /");
    // It sees what comes later, is seen, and writes to what it had open.
    fs::write(directory.join("asked"), "later").expect("a file can be written");
    assert_eq!(ask(port), "later /");
    assert_eq!(read(directory.join("answered")), "later");
    assert_eq!(read(directory.join("log")), "of the transaction\n\nlater\n");
    let roots = ["/", &format!("/proc/{pid}/root/")].map(|path| rustix::fs::stat(path).expect("it is there"));
    assert_eq!((roots[0].st_dev, roots[0].st_ino), (roots[1].st_dev, roots[1].st_ino));
    assert!(!read(format!("/proc/{pid}/cgroup")).contains("pando-tx"));
    assert_eq!(sandbox.pando(["tx", "recover"]).ok(), "");
    assert_eq!(ask(port), "later /");
    for child in read(format!("/proc/{pid}/task/{pid}/children")).split_whitespace() {
        crate::process::kill(child.parse().expect("it is a pid"));
    }
    crate::process::kill(pid);
    // One that is started by a transaction that fails is gone with it.
    fs::remove_file(directory.join("port")).expect("it was committed");
    let ended = run_sh(sandbox, &[], &directory, &format!("{started}; cat port; exit 4")).run().ended_with(4);
    let said = ended.out();
    let pid = said.split_once(' ').expect("it is a port and a pid").1.trim().parse().expect("it is a pid");
    assert!(!crate::process::is_alive(pid) && !directory.join("port").exists());
}

/// One that has a file open which the commit writes to in place, and one whose socket nobody could reach.
fn daemons_that_lose(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::write(directory.join("log"), "old\n").expect("a file can be written");
    let log = "cd / && exec setsid sleep 1000 >>\"$0\" </dev/null 2>/dev/null";
    let script = format!("sh -c '{log}' \"$PWD/log\" & sleep 0.3; echo more >>log");
    let ended = run_sh(sandbox, &[], &directory, &script).run().succeeded();
    ended.complains_of(&["1 process left in it ended: sleep, pid", "/log would be lost"]);
    let socket = "import os, socket; s = socket.socket(socket.AF_UNIX); s.bind('socket'); s.listen(); ready, told = os.pipe()\n\
                  if os.fork(): os.read(ready, 1); os._exit(0)\n\
                  os.chdir('/'); null = os.open('/dev/null', os.O_RDWR); [os.dup2(null, fd) for fd in range(3)]\n\
                  os.write(told, b'1'); import time; time.sleep(1000)";
    let ended = sandbox.pando(["tx", "run", "--", "python3", "-c", socket]).directory(&directory).run().succeeded();
    ended.complains_of(&["1 process left in it ended: python3", "nobody outside could reach its socket socket"]);
}

/// A daemon left its session and its parents: what it was started in ends it all the same.
fn daemons_end(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let daemon = "(setsid sh -c 'echo $$ >pid.new; mv pid.new pid; exec sleep 1000' </dev/null >/dev/null 2>&1 &) \
        ; until [ -e pid ]; do sleep 0.01; done; until [ $(cat /proc/$(cat pid)/comm) = sleep ]; do sleep 0.01; done; cat pid";
    let is_dead = |pid: String| !crate::process::is_alive(pid.trim().parse().expect("it is a pid"));
    // It cannot be moved, and why is said.
    let ended = run_sh(sandbox, &[], &directory, daemon).run().succeeded();
    let ended = ended.complains_of(&["1 process left in it ended: sleep, pid", "its working directory is /"]);
    assert!(is_dead(ended.out()));
    fs::remove_file(directory.join("pid")).expect("it was committed");
    let ended = run_sh(sandbox, &["--no-daemons"], &directory, daemon).run().succeeded();
    let ended = ended.complains_of(&["1 process left in it ended"]);
    assert!(is_dead(ended.out()));
    fs::remove_file(directory.join("pid")).expect("it was committed");
    let ended = run_sh(sandbox, &[], &directory, &format!("{daemon}; exit 3")).run().ended_with(3);
    assert!(is_dead(ended.out()) && !directory.join("pid").exists());
    for (end, stays) in [("abort", false), ("commit", true)] {
        sandbox.pando(["tx", "begin", "work"]).ok();
        let pid = sandbox.pando(["tx", "enter", "work", "--", "sh", "-c", daemon]).directory(&directory).ok();
        assert!(!is_dead(pid.clone()), "it goes on until the transaction ends");
        sandbox.pando(["tx", end, "work"]).ok();
        assert!(is_dead(pid), "{end}");
        assert_eq!(directory.join("pid").exists(), stays);
    }
}

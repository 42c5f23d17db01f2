//! Whose an address is: while guests run, while it moves, when two want it, when the daemon dies, when all is over.

use super::NEEDS;
use super::wire::{HOST, Wire};
use crate::case::Case;
use crate::line::{Line, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("network::an_address_moves_under_running_servers", an_address_moves).needs(NEEDS),
    Case::new("network::an_address_moves_under_load", moves_under_load).needs(NEEDS),
    Case::new("network::a_lost_address_takes_its_connections_along", connections_end).needs(NEEDS),
    Case::new("network::of_guests_that_share_an_address_the_first_gets_the_port", a_shared_address).needs(NEEDS),
    Case::new("network::isolation_does_not_depend_on_the_daemon", the_daemon_dies).needs(NEEDS),
    Case::new("network::cookies_are_answered", cookies).needs(NEEDS),
    Case::new("network::the_host_keeps_its_own", the_host_keeps_its_own).needs(NEEDS),
    Case::new("network::a_port_from_a_call_that_sends_nothing_hears_nobody_elses", unseen_ports).needs(NEEDS),
    Case::new("network::a_socket_hears_nothing_of_an_address_that_was_lost", lost_addresses).needs(NEEDS),
    Case::new("network::other_kinds_of_sockets_are_refused", other_kinds).needs(NEEDS),
    Case::new("network::abstract_sockets_are_a_guests_own", abstract_sockets).needs(SCOPES),
    Case::new("network::wrong_addresses_are_refused_by_name", refusals).needs(NEEDS),
    Case::new("network::nothing_is_left_behind", nothing_is_left).needs(NEEDS),
];

/// Landlock keeps abstract sockets apart where the network namespace does not.
const SCOPES: &[Need] = &[Need::Root, Need::Program("python3", "python3"), Need::Linux(6, 12)];

/// A server on the ANY of both families that says its name to whoever connects.
pub(super) const SERVER: &str = r#"
import socket, sys
server = socket.create_server(("::", int(sys.argv[2])), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    client, _ = server.accept()
    client.send(sys.argv[1].encode())
    client.close()
"#;

/// A guest whose command is a python script, running.
#[track_caller]
pub(super) fn python(sandbox: &Sandbox, name: &str, options: &[&str], script: &str, arguments: &[&str]) -> Started {
    let line = sandbox.pando(["run", "--name", name]).args(options).args(["--", "/usr/bin/python3", "-c", script]);
    let mut started = line.args(arguments).limit(300).start();
    eventually("the guest runs", || started.has_ended() || sandbox.state(name) == "running");
    started
}

#[track_caller]
pub(super) fn server(sandbox: &Sandbox, name: &str, options: &[&str], port: &str) -> Started {
    python(sandbox, name, options, SERVER, &[name, port])
}

#[track_caller]
pub(super) fn answers(wire: &Wire, ip: &str, port: u16, expected: &str) {
    let mut got = String::new();
    let came = crate::patience::comes_true(|| {
        got = wire.knock(ip, port);
        got == expected
    });
    assert!(came, "{ip}:{port} answered '{got}' instead of '{expected}'");
}

pub(super) const REFUSED: &str = "ConnectionRefusedError: [Errno 111] Connection refused";

pub(super) fn wire(sandbox: &Sandbox) -> Wire {
    let wire = Wire::new(&HOST);
    wire.pando(sandbox, ["ls"]).ok();
    wire
}

fn an_address_moves(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _a = server(sandbox, "a", &["--address", "10.9.0.5", "--address", "fd00:9::5"], "80");
    let _b = server(sandbox, "b", &["--address", "10.9.0.6"], "80");
    answers(&wire, "10.9.0.5", 80, "a");
    answers(&wire, "fd00:9::5", 80, "a");
    answers(&wire, "10.9.0.6", 80, "b");
    sandbox.pando(["address", "add", "a", "10.9.0.7"]).ok();
    answers(&wire, "10.9.0.7", 80, "a");
    // The first address is where the server really is bound: it must serve the others all the same.
    for ip in ["10.9.0.5", "fd00:9::5"] {
        sandbox.pando(["address", "move", "b", ip]).ok();
        answers(&wire, ip, 80, "b");
    }
    answers(&wire, "10.9.0.7", 80, "a");
    sandbox.pando(["address", "del", "b", "10.9.0.5"]).ok();
    assert!(!wire.links().contains("10.9.0.5"), "an address that is nobody's goes from the host");
    sandbox.pando(["address", "move", "a", "fd00:9::5"]).ok();
    answers(&wire, "fd00:9::5", 80, "a");
    sandbox.pando(["address", "del", "a", "10.9.0.5"]).run().ended_with(125).complains_of(&["does not have 10.9.0.5"]);
    assert_eq!(sandbox.inspect("a")["spec"]["addresses"], serde_json::json!(["10.9.0.7", "fd00:9::5"]));
}

/// A server of connections and of datagrams, on ANY, that says its name to whoever asks.
const BOTH: &str = r#"
import socket, sys, threading
name = sys.argv[1].encode()
box = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
box.bind(("0.0.0.0", 80))
def datagrams():
    while True: box.sendto(name, box.recvfrom(100)[1])
threading.Thread(target=datagrams, daemon=True).start()
server = socket.create_server(("0.0.0.0", 80), backlog=256)
while True:
    client, _ = server.accept()
    try: client.send(name)
    except OSError: pass
    client.close()
"#;

/// Asks without a pause, by both, until it is told to end; then tells how often who answered.
const CROWD: &str = r#"
import collections, select, socket, sys, threading
heard, over = collections.Counter(), threading.Event()
def connections():
    while not over.is_set():
        try:
            with socket.create_connection(("10.9.0.5", 80), timeout=1) as s: heard["tcp " + s.recv(100).decode()] += 1
        except OSError: heard["tcp failed"] += 1
def datagrams():
    while not over.is_set():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(0.2)
            try:
                # Not connected: who has two addresses answers from the first, as a machine does.
                s.sendto(b"?", ("10.9.0.5", 80)); heard["udp " + s.recv(100).decode()] += 1
            except OSError: heard["udp failed"] += 1
threads = [threading.Thread(target=work) for work in (connections, connections, datagrams)]
for thread in threads: thread.start()
sys.stdin.read()
over.set()
for thread in threads: thread.join()
for what, count in sorted(heard.items()): print(what, count)
"#;

/// Whoever asks while an address moves gets an answer of the old owner, of the new one, or none; after a move only of
/// the new one.
fn moves_under_load(sandbox: &Sandbox) {
    const MOVES: usize = 20;
    let wire = wire(sandbox);
    let _host = wire.host(["python3", "-c", SERVER, "host", "81"]).limit(300).start();
    let _a = python(sandbox, "a", &["--address", "10.9.0.5"], BOTH, &["a"]);
    let _b = python(sandbox, "b", &["--address", "10.9.0.6"], BOTH, &["b"]);
    answers(&wire, "10.9.0.5", 80, "a");
    answers(&wire, "10.9.0.6", 80, "b");
    let crowd = wire.outside(["python3", "-c", CROWD]).limit(120).start_with_open_input();
    for number in 0..MOVES {
        let owner = ["b", "a"][number % 2];
        sandbox.pando(["address", "move", owner, "10.9.0.5"]).ok();
        assert_eq!(wire.knock("10.9.0.5", 80), owner, "after move {number}");
    }
    let heard = crowd.close_input().wait().succeeded().out();
    let count = |what: &str| {
        let found = heard.lines().find_map(|line| line.strip_prefix(what)?.trim().parse::<u64>().ok());
        found.unwrap_or(0)
    };
    for what in ["tcp a", "tcp b", "udp a", "udp b"] {
        assert!(count(what) > 10, "{what} in {heard}");
    }
    let known = |line: &str| {
        ["tcp a ", "tcp b ", "tcp  ", "tcp failed", "udp a ", "udp b ", "udp failed"]
            .iter()
            .any(|one| line.starts_with(one))
    };
    assert!(heard.lines().all(known), "nobody else ever answered: {heard}");
    let failed = count("tcp failed") + count("tcp ") + count("udp failed");
    let answered = ["tcp a", "tcp b", "udp a", "udp b"].into_iter().map(count).sum::<u64>();
    assert!(failed * 2 < answered, "{heard}");
}

const CONNECTED: &str = r#"
import socket, sys
line = socket.create_connection(("10.9.0.100", 7), source_address=(sys.argv[1], 0)).makefile("rw")
line.write("who\n"); line.flush(); print(line.readline().strip(), flush=True)
try:
    print(repr(line.readline()))
except OSError as error:
    print(error.strerror)
"#;

fn connections_end(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let lost = python(sandbox, "a", &["--address", "10.9.0.5", "--address", "10.9.0.6"], CONNECTED, &["10.9.0.6"]);
    let _kept = server(sandbox, "b", &["--address", "10.9.0.7"], "80");
    let established = || wire.host(["ss", "-Htn", "src", "10.9.0.6"]).ok().contains("ESTAB");
    eventually("it is connected", established);
    sandbox.pando(["address", "move", "b", "10.9.0.6"]).ok();
    assert_eq!(lost.wait().succeeded().out(), "10.9.0.6\nSoftware caused connection abort\n");
    answers(&wire, "10.9.0.6", 80, "b");
}

fn a_shared_address(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _a = server(sandbox, "a", &["--address", "10.9.0.5"], "80");
    answers(&wire, "10.9.0.5", 80, "a");
    let second = server(sandbox, "b", &["--address", "10.9.0.5"], "80").wait();
    second.ended_with(1).complains_of(&["Address already in use"]);
    let _b = server(sandbox, "b", &["--address", "10.9.0.5"], "81");
    answers(&wire, "10.9.0.5", 81, "b");
    answers(&wire, "10.9.0.5", 80, "a");
    sandbox.pando(["rm", "--force", "a"]).ok();
    answers(&wire, "10.9.0.5", 80, REFUSED);
    answers(&wire, "10.9.0.5", 81, "b");
}

fn the_daemon_dies(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _a = server(sandbox, "a", &["--address", "10.9.0.5"], "80");
    answers(&wire, "10.9.0.5", 80, "a");
    process::kill(sandbox.daemon().expect("it runs"));
    answers(&wire, "10.9.0.5", 80, "a");
    answers(&wire, "10.9.0.1", 80, REFUSED);
    wire.pando(sandbox, ["address", "add", "a", "10.9.0.6"]).ok();
    answers(&wire, "10.9.0.6", 80, "a");
    // A guest that ended while no daemon lived loses its addresses to the next one.
    process::kill(sandbox.daemon().expect("it runs"));
    process::kill(
        sandbox.processes().iter().find(|one| one.words.iter().any(|word| word == SERVER)).expect("it runs").pid,
    );
    eventually("its addresses go", || {
        wire.pando(sandbox, ["ls"]).ok();
        !wire.links().contains("10.9.0.5/32")
    });
}

fn cookies(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    wire.host(["sh", "-c", "echo 2 >/proc/sys/net/ipv4/tcp_syncookies"]).ok();
    let options =
        ["--address", "10.9.0.5", "--address", "10.9.0.6", "--address", "fd00:9::5", "--address", "fd00:9::6"];
    let _a = server(sandbox, "a", &options, "80");
    for ip in ["10.9.0.5", "10.9.0.6", "fd00:9::5", "fd00:9::6"] {
        answers(&wire, ip, 80, "a");
    }
}

/// A server on the host's real ANY gets what comes to the host's address, and never what comes to a guest's.
fn the_host_keeps_its_own(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _host = wire.host(["python3", "-c", SERVER, "host", "90"]).limit(300).start();
    let _a = server(sandbox, "a", &["--address", "10.9.0.5"], "80");
    answers(&wire, "10.9.0.1", 90, "host");
    answers(&wire, "10.9.0.5", 80, "a");
    answers(&wire, "10.9.0.5", 90, REFUSED);
    answers(&wire, "10.9.0.1", 80, REFUSED);
    // Nor does a guest get what comes to the host, by a port that the kernel chose for it.
    let listening = "import socket; s = socket.socket(); s.listen(); print(s.getsockname()[1], flush=True); s.accept()";
    let _b = python(sandbox, "b", &["--address", "10.9.0.6"], listening, &[]);
    let mut port = 0;
    eventually("it listens on the real ANY", || {
        let listed = wire.host(["ss", "-Htln4"]).ok();
        let local = listed.lines().filter_map(|line| line.split_whitespace().nth(3)?.strip_prefix("0.0.0.0:")).next();
        port = local.and_then(|text| text.parse().ok()).unwrap_or(0);
        port != 0
    });
    let knock = "import socket, sys; s = socket.socket(); s.settimeout(1); print(s.connect_ex((sys.argv[1], int(sys.argv[2]))) == 0)";
    let reached = |ip: &str| wire.outside(["python3", "-c", knock, ip, &port.to_string()]).ok();
    assert_eq!(reached("10.9.0.1"), "False\n");
    assert_eq!(reached("10.9.0.6"), "True\n");
}

/// Has the kernel give a socket a port by a call that sends nothing: on the real ANY, or, with an argument, at the
/// guest's own address. Whoever asks the server beside it is told the port and what that socket has heard.
const UNSEEN: &str = r#"
import ctypes, socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if len(sys.argv) > 2:
    s.connect((sys.argv[1], 9))
    assert ctypes.CDLL(None, use_errno=True).connect(s.fileno(), bytes(16), 16) == 0
try: s.sendto(bytes(70000), (sys.argv[1], 9))
except OSError as error: print(error, flush=True)
server = socket.socket(family, socket.SOCK_DGRAM)
server.bind(("", 80))
while True:
    _, asker = server.recvfrom(100)
    try: heard = s.recv(100, socket.MSG_DONTWAIT).decode()
    except BlockingIOError: heard = "nothing"
    server.sendto(f"{s.getsockname()[1]} {heard}".encode(), asker)
"#;

/// Sends a word to an address and port, and asks the server of [`UNSEEN`] afterwards, by the same way, what was heard.
const ASK: &str = r#"
import socket, sys
to, port, server = sys.argv[1:]
family = socket.AF_INET6 if ":" in to else socket.AF_INET
s = socket.socket(family, socket.SOCK_DGRAM)
s.settimeout(10)
if port != "0": s.sendto(b"a-word", (to, int(port)))
s.sendto(b"?", (server, 80))
said = b""
# Whoever the word came to may answer as well, in one word.
while b" " not in said: said = s.recv(100)
print(said.decode())
"#;

/// The port that the server of [`UNSEEN`] tells of, and what it has heard there of a word sent to an address.
fn heard(wire: &Wire, to: &str, port: u16, server: &str) -> (u16, String) {
    let said = wire.outside(["python3", "-c", ASK, to, &port.to_string(), server]).ok();
    let (port, heard) = said.trim().split_once(' ').expect("two words");
    (port.parse().expect("a port"), heard.to_owned())
}

fn unseen_ports(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let options = ["--address", "10.9.0.5", "--address", "fd00:9::5"];
    for (outside, own, hosts) in [("10.9.0.100", "10.9.0.5", "10.9.0.1"), ("fd00:9::100", "fd00:9::5", "fd00:9::1")] {
        let _a = python(sandbox, "a", &options, UNSEEN, &[outside]);
        eventually("its server answers", || wire.outside(["python3", "-c", ASK, own, "0", own]).run().code() == 0);
        let (port, _) = heard(&wire, own, 0, own);
        assert_ne!(port, 0, "the kernel gave it a port");
        let listed = wire.host(["ss", "-Hulna"]).ok();
        assert!(listed.contains(&format!(":{port} ")), "{port} is on the host's network: {listed}");
        assert_eq!(heard(&wire, hosts, port, own).1, "nothing", "what is for {hosts}");
        sandbox.pando(["rm", "--force", "a"]).ok();
    }
}

/// A server of datagrams that says its name, on ANY.
const DATAGRAMS: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("", int(sys.argv[2])))
while True:
    _, asker = s.recvfrom(100)
    s.sendto(sys.argv[1].encode(), asker)
"#;

fn lost_addresses(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _a = python(sandbox, "a", &["--address", "10.9.0.5", "--address", "10.9.0.7"], UNSEEN, &["10.9.0.100", "own"]);
    eventually("its server answers", || {
        wire.outside(["python3", "-c", ASK, "10.9.0.7", "0", "10.9.0.7"]).run().code() == 0
    });
    let (port, _) = heard(&wire, "10.9.0.7", 0, "10.9.0.7");
    // The control: while the address is its own it hears.
    assert_eq!(heard(&wire, "10.9.0.5", port, "10.9.0.7").1, "a-word");
    let _b = python(sandbox, "b", &["--address", "10.9.0.6"], DATAGRAMS, &["b", &port.to_string()]);
    sandbox.pando(["address", "move", "b", "10.9.0.5"]).ok();
    let answered = "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); \
                    s.sendto(b'?', (sys.argv[1], int(sys.argv[2]))); print(s.recv(100).decode(), end='')";
    for ip in ["10.9.0.6", "10.9.0.5"] {
        eventually("the new owner's server is asked", || {
            wire.outside(["python3", "-c", answered, ip, &port.to_string()]).run().out() == "b"
        });
    }
    assert_eq!(heard(&wire, "10.9.0.5", port, "10.9.0.7").1, "nothing");
}

const KINDS: &str = r#"
import socket
for name, family, kind, protocol in (("raw", 2, 3, 1), ("raw6", 10, 3, 58), ("packet", 17, 3, 0), ("echo", 2, 2, 1), ("echo6", 10, 2, 58), ("sctp", 2, 1, 132),
                                     ("mptcp", 2, 1, 262), ("udplite", 2, 2, 136), ("tcp", 2, 1, 0), ("udp", 10, 2, 0), ("unix", 1, 1, 0)):
    try:
        socket.socket(family, kind, protocol)
        print(name, "made")
    except OSError as error:
        print(name, "refused")
"#;

fn other_kinds(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    // So that the network, and not the kernel's own default, refuses echo sockets.
    wire.host(["sh", "-c", "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range"]).ok();
    for options in [&[] as &[&str], &["--userns", "host"]] {
        let line = sandbox.pando(["run", "--address", "10.9.0.5"]).args(options);
        let out = line.args(["--", "/usr/bin/python3", "-c", KINDS]).ok();
        let made: Vec<_> = out.lines().filter_map(|line| line.strip_suffix(" made")).collect();
        assert_eq!(made, ["tcp", "udp", "unix"], "with {options:?}: {out}");
    }
}

fn abstract_sockets(sandbox: &Sandbox) {
    let name = format!("pando-test-{}", std::process::id());
    let listen = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('\\0' + sys.argv[1]); s.listen(); print('ready', flush=True)
while True: s.accept()";
    let connect = "import socket, sys
try: socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1]); print('reached')
except OSError as error: print(error.strerror)";
    let _host = Line::new("python3").args(["-c", listen, &name]).limit(300).start();
    let inner = format!("{name}-of-a");
    let _a = python(sandbox, "a", &["--net", "shared"], listen, &[&inner]);
    let from = |net: &str, name: &str| {
        let line = sandbox.pando(["run", "--net", net, "--profile", "default"]);
        line.args(["--", "/usr/bin/python3", "-c", connect, name]).ok().trim().to_owned()
    };
    // The control: on the host's network, unrestricted, both are reached.
    for name in [&name, &inner] {
        eventually("it listens", || from("host", name) == "reached");
        assert_eq!(from("shared", name), "Operation not permitted");
    }
    let within = sandbox.pando(["exec", "a", "--", "/usr/bin/python3", "-c", connect, &inner]).ok();
    assert_eq!(within, "reached\n");
}

fn refusals(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    let refused = |options: &[&str], words: &[&str]| {
        let line = sandbox.pando(["run", "--from", sandbox.busybox()]).args(options).args(["--", "true"]);
        line.run().ended_with(125).complains_of(words);
    };
    refused(&["--address", "192.0.2.1"], &["192.0.2.1", "name the device"]);
    refused(&["--address", "192.0.2.1@eth9"], &["no network device 'eth9'"]);
    refused(&["--address", "127.0.0.1"], &["loopback"]);
    refused(&["--address", "10.9.0.5", "--address", "10.9.0.5"], &["given twice"]);
    refused(&["--address", "10.9.0.5", "--net", "none"], &["--net shared"]);
}

fn nothing_is_left(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let look = || (wire.links(), wire.host(["sh", "-c", "tc qdisc show; ip route show table all | sort"]).ok());
    let pins = sandbox.places().run().join("bpf");
    let before = look();
    for number in 0..20 {
        let address = format!("10.9.0.{}", 5 + number);
        sandbox.run_sh(&["--address", &address], "true").ok();
    }
    eventually("the programs go when no guest needs them", || !pins.exists());
    assert_eq!(look(), before);
    sandbox.run_sh(&["--address", "10.9.0.5"], "true").ok();
    sandbox.end_daemon();
    assert!(!pins.exists(), "a daemon that ends leaves no programs that no guest needs");
    assert_eq!(look(), before);
}

//! TCP connections of guests that are frozen to end there, and restored.

use super::NEEDS;
use super::addresses::wire;
use super::wire::Wire;
use crate::busybox_root::with_python;
use crate::case::{Case, Tag};
use crate::debian_image::tarball;
use crate::line::Started;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("network::connections_last_through_a_restore", connections_last).needs(NEEDS),
    Case::new("network::connections_are_given_up_with_what_had_them", connections_are_given_up).needs(NEEDS),
    Case::new("private::connections_last_through_a_restore", private_connections_last).needs(NEEDS_PRIVATE),
    Case::new("private::connections_are_given_up_with_what_had_them", private_connections_are_given_up)
        .needs(NEEDS_PRIVATE),
    Case::new("network::redis_is_restored_with_its_clients", redis_keeps_its_clients)
        .needs(NEEDS_DEBIAN)
        .tags(&[Tag::Slow]),
];

const NEEDS_DEBIAN: &[Need] = &[
    Need::Root,
    Need::Program("mmdebstrap", "mmdebstrap"),
    Need::Program("ip", "iproute2"),
    Need::Program("python3", "python3"),
    Need::Linux(6, 6),
];

/// Nothing of it is a program in the kernel.
pub(super) const NEEDS_PRIVATE: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("nft", "nftables"),
    Need::Program("python3", "python3"),
    Need::Program("nsenter", "util-linux"),
];

/// Numbers the lines of each client.
const NUMBERS: &str = "while read line; do n=$((n+1)); echo $n $line; done";

/// How a client asks, how it has to be answered in a turn, and how lines end.
pub(super) struct Language([&'static str; 3]);

/// Of the server that numbers lines.
pub(super) const NUMBERED: Language = Language(["from {number}", "{turn} from {number}", "\n"]);

/// Of redis: each client counts in a key of its own.
const REDIS: Language = Language(["INCR key{number}", ":{turn}", "\r\n"]);

/// Clients that talk in turn, each over a connection of its own, and have to be answered with one number more each
/// time. They write how often all have been, and when a connection ends, that.
const CLIENTS: &str = r#"
import os, socket, sys, time
ip, port, count, said = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
ask, answer, end = sys.argv[5:]
def say(text):
    with open(said + ".new", "w") as file:
        file.write(str(text))
    os.rename(said + ".new", said)
def connect():
    client = socket.create_connection((ip, port))
    # Who has nothing to send hears of the end all the same.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in [(socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 120)]:
        client.setsockopt(socket.IPPROTO_TCP, option, value)
    try:
        # TCP_RTO_MAX_MS (Linux 6.15): what was sent in vain is sent again every second, however long nobody was there.
        client.setsockopt(socket.IPPROTO_TCP, 44, 1000)
    except OSError:
        pass
    return client
clients = [connect() for _ in range(count)]
files = [client.makefile("rw", newline=end) for client in clients]
turn = 0
try:
    while True:
        turn += 1
        # Something is on its way all the time, also while nobody is there.
        for number, file in enumerate(files):
            file.write(ask.format(number=number) + "\n")
            file.flush()
        for number, file in enumerate(files):
            line = file.readline()
            if line != answer.format(turn=turn, number=number) + end:
                say("wrong: " + repr(line))
                sys.exit(1)
        say(turn)
        time.sleep(0.01)
except OSError as error:
    say("ended: " + str(error))
"#;

pub(super) fn listens(wire: &Wire, ip: &str, port: u16) -> bool {
    let script = "import socket, sys; socket.create_connection((sys.argv[1], sys.argv[2]), timeout=10)";
    wire.outside(["python3", "-c", script, ip, &port.to_string()]).run().code() == 0
}

/// Starts them outside.
pub(super) fn clients(wire: &Wire, Language(language): &Language, ip: &str, port: u16, said: &Path) -> Started {
    let (port, said) = (port.to_string(), said.to_string_lossy().into_owned());
    wire.outside(["python3", "-c", CLIENTS, ip, &port, "3", &said]).args(language).limit(600).start()
}

pub(super) fn turns(said: &Path) -> u32 {
    let text = std::fs::read_to_string(said).unwrap_or_default();
    text.parse().unwrap_or_else(|_| {
        assert!(text.is_empty(), "the clients say: {text}");
        0
    })
}

fn connections_last(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let addresses = ["--address", "10.9.0.5", "--address", "fd00:9::5"];
    let server = ["--", "nc", "-ll", "-p", "80", "-e", "sh", "-c", NUMBERS];
    sandbox.guest("web", &[&addresses[..], &server[..]].concat());
    let scratch = sandbox.scratch();
    let heard: Vec<_> = ["10.9.0.5", "fd00:9::5"]
        .map(|ip| {
            let said = scratch.join(ip.replace(':', "-"));
            eventually("it listens", || listens(&wire, ip, 80));
            let clients = clients(&wire, &NUMBERED, ip, 80, &said);
            (said, clients)
        })
        .into();
    for _ in 0..2 {
        heard.iter().for_each(|(said, _)| {
            let before = turns(said);
            eventually("clients are answered", || turns(said) > before + 3);
        });
        sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
        let before: Vec<_> = heard.iter().map(|(said, _)| turns(said)).collect();
        sandbox.pando(["restore", "warm"]).ok();
        for ((said, _), before) in heard.iter().zip(before) {
            eventually("they are answered on the same connections", || turns(said) > before + 3);
        }
        sandbox.pando(["image", "rm", "warm"]).ok();
    }
    assert!(!withheld(sandbox), "nothing is withheld any more");
}

pub(super) fn withheld(sandbox: &Sandbox) -> bool {
    sandbox.places().run().join("withheld").exists()
}

fn connections_are_given_up(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let server = ["--address", "10.9.0.5", "--", "nc", "-ll", "-p", "80", "-e", "sh", "-c", NUMBERS];
    given_up(sandbox, &wire, ("10.9.0.5", 80), || sandbox.guest("web", &server), || withheld(sandbox));
}

/// Connections of a frozen server are kept until it is started otherwise, or gone for good.
fn given_up(sandbox: &Sandbox, wire: &Wire, (ip, port): (&str, u16), serve: impl Fn(), kept: impl Fn() -> bool) {
    let said = sandbox.scratch().join("said");
    let ways: [&[&[&str]]; 3] = [
        &[&["start", "web"]],
        &[&["image", "rm", "warm"], &["start", "web"]],
        &[&["rm", "web"], &["image", "rm", "warm"]],
    ];
    for way in ways {
        if sandbox.state("web") == "absent" {
            serve();
        }
        let _ = std::fs::remove_file(&said);
        eventually("it listens", || listens(wire, ip, port));
        let clients = clients(wire, &NUMBERED, ip, port, &said);
        eventually("clients are answered", || turns(&said) > 3);
        sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
        assert!(kept());
        for words in way {
            sandbox.pando(*words).ok();
        }
        assert!(!kept(), "after {way:?}");
        if sandbox.state("web") == "running" {
            let told = || std::fs::read_to_string(&said).is_ok_and(|text| text.starts_with("ended"));
            eventually("the clients are told that their connections are gone", told);
            sandbox.pando(["rm", "--force", "web"]).ok();
            let _ = sandbox.pando(["image", "rm", "warm"]).run();
        }
        drop(clients);
    }
}

/// Numbers the lines of each client, all in one process. Every other client's address may be bound again: /reuse tells
/// which those are.
const NUMBERING: &str = r#"
import os, selectors, socket
accepted = []
chosen = selectors.DefaultSelector()
server = socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256)
chosen.register(server, selectors.EVENT_READ)
while True:
    for key, _ in chosen.select():
        if key.fileobj is server:
            client, _ = server.accept()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, len(accepted) % 2)
            accepted.append(client)
            chosen.register(client, selectors.EVENT_READ, {"count": 0, "rest": b""})
            continue
        client, known = key.fileobj, key.data
        with open("/reuse.new", "w") as file:
            for other in accepted:
                if other.fileno() != -1:
                    file.write(str(other.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)))
        os.rename("/reuse.new", "/reuse")
        try:
            read = client.recv(4096)
        except OSError:
            read = b""
        if not read:
            chosen.unregister(client)
            client.close()
            continue
        *lines, known["rest"] = (known["rest"] + read).split(b"\n")
        for line in lines:
            known["count"] += 1
            client.sendall(b"%d %s\n" % (known["count"], line))
"#;

/// A root file system that has python3.
pub(super) fn tree(sandbox: &Sandbox) -> String {
    let tree = sandbox.scratch().join("tree");
    if !tree.exists() {
        with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    }
    tree.to_string_lossy().into_owned()
}

pub(super) fn serve(sandbox: &Sandbox, options: &[&str]) {
    sandbox.pando(["create", "web"]).args(options).args(["--", "/usr/bin/python3", "-c", NUMBERING]).ok();
}

/// A server with a port of the host's, on a private network; its addresses.
fn behind(sandbox: &Sandbox) -> Vec<String> {
    serve(sandbox, &["--from", &tree(sandbox), "--net", "private", "--publish", "8080:80", "--start"]);
    let seen = sandbox.inspect("web");
    let addresses = seen["addresses"].as_array().expect("an array").iter();
    addresses.map(|address| address.as_str().expect("an address").to_owned()).collect()
}

/// Holds a connection, and sends segments of it all the time, a thousand a second: whoever has that address and does
/// not know the connection answers by a reset.
const KNOCKING: &str = r#"
import socket, struct, sys, time
ip, said = sys.argv[1:]
connection = socket.create_connection((ip, 80))
here, there = connection.getsockname(), connection.getpeername()
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
def header(checksum):
    return struct.pack("!HHIIBBHHH", here[1], there[1], 0, 0, 5 << 4, 0x10, 1024, checksum, 0)
pseudo = socket.inet_aton(here[0]) + socket.inet_aton(there[0]) + struct.pack("!BBH", 0, socket.IPPROTO_TCP, 20)
total = sum(struct.unpack("!16H", pseudo + header(0)))
total = (total & 0xffff) + (total >> 16)
segment = header(~((total & 0xffff) + (total >> 16)) & 0xffff)
open(said, "w").close()
while True:
    try:
        raw.sendto(segment, (ip, 0))
    except OSError:
        pass
    time.sleep(0.001)
"#;

/// Counts what comes to the near machine from an address and resets a connection.
fn watch_resets(wire: &Wire, ip: &str) {
    let script = format!(
        "nft -f - <<'END'\ntable ip watch {{ chain arriving {{ type filter hook prerouting priority raw;
        ip saddr {ip} tcp flags & rst == rst counter; }}; }}\nEND"
    );
    wire.host(["sh", "-c", &script]).ok();
}

fn resets(wire: &Wire) -> u64 {
    let rules = wire.host(["nft", "list", "table", "ip", "watch"]).ok();
    let mut words = rules.split_whitespace().skip_while(|word| *word != "packets").skip(1);
    words.next().and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count in {rules}"))
}

/// Clients of a guest on a private network, in another guest of that network. What they say lies in that guest's files.
fn clients_beside(sandbox: &Sandbox, Language(language): &Language, ip: &str) -> Started {
    let line = sandbox.pando(["run", "--name", "beside", "--net", "private", "--", "/usr/bin/python3", "-c", CLIENTS]);
    line.args([ip, "80", "3", "/var/tmp/said"]).args(language).limit(600).start()
}

fn turns_beside(sandbox: &Sandbox) -> u32 {
    let text = sandbox.pando(["exec", "beside", "--", "cat", "/var/tmp/said"]).run().out();
    text.parse().unwrap_or_else(|_| {
        assert!(text.is_empty(), "the clients say: {text}");
        0
    })
}

fn private_connections_last(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let own = behind(sandbox);
    let scratch = sandbox.scratch();
    eventually("it listens", || listens(&wire, "10.9.0.1", 8080));
    // From outside by the host's port, from the host by its own addresses, and from another guest of the network.
    let (outside, near) = (scratch.join("outside"), scratch.join("near"));
    let _outside = clients(&wire, &NUMBERED, "10.9.0.1", 8080, &outside);
    let line = wire.host(["python3", "-c", CLIENTS, own.last().expect("an address"), "80", "3"]);
    let _near = line.args([&near]).args(NUMBERED.0).limit(600).start();
    let _beside = clients_beside(sandbox, &NUMBERED, &own[0]);
    watch_resets(&wire, &own[0]);
    let knocks = scratch.join("knocks");
    let line = wire.host(["python3", "-c", KNOCKING, &own[0]]);
    let _knocking = line.args([&knocks]).limit(600).start();
    eventually("it knocks", || knocks.exists());
    let all = || [turns(&outside), turns(&near), turns_beside(sandbox)];
    let go_on = |what: &str| {
        let before = all();
        eventually(what, || all().iter().zip(&before).all(|(now, before)| *now > before + 3));
    };
    for killed in [false, true] {
        go_on("all clients are answered");
        sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
        if killed {
            process::kill(sandbox.daemon().expect("it runs"));
            wire.pando(sandbox, ["ls"]).ok();
        }
        // Nobody else gets its address meanwhile.
        let other = sandbox.pando(["run", "--from", sandbox.busybox(), "--net", "private", "--address", &own[0]]);
        other.args(["--", "true"]).run().ended_with(125).complains_of(&["has", &own[0]]);
        sandbox.pando(["restore", "warm"]).ok();
        go_on("all are answered on the same connections");
        assert_eq!(sandbox.inspect("web")["addresses"][0], own[0].as_str());
        assert_eq!(resets(&wire), 0, "somebody answered who did not know the connection");
        sandbox.pando(["image", "rm", "warm"]).ok();
    }
    // Its clients end with the server, and that guest with them.
    for guest in ["beside", "web"] {
        sandbox.pando(["rm", "--force", guest]).ok();
    }
    eventually("the network goes with its last guest", || !sandbox.places().run().join("net").exists());
}

fn private_connections_are_given_up(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let away = sandbox.places().run().join("net/away/warm.toml");
    given_up(sandbox, &wire, ("10.9.0.1", 8080), || drop(behind(sandbox)), || away.exists());
    eventually("the network goes with its last guest", || !sandbox.places().run().join("net").exists());
}

fn redis_keeps_its_clients(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let options = ["--from", &tarball(sandbox), "--address", "10.9.0.5", "--start", "--"];
    let server = ["redis-server", "--protected-mode", "no", "--save", ""];
    sandbox.pando(["create", "shop"]).args(options).args(server).limit(300).ok();
    let said = sandbox.scratch().join("said");
    eventually("redis listens", || sandbox.pando(["exec", "shop", "--", "redis-cli", "ping"]).run().out() == "PONG\n");
    let _clients = clients(&wire, &REDIS, "10.9.0.5", 6379, &said);
    eventually("clients are answered", || turns(&said) > 10);
    sandbox.pando(["freeze", "shop", "warm", "--stop"]).ok();
    let before = turns(&said);
    sandbox.pando(["restore", "warm"]).ok();
    eventually("they are answered on the same connections", || turns(&said) > before + 10);
    let listed = sandbox.pando(["exec", "shop", "--", "redis-cli", "client", "list"]).ok();
    let of_outside = listed.lines().filter(|line| line.contains("addr=10.9.0.100:")).count();
    assert_eq!(of_outside, 3, "{listed}");
}

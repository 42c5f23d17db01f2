//! Private networks: the world through the host, ports of the host's that lead inside, names, and what must not get
//! through.

use super::addresses::{REFUSED, answers, python, server, wire};
use super::wire::{OUTSIDE, Wire};
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("private::the_world_is_reached_through_the_host", the_world).needs(NEEDS),
    Case::new("private::published_ports_lead_inside", published).needs(NEEDS),
    Case::new("private::who_goes_on_sending_reaches_the_new_guest", goes_on_sending).needs(NEEDS),
    Case::new("private::a_port_leads_to_one_guest", port_conflicts).needs(NEEDS),
    Case::new("private::guests_know_one_another_by_name", names).needs(NEEDS),
    Case::new("private::foreign_addresses_are_dropped", foreign_addresses).needs(NEEDS),
    Case::new("private::what_is_not_published_is_not_reached_by_a_route", by_a_route).needs(NEEDS),
    Case::new("private::the_host_is_no_router_between_its_own_devices", no_router).needs(NEEDS),
    Case::new("private::the_hosts_loopback_is_not_reached", no_loopback).needs(NEEDS),
    Case::new("private::what_a_dead_guest_had_is_taken_back", the_daemon_dies).needs(NEEDS),
    Case::new("private::a_daemon_that_dies_half_way_leaves_nothing", half_way).needs(NEEDS),
    Case::new("private::many_start_at_once", many_at_once).needs(NEEDS),
    Case::new("private::nothing_is_left_behind", nothing_is_left).needs(NEEDS),
    Case::new("private::a_guest_can_be_a_machine_on_the_hosts_network", macvlan).needs(MACVLAN),
    Case::new("private::netkit_connects_like_veth", netkit).needs(NETKIT),
    Case::new("network::doctor_names_who_holds_ports", doctor).needs(NEEDS),
    Case::new("private::what_cannot_be_is_refused_by_name", refusals).needs(NEEDS),
];

pub(super) const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("nft", "nftables"),
    Need::Program("python3", "python3"),
    Need::Program("nsenter", "util-linux"),
];

const MACVLAN: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("python3", "python3"),
    Need::Program("nsenter", "util-linux"),
    Need::Device("macvlan", "link probe0 "),
];

pub(super) const NETKIT: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("nft", "nftables"),
    Need::Program("python3", "python3"),
    Need::Program("nsenter", "util-linux"),
    Need::Device("netkit", ""),
];

/// Asks the machine outside who it sees, from an address of the guest's or from any.
const WHO: &str = r#"
import socket, sys
source = (sys.argv[2], 0) if len(sys.argv) > 2 else None
try:
    line = socket.create_connection((sys.argv[1], 7), timeout=2, source_address=source).makefile("rw")
    line.write("who\n"); line.flush(); print(line.readline().strip(), flush=True)
except OSError as error:
    print(error)
"#;

/// What it answers in a guest.
fn who(sandbox: &Sandbox, options: &[&str], to: &str) -> String {
    let line = sandbox.pando(["run", "--net", "private"]).args(options);
    line.args(["--", "/usr/bin/python3", "-c", WHO, to]).ok().trim().to_owned()
}

/// Everything of the near machine that a network could leave something in.
pub(super) fn traces(wire: &Wire) -> String {
    let script = "ip -brief address; ip route show table all | sort; nft list ruleset; tc qdisc show; \
        cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/*forwarding";
    wire.host(["sh", "-c", script]).ok()
}

fn the_world(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    // The machine outside knows no way to a private network: it sees the host.
    assert_eq!(who(sandbox, &[], OUTSIDE[0]), "10.9.0.1");
    if wire.host(["sh", "-c", "test -e /proc/sys/net/ipv6/conf/all/force_forwarding"]).run().code() == 0 {
        assert_eq!(who(sandbox, &[], OUTSIDE[1]), "fd00:9::1");
    }
    let resolver =
        sandbox.pando(["run", "--net", "private", "--dns", "192.0.2.53", "--", "cat", "/etc/resolv.conf"]).ok();
    assert!(resolver.starts_with("nameserver 192.0.2.53\n"), "{resolver}");
}

const ECHO: &str = r#"
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 53))
while True:
    data, client = server.recvfrom(100)
    server.sendto(b"echo " + data, client)
"#;

const ASK: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.connect((sys.argv[1], int(sys.argv[2]))); s.send(b"x")
try: print(s.recv(100).decode())
except OSError as error: print(error)
"#;

fn published(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _a = server(sandbox, "a", &["--publish", "8080:80", "--publish", "10.9.0.1:8081:80"], "80");
    for ip in ["10.9.0.1", "fd00:9::1"] {
        answers(&wire, ip, 8080, "a");
    }
    answers(&wire, "10.9.0.1", 8081, "a");
    answers(&wire, "fd00:9::1", 8081, REFUSED);
    // Nor is the guest reached by a port that is not published.
    answers(&wire, "10.9.0.1", 80, REFUSED);
    let near = "import socket, sys; print(socket.create_connection((sys.argv[1], 8080), timeout=5).recv(9).decode())";
    for ip in ["127.0.0.1", "10.9.0.1"] {
        assert_eq!(wire.host(["python3", "-c", near, ip]).ok(), "a\n", "the host itself, at {ip}");
    }
    let other = sandbox.pando(["run", "--net", "private", "--", "/usr/bin/python3", "-c", near, "10.9.0.1"]);
    assert_eq!(other.ok(), "a\n", "another guest, by the host's port");
    let gateway = sandbox.pando(["exec", "a", "--", "sh", "-c", "ip route show default | cut -d' ' -f3"]).ok();
    for ip in [gateway.trim(), "10.9.0.1", "fd00:9::1"] {
        let itself = sandbox.pando(["exec", "a", "--", "/usr/bin/python3", "-c", near, ip]).run();
        assert_eq!(itself.out(), "a\n", "the guest itself, by the host's port, at {ip}: {}", itself.err());
    }
    let _b = python(sandbox, "b", &["--publish", "5353:53/udp"], ECHO, &[]);
    eventually("datagrams come and go", || wire.outside(["python3", "-c", ASK, "10.9.0.1", "5353"]).ok() == "echo x\n");
}

/// Goes on sending from one socket, and notes who answers whenever that is somebody else.
const GO_ON: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.1); s.bind(("0.0.0.0", 4000))
last = "nobody"
while True:
    try: s.sendto(b"x", ("10.9.0.1", 5353)); who = s.recv(100).decode()
    except OSError: continue
    if who != last:
        with open(sys.argv[1], "a") as told: told.write(who + "\n")
    last = who
"#;

const NAME: &str = r#"
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 53))
while True:
    data, client = server.recvfrom(100)
    server.sendto(sys.argv[1].encode(), client)
"#;

fn goes_on_sending(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    // Something has to be translated before anybody remembers who speaks with whom.
    let _first = server(sandbox, "first", &["--publish", "8080:80"], "80");
    let told = sandbox.scratch().join("told");
    let client = wire.outside(["python3", "-c", GO_ON]).args([&told]).limit(300).start();
    let answers = |names: &str| std::fs::read_to_string(&told).is_ok_and(|said| said == names);
    // Asked while nobody is there: the kernel remembers that it led nowhere.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let one = python(sandbox, "one", &["--publish", "5353:53/udp"], NAME, &["one"]);
    eventually("the guest that came later answers", || answers("one\n"));
    sandbox.pando(["rm", "--force", "one"]).run();
    drop(one);
    let _two = python(sandbox, "two", &["--publish", "5353:53/udp"], NAME, &["two"]);
    eventually("the next guest answers", || answers("one\ntwo\n"));
    client.signal(rustix::process::Signal::KILL);
    let _ = client.wait();
    // Nobody waits at ::1, where nothing is published: the host says at once that nobody is there.
    let near = "import socket; socket.create_connection(('::1', 8080), timeout=20)";
    let refused = wire.host(["python3", "-c", near]).run();
    assert!(refused.err().contains("refused"), "{}", refused.err());
}

fn port_conflicts(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _host = wire.host(["python3", "-c", HOLD]).limit(300).start();
    eventually("the host's server listens", || wire.host(["ss", "-Htln"]).ok().contains(":9090"));
    let _a = server(sandbox, "a", &["--publish", "8080:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    let refused = |port: &str, words: &[&str]| {
        let line = sandbox.pando(["run", "--from", sandbox.busybox(), "--publish", port, "--", "true"]);
        line.run().ended_with(125).complains_of(words);
    };
    refused("8080:81", &["port 8080 leads to guest 'a' already"]);
    refused("10.9.0.1:8080:81", &["port 8080 leads to guest 'a' already"]);
    refused("9090:81", &["port 9090 is held by a server of the host"]);
    answers(&wire, "10.9.0.1", 8080, "a");
    // What is free again can be had.
    sandbox.pando(["rm", "--force", "a"]).ok();
    let _b = server(sandbox, "b", &["--publish", "8080:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "b");
}

const HOLD: &str = "import socket; s = socket.create_server(('0.0.0.0', 9090)); s.accept()";

fn names(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _a = server(sandbox, "a", &["--net", "private", "--hostname", "alpha"], "80");
    let _b = server(sandbox, "b", &["--net", "private"], "80");
    let _ = wire;
    let greet = "import socket, sys; print(socket.create_connection((sys.argv[1], 80), timeout=5).recv(9).decode())";
    let ask = |from: &str, name: &str| sandbox.pando(["exec", from, "--", "/usr/bin/python3", "-c", greet, name]).run();
    for (from, name, who) in
        [("b", "a", "a"), ("b", "alpha", "a"), ("a", "b", "b"), ("a", "alpha", "a"), ("a", "localhost", "a")]
    {
        eventually("the server listens", || ask(from, name).code() == 0);
        assert_eq!(ask(from, name).out(), format!("{who}\n"), "{from} asks for {name}");
    }
    let hosts = || sandbox.pando(["exec", "b", "--", "cat", "/etc/hosts"]).ok();
    let known = sandbox.inspect("a")["addresses"][0].as_str().expect("it has an address").to_owned();
    assert!(hosts().contains(&format!("{known} a alpha\n")), "{}", hosts());
    // A name that is somebody else's leads nowhere else.
    for taken in ["b", "ALPHA", "localhost", "host.pando.internal"] {
        let _c = server(sandbox, "c", &["--net", "private", "--hostname", taken], "80");
        assert!(hosts().lines().any(|line| line.ends_with(" c")), "{taken}: {}", hosts());
        sandbox.pando(["rm", "--force", "c"]).ok();
    }
    sandbox.pando(["rm", "--force", "a"]).ok();
    assert!(!hosts().contains(" a alpha"), "who has gone is not known: {}", hosts());
    // The same name gets the same address again.
    let _a = server(sandbox, "a", &["--net", "private"], "80");
    assert_eq!(sandbox.inspect("a")["addresses"][0], known.as_str());
}

const SPOOF: &str = r#"
import socket, subprocess, sys
subprocess.run(["ip", "address", "add", "10.213.255.1/32", "dev", "eth0"], check=True)
for source in (sys.argv[2:] or [None]):
    try:
        line = socket.create_connection((sys.argv[1], 7), timeout=2, source_address=(source, 0)).makefile("rw")
        line.write("who\n"); line.flush(); print(line.readline().strip(), flush=True)
    except OSError as error:
        print(error)
"#;

/// Whoever rules his own network namespace can take any address there.
fn foreign_addresses(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    let options = [
        "run",
        "--net",
        "private",
        "--address",
        "10.213.0.9",
        "--cap-add",
        "NET_ADMIN",
        "--",
        "/usr/bin/python3",
        "-c",
    ];
    let out = sandbox.pando(options).args([SPOOF, OUTSIDE[0], "10.213.0.9", "10.213.255.1"]).ok();
    assert_eq!(out, "10.9.0.1\ntimed out\n", "its own address works, the other does not");
}

/// A machine outside has a way to the guests, by the host. What is published is reached by it, and nothing else.
fn by_a_route(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _a = server(sandbox, "a", &["--address", "10.213.0.9", "--publish", "8080:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    wire.outside(["ip", "route", "add", "10.213.0.0/16", "via", "10.9.0.1"]).ok();
    let connect = "import socket; s = socket.socket(); s.settimeout(3); print(s.connect_ex(('10.213.0.9', 80)))";
    assert_ne!(
        wire.outside(["python3", "-c", connect]).limit(20).ok(),
        "0\n",
        "a port that is not published was reached"
    );
    answers(&wire, "10.9.0.1", 8080, "a");
    assert_eq!(who(sandbox, &[], OUTSIDE[0]), "10.9.0.1", "guests go out as ever");
}

/// The host did not pass packets on between its own devices before its guests needed it to, and does not now.
fn no_router(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    wire.plug("h1", "o1");
    wire.host([
        "sh",
        "-c",
        "echo 0 >/proc/sys/net/ipv4/ip_forward; ip address add 10.8.0.1/24 dev h1; ip link set h1 up",
    ])
    .ok();
    let script = "ip address add 10.8.0.100/24 dev o1; ip link set o1 up; ip rule add from 10.9.0.100 lookup 77; \
                  ip route add 10.8.0.0/24 via 10.9.0.1 table 77; echo 1 >/proc/sys/net/ipv4/conf/all/accept_local; \
                  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter; echo 0 >/proc/sys/net/ipv4/conf/o1/rp_filter";
    wire.outside(["sh", "-c", script]).ok();
    let _a = server(sandbox, "a", &["--publish", "8080:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    let counted = "nft add table ip seen; nft 'add chain ip seen out { type filter hook postrouting priority 300; }'; \
                   nft add rule ip seen out oifname h1 ip saddr 10.9.0.100 counter";
    wire.host(["sh", "-c", counted]).ok();
    let send = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.9.0.100', 0)); \
                [s.sendto(b'x', ('10.8.0.77', 9)) for _ in range(3)]";
    wire.outside(["python3", "-c", send]).ok();
    let counter = wire.host(["nft", "list", "chain", "ip", "seen", "out"]).ok();
    assert!(counter.contains("counter packets 0"), "the host passed something on: {counter}");
    wire.host(["nft", "delete", "table", "ip", "seen"]).ok();
}

fn no_loopback(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let local = "import socket; s = socket.create_server(('127.0.0.1', 9091)); \
        [s.accept()[0].send(b'host') for _ in range(100)]";
    let _host = wire.host(["python3", "-c", local]).limit(300).start();
    eventually("the host's server listens", || wire.host(["ss", "-Htln"]).ok().contains(":9091"));
    // By a route that leads 127.0.0.1 to the host.
    let script = "ip address del 127.0.0.1/8 dev lo; ip route add 127.0.0.1 via 10.213.0.1 dev eth0; \
        echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet; /usr/bin/python3 -c \
        'import socket; s = socket.socket(); s.settimeout(2); print(s.connect_ex((\"127.0.0.1\", 9091)) == 0)'";
    let line = sandbox.pando(["run", "--net", "private", "--cap-add", "NET_ADMIN", "--", "sh", "-c", script]);
    assert_eq!(line.ok(), "False\n");
}

fn the_daemon_dies(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let before = traces(&wire);
    let _a = server(sandbox, "a", &["--publish", "8080:80"], "80");
    let _b = server(sandbox, "b", &["--publish", "8081:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    answers(&wire, "10.9.0.1", 8081, "b");
    process::kill(sandbox.daemon().expect("it runs"));
    answers(&wire, "10.9.0.1", 8080, "a");
    let first = sandbox.processes().into_iter().find(|one| one.words.iter().any(|word| word == "a")).expect("it runs");
    process::kill(first.pid);
    eventually("the dead guest's port leads nowhere", || {
        wire.pando(sandbox, ["ls"]).ok();
        let rules = wire.host(["nft", "list", "ruleset"]).ok();
        !rules.contains("tcp . 8080") && rules.contains("tcp . 8081")
    });
    answers(&wire, "10.9.0.1", 8081, "b");
    sandbox.pando(["rm", "--force", "b"]).ok();
    eventually("nothing is left", || traces(&wire) == before);
}

fn half_way(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let before = traces(&wire);
    sandbox.end_daemon();
    for point in ["net.leased", "start.noted", "end.quit"] {
        let daemon = wire.pando(sandbox, ["daemon"]).env("PANDO_CRASH_AT", point).start();
        eventually("the daemon listens", || std::os::unix::net::UnixStream::connect(sandbox.places().socket()).is_ok());
        let _ = sandbox.pando(["run", "--from", sandbox.busybox(), "--publish", "8080:80", "--", "true"]).run();
        daemon.wait().ended_with(137);
        wire.pando(sandbox, ["ls"]).ok();
        eventually(&format!("nothing is left after {point}"), || traces(&wire) == before);
        sandbox.end_daemon();
    }
}

fn nothing_is_left(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let before = traces(&wire);
    let net = sandbox.places().run().join("net");
    for number in 0..10 {
        let published = format!("{}:80", 8080 + number);
        sandbox.run_sh(&["--publish", &published], "true").ok();
    }
    eventually("all goes with the last guest", || traces(&wire) == before && !net.exists());
    sandbox.run_sh(&["--net", "private"], "true").ok();
    sandbox.end_daemon();
    assert_eq!(traces(&wire), before, "a daemon that ends leaves no network that no guest needs");
}

/// More than the daemon has threads for what takes long.
fn many_at_once(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    let names: Vec<String> = (0..40).map(|number| format!("g{number}")).collect();
    for name in &names {
        sandbox.create(name, &["--net", "private"]);
    }
    sandbox.pando(["start"]).args(&names).ok();
    assert!(names.iter().all(|name| sandbox.status(name).is_some_and(|status| status["state"] == "running")));
    sandbox.pando(["rm", "--force"]).args(&names).ok();
}

fn macvlan(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let options = ["--net", "private", "--link", "macvlan", "--address", "10.9.0.7/24@h0", "--address", "fd00:9::7/64"];
    let _a = server(sandbox, "a", &options, "80");
    answers(&wire, "10.9.0.7", 80, "a");
    answers(&wire, "fd00:9::7", 80, "a");
    assert!(!wire.links().contains("10.9.0.7"), "the host does not have the guest's address");
    sandbox.pando(["rm", "--force", "a"]).ok();
    let refused = sandbox.pando(["run", "--net", "private", "--link", "macvlan", "--", "true"]).run();
    refused.ended_with(125).complains_of(&["needs an address"]);
}

fn netkit(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    assert_eq!(who(sandbox, &["--link", "netkit"], OUTSIDE[0]), "10.9.0.1");
}

fn doctor(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let before = traces(&wire);
    let _host = wire.host(["python3", "-c", HOLD]).limit(300).start();
    eventually("the host's server listens", || wire.host(["ss", "-Htln"]).ok().contains(":9090"));
    let ended = wire.pando(sandbox, ["doctor", "--json"]).run();
    let told: serde_json::Value = serde_json::from_str(&ended.out()).unwrap();
    let held = serde_json::json!({ "protocol": "tcp", "port": 9090, "process": "python3" });
    assert!(told["held_ports"].as_array().is_some_and(|all| all.contains(&held)), "{}", told["held_ports"]);
    let of =
        |name: &str| told["findings"].as_array().and_then(|all| all.iter().find(|one| one["name"] == name)).cloned();
    for name in ["veth", "bridge", "nftables", "macvlan", "netkit", "htb"] {
        assert!(of(name).is_some_and(|one| one["area"] == "network"), "{name}");
    }
    assert_eq!(traces(&wire), before, "what was tried is taken back");
}

fn refusals(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    let refused = |options: &[&str], words: &[&str]| {
        let line = sandbox.pando(["run", "--from", sandbox.busybox()]).args(options).args(["--", "true"]);
        line.run().ended_with(125).complains_of(words);
    };
    refused(&["--net", "shared", "--publish", "80:80"], &["--net private"]);
    refused(&["--net", "private", "--address", "192.0.2.1"], &["192.0.2.1 is not an address of the private network"]);
    refused(&["--net", "host", "--dns", "192.0.2.1"], &["--net private"]);
    refused(&["--net-limit", "1mbit"], &["without a network"]);
    refused(&["--net", "private", "--net-limit", "fast"], &["net.limit cannot be 'fast'"]);
}

//! What keeps guests of a private network to their own addresses: frames that a bridge shows no table, tables that
//! others remove, and what an earlier daemon left.

use super::addresses::{answers, python, server, wire};
use super::private::{NEEDS, NETKIT, traces};
use super::wire::Wire;
use crate::case::Case;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("private::frames_for_bridges_themselves_are_dropped", link_local).needs(NEEDS),
    Case::new("private::frames_for_bridges_themselves_are_dropped_on_netkit", link_local_on_netkit).needs(NETKIT),
    Case::new("private::tables_that_others_remove_are_made_anew", flushed).needs(NEEDS),
    Case::new("private::the_next_daemon_makes_tables_anew", flushed_meanwhile).needs(NEEDS),
    Case::new("private::the_next_daemon_has_the_host_forward", forwards_again).needs(NEEDS),
    Case::new("private::forwarding_that_others_rely_on_stays", relied_on).needs(NEEDS),
    Case::new("private::what_is_left_of_another_boot_goes", another_boot).needs(NEEDS),
    Case::new("private::addresses_that_the_host_routes_elsewhere_are_left_alone", routes).needs(NEEDS),
    Case::new("private::addresses_that_are_named_are_nobody_elses", named_addresses).needs(NEEDS),
];

/// Sends frames to an address that bridges keep for themselves (LLDP's): one that has a neighbour's Ethernet address,
/// datagrams to the host from addresses of others, and an advertisement of a router. Then a datagram as it should be.
const ATTACK: &str = r#"
import socket, struct, sys
host, neighbour = sys.argv[1:3]
def ethernet(ip): return b"\x02\x50" + socket.inet_aton(ip)
def total(b):
    b += b"\0" * (len(b) % 2)
    t = sum(struct.unpack("!%dH" % (len(b) // 2), b))
    while t >> 16: t = (t & 0xffff) + (t >> 16)
    return ~t & 0xffff
own = bytes.fromhex(open("/sys/class/net/eth0/address").read().strip().replace(":", ""))
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0))
for last in range(16):
    to = b"\x01\x80\xc2\0\0" + bytes([last])
    s.send(to + ethernet(neighbour) + b"\x88\xcc" + b"\0" * 46)
    for source in (neighbour, "192.0.2.9", "10.213.255.1"):
        udp = struct.pack("!HHHH", 4444, 5399, 8 + 7, 0) + b"forged\n"
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(host))
        s.send(to + own + b"\x08\0" + ip[:10] + struct.pack("!H", total(ip)) + ip[12:] + udp)
    source, every = socket.inet_pton(socket.AF_INET6, "fe80::bad"), socket.inet_pton(socket.AF_INET6, "ff02::1")
    says = struct.pack("!BBHBBHII", 134, 0, 0, 64, 8, 1800, 0, 0) + struct.pack("!BB6s", 1, 1, own)
    says = says[:2] + struct.pack("!H", total(source + every + struct.pack("!II", len(says), 58) + says)) + says[4:]
    s.send(to + own + b"\x86\xdd" + struct.pack("!IHBB", 0x60000000, len(says), 58, 255) + source + every + says)
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"honest\n", (host, 5399))
"#;

/// Writes down what datagrams say.
const HEAR: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5399))
while True:
    said = s.recv(100)
    with open(sys.argv[1], "ab") as told: told.write(said)
"#;

fn link_local(sandbox: &Sandbox) {
    attack(sandbox, &[]);
}

fn link_local_on_netkit(sandbox: &Sandbox) {
    attack(sandbox, &["--link", "netkit"]);
}

fn attack(sandbox: &Sandbox, options: &[&str]) {
    let wire = wire(sandbox);
    let told = sandbox.scratch().join("told");
    let hears = wire.host(["python3", "-c", HEAR]).args([&told]).limit(300).start();
    eventually("the host's server hears", || wire.host(["ss", "-Hlun"]).ok().contains(":5399"));
    // As on most machines: what routers say is believed, and no way back is asked for.
    let usual = "for device in all default; do echo 0 >/proc/sys/net/ipv4/conf/$device/rp_filter; \
                 echo 1 >/proc/sys/net/ipv6/conf/$device/accept_ra; done";
    wire.host(["sh", "-c", usual]).ok();
    let _neighbour = server(sandbox, "neighbour", &[&["--net", "private"], options].concat(), "80");
    // Over the host's own files a guest has no sockets for frames.
    let _attacker =
        server(sandbox, "attacker", &[&["--net", "private", "--profile", "default"], options].concat(), "80");
    let address = |name: &str| sandbox.inspect(name)["addresses"][0].as_str().expect("it has an address").to_owned();
    let neighbour = address("neighbour");
    let gateway = sandbox.exec_sh("attacker", "ip route show default | cut -d' ' -f3").ok();
    let greet = "import socket, sys; print(socket.create_connection((sys.argv[1], 80), timeout=5).recv(9).decode())";
    eventually("the neighbour answers", || {
        wire.host(["python3", "-c", greet, &neighbour]).run().out() == "neighbour\n"
    });
    let known = || place_of(&wire, &neighbour);
    let before = known();
    let strike = ["exec", "attacker", "--", "/usr/bin/python3", "-c", ATTACK, gateway.trim(), &neighbour];
    sandbox.pando(strike).ok();
    let heard = || std::fs::read_to_string(&told).unwrap_or_default();
    eventually("what is honest arrives", || heard().contains("honest"));
    let routes = wire.host(["ip", "-6", "route", "show", "default"]).ok();
    // What the host has heard, where a neighbour's frames go, and by whom the host's.
    let harm = [heard() != "honest\n", known() != before, routes.contains("fe80::bad")];
    assert_eq!(harm, [false; 3], "{}, {before} and {}, {routes}", heard(), known());
    hears.signal(rustix::process::Signal::KILL);
    let _ = hears.wait();
}

/// The port that the bridge has learned a guest at.
fn place_of(wire: &Wire, address: &str) -> String {
    let octets: Vec<String> = address.split('.').map(|part| format!("{:02x}", part.parse::<u8>().unwrap())).collect();
    let ethernet = format!("02:50:{}", octets.join(":"));
    let all = wire.host(["bridge", "fdb", "show"]).ok();
    let line = all.lines().find(|line| line.starts_with(&ethernet) && line.contains("master pb-"));
    line.unwrap_or_else(|| panic!("no {ethernet} in {all}")).split(" master").next().unwrap_or_default().to_owned()
}

/// What the host's tables say of a guest's port, and of its published one.
fn is_guarded(wire: &Wire) -> bool {
    let rules = wire.host(["nft", "list", "ruleset"]).ok();
    ["table inet pando_", "table bridge pando_", "tcp . 8080", "@own_ethernet drop", "hook ingress device \"pv-"]
        .iter()
        .all(|words| rules.contains(words))
}

/// As a reload of /etc/nftables.conf does.
fn flush(wire: &Wire) {
    wire.host(["nft", "flush", "ruleset"]).ok();
}

fn flushed(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let before = traces(&wire);
    let _a = server(sandbox, "a", &["--publish", "8080:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    for _ in 0..3 {
        flush(&wire);
        eventually("the tables are made anew", || is_guarded(&wire));
        answers(&wire, "10.9.0.1", 8080, "a");
    }
    // Nobody waits for that: whoever comes, goes or is changed finds all that it needs.
    flush(&wire);
    let _b = server(sandbox, "b", &["--publish", "8081:80"], "80");
    answers(&wire, "10.9.0.1", 8081, "b");
    flush(&wire);
    sandbox.pando(["rm", "--force", "b"]).ok();
    eventually("the tables are made anew", || is_guarded(&wire));
    let rules = wire.host(["nft", "list", "ruleset"]).ok();
    assert!(!rules.contains("8081"), "what a guest had has gone with it: {rules}");
    answers(&wire, "10.9.0.1", 8080, "a");
    sandbox.pando(["rm", "--force", "a"]).ok();
    eventually("nothing is left", || traces(&wire) == before);
}

fn flushed_meanwhile(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let _a = server(sandbox, "a", &["--publish", "8080:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    for what in ["nft flush ruleset", "nft delete table $(nft list tables | grep -m1 bridge | cut -d' ' -f2-)"] {
        process::kill(sandbox.daemon().expect("it runs"));
        wire.host(["sh", "-c", what]).ok();
        assert!(!is_guarded(&wire), "{what} does nothing");
        wire.pando(sandbox, ["ls"]).ok();
        eventually("the next daemon makes the tables anew", || is_guarded(&wire));
        answers(&wire, "10.9.0.1", 8080, "a");
    }
}

fn forwards_again(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    wire.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]).ok();
    let forwards = || wire.host(["cat", "/proc/sys/net/ipv4/ip_forward"]).ok();
    let _a = server(sandbox, "a", &["--publish", "8080:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    process::kill(sandbox.daemon().expect("it runs"));
    // As if it had been killed before it came to that.
    wire.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]).ok();
    wire.pando(sandbox, ["ls"]).ok();
    eventually("the next daemon has the host forward", || forwards() == "1\n");
    answers(&wire, "10.9.0.1", 8080, "a");
    sandbox.pando(["rm", "--force", "a"]).ok();
    eventually("the host forwards no longer", || forwards() == "0\n");
}

/// An engine of containers that starts later finds forwarding on, and leaves it so.
fn relied_on(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    wire.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]).ok();
    let _a = server(sandbox, "a", &["--publish", "8080:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    wire.host(["ip", "link", "add", "engine0", "type", "bridge"]).ok();
    // What is made anew, and what comes later, keeps nothing apart that has come since.
    process::kill(sandbox.daemon().expect("it runs"));
    wire.pando(sandbox, ["ls"]).ok();
    sandbox.pando(["network", "create", "front"]).ok();
    let _b = server(sandbox, "b", &["--net", "front", "--publish", "8081:80"], "80");
    answers(&wire, "10.9.0.1", 8081, "b");
    let rules = wire.host(["nft", "list", "ruleset"]).ok();
    assert!(rules.contains("\"h0\"") && !rules.contains("engine0"), "{rules}");
    sandbox.pando(["rm", "--force", "a", "b"]).ok();
    eventually("the tables go", || !wire.host(["nft", "list", "tables"]).ok().contains("pando_"));
    sandbox.end_daemon();
    assert_eq!(wire.host(["cat", "/proc/sys/net/ipv4/ip_forward"]).ok(), "1\n");
}

fn another_boot(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    wire.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]).ok();
    let a = python(sandbox, "a", &["--net", "private"], "import time; time.sleep(1000)", &[]);
    let net = sandbox.places().run().join("net");
    let kept = std::fs::read(net.join("network.toml")).expect("it is written down");
    sandbox.pando(["rm", "--force", "a"]).ok();
    drop(a);
    eventually("nothing is left", || !net.exists());
    sandbox.end_daemon();
    // The same of another boot, of which nothing else is left; and this one's host forwards by itself.
    let text = String::from_utf8(kept).unwrap();
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("boot")).collect();
    let place = lines.iter().position(|line| line.starts_with('[')).unwrap_or(lines.len());
    lines.insert(place, "boot = \"another\"");
    std::fs::create_dir_all(&net).unwrap();
    std::fs::write(net.join("network.toml"), lines.join("\n")).unwrap();
    wire.host(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]).ok();
    wire.pando(sandbox, ["ls"]).ok();
    eventually("it is forgotten", || !net.exists());
    sandbox.end_daemon();
    assert_eq!(wire.host(["cat", "/proc/sys/net/ipv4/ip_forward"]).ok(), "1\n", "this is not Pando's to turn off");
}

fn routes(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let script = "ip route add 10.213.4.0/24 via 10.9.0.100; ip route add 10.216.0.0/16 via 10.9.0.100; \
                  ip route add 10.50.0.7/32 via 10.9.0.100; ip route add 10.60.0.0/16 via 10.9.0.100";
    wire.host(["sh", "-c", script]).ok();
    let _a = server(sandbox, "a", &["--net", "private"], "80");
    let address = sandbox.inspect("a")["addresses"][0].as_str().expect("it has an address").to_owned();
    assert!(address.starts_with("10.214."), "{address}");
    sandbox.pando(["network", "create", "front"]).ok();
    let subnet = |name: &str| sandbox.pando(["network", "inspect", "-f", "{{.subnet}}", name]).ok();
    assert_eq!(subnet("front"), "10.217.0.0/16\n");
    let refused = sandbox.pando(["network", "create", "back", "--subnet", "10.50.0.0/24"]).run();
    refused.ended_with(125).complains_of(&["10.50.0.0/24 overlaps 10.50.0.7/32", "h0", "choose another"]);
    // Whoever asks for a part of what is routed knows what it is for.
    sandbox.pando(["network", "create", "back", "--subnet", "10.60.7.0/24"]).ok();
}

fn named_addresses(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let settle = |private: &str| {
        sandbox.end_daemon();
        sandbox.settings(&format!("[network]\nprivate = \"{private}\"\n"));
        wire.pando(sandbox, ["ls"]).ok();
    };
    let run = || sandbox.pando(["run", "--from", sandbox.busybox(), "--net", "private", "--", "true"]).run();
    settle("10.9.0.0/16");
    run().ended_with(125).complains_of(&["10.9.0.0/16 overlaps", "h0"]);
    settle("10.216.0.0/16");
    run().succeeded();
    let subnet = |name: &str| sandbox.pando(["network", "inspect", "-f", "{{.subnet}}", name]).ok();
    sandbox.pando(["network", "create", "front"]).ok();
    assert_eq!(subnet("front"), "10.217.0.0/16\n");
    let refused = sandbox.pando(["network", "create", "back", "--subnet", "10.216.7.0/24"]).run();
    refused.ended_with(125).complains_of(&["10.216.7.0/24 overlaps network 'private'"]);
    settle("10.217.7.0/24");
    run().ended_with(125).complains_of(&["10.217.7.0/24 overlaps network 'front'"]);
}

//! Host mode: a server of the host's on ANY, and guests' servers on the same port.

use super::addresses::{REFUSED, SERVER, answers, server, wire};
use super::wire::Wire;
use crate::case::Case;
use crate::line::Started;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("host_mode::the_host_and_guests_have_the_same_port", the_same_port).needs(super::NEEDS),
    Case::new("host_mode::what_it_cannot_help_is_left_alone", left_alone).needs(super::NEEDS),
    Case::new("host_mode::it_needs_no_daemon_and_leaves_nothing", without_a_daemon).needs(super::NEEDS),
];

/// What the near machine itself is answered.
fn near(wire: &Wire, ip: &str, port: u16) -> String {
    let script = "import socket, sys; print(socket.create_connection((sys.argv[1], sys.argv[2]), timeout=5).recv(100).decode(), end='')";
    let ended = wire.host(["python3", "-c", script, ip, &port.to_string()]).run();
    if ended.code() == 0 { ended.out() } else { ended.err().lines().last().unwrap_or_default().to_owned() }
}

/// Ends the host's servers and what made them such.
fn off(sandbox: &Sandbox, wire: &Wire, servers: impl IntoIterator<Item = Started>) {
    for server in servers {
        process::kill(server.pid());
        server.wait();
    }
    wire.pando(sandbox, ["host-mode", "off"]).ok();
}

fn the_same_port(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    // The control: without it the host's server has the port everywhere.
    let first = wire.host(["python3", "-c", SERVER, "host", "80"]).limit(300).start();
    answers(&wire, "10.9.0.1", 80, "host");
    let refused = server(sandbox, "a", &["--address", "10.9.0.5"], "80").wait();
    refused.ended_with(1).complains_of(&["Address already in use"]);
    process::kill(first.pid());
    first.wait();
    wire.pando(sandbox, ["host-mode", "on"]).ok();
    let host = wire.host(["python3", "-c", SERVER, "host", "80"]).limit(300).start();
    let a = server(sandbox, "a", &["--address", "10.9.0.5", "--address", "fd00:9::5"], "80");
    let _b = server(sandbox, "b", &["--address", "10.9.0.6"], "80");
    for (ip, who) in
        [("10.9.0.1", "host"), ("fd00:9::1", "host"), ("10.9.0.5", "a"), ("fd00:9::5", "a"), ("10.9.0.6", "b")]
    {
        answers(&wire, ip, 80, who);
    }
    for ip in ["127.0.0.1", "::1", "10.9.0.1", "fd00:9::1"] {
        assert_eq!(near(&wire, ip, 80), "host", "the host by itself, at {ip}");
    }
    // Devices and addresses that come later are the host's too, and nothing of Pando's has to be told.
    wire.plug("late0", "late1");
    wire.host(["ip", "address", "add", "10.77.0.1/24", "dev", "late0"]).ok();
    wire.outside(["ip", "address", "add", "10.77.0.2/24", "dev", "late1"]).ok();
    answers(&wire, "10.77.0.1", 80, "host");
    drop(a);
    sandbox.pando(["rm", "--force", "a"]).ok();
    wire.host(["ip", "address", "add", "10.9.0.5/32", "dev", "h0"]).ok();
    answers(&wire, "10.9.0.5", 80, "host");
    answers(&wire, "10.9.0.6", 80, "b");
    sandbox.pando(["address", "add", "b", "10.9.0.7"]).ok();
    answers(&wire, "10.9.0.7", 80, "b");
    off(sandbox, &wire, [host]);
}

/// Binds ANY as its words say, tells what it is called, and stays.
const HOLDER: &str = r#"
import socket, sys, time
kind = socket.SOCK_DGRAM if sys.argv[1] == "udp" else socket.SOCK_STREAM
s = socket.socket(socket.AF_INET, kind)
if "reuse" in sys.argv: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if "share" in sys.argv: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("0.0.0.0", int(sys.argv[2])))
print(s.getsockname()[0], flush=True)
try:
    if "connect" in sys.argv: s.connect(("10.9.0.100", 7)); print("connected")
    if kind == socket.SOCK_STREAM and "connect" not in sys.argv: s.listen()
except OSError as error: print(error.strerror)
if "stay" in sys.argv: time.sleep(300)
"#;

fn left_alone(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    wire.pando(sandbox, ["host-mode", "on"]).ok();
    let holder = |words: &[&str]| wire.host(["python3", "-c", HOLDER]).args(words);
    // A client with a port of its own goes where it likes; one that looks like a server is told that it cannot.
    assert_eq!(holder(&["tcp", "81", "connect"]).ok(), "0.0.0.0\nconnected\n");
    assert_eq!(holder(&["tcp", "82", "reuse", "connect"]).ok(), "0.0.0.0\nCannot assign requested address\n");
    let plain = holder(&["tcp", "83", "stay"]).limit(300).start();
    let shared = holder(&["tcp", "84", "reuse", "share", "stay"]).limit(300).start();
    let datagrams = holder(&["udp", "85", "reuse", "stay"]).limit(300).start();
    let served = holder(&["tcp", "86", "reuse", "stay"]).limit(300).start();
    let held = || {
        let told: serde_json::Value =
            serde_json::from_str(&wire.pando(sandbox, ["doctor", "--json"]).run().out()).unwrap();
        let ports = told["held_ports"].as_array().into_iter().flatten().filter_map(|one| one["port"].as_u64());
        ports.filter(|port| (83..=86).contains(port)).collect::<Vec<_>>()
    };
    eventually("all of them wait", || {
        wire.host(["ss", "-Htuln"]).ok().lines().filter(|line| line.contains(":8")).count() == 4
    });
    assert_eq!(held(), [83, 84, 85], "doctor lists who holds a port everywhere nevertheless");
    // Other network namespaces are not the host's, though their processes are in its groups.
    let elsewhere = wire
        .outside(["sh", "-c", "python3 -c \"$1\" tcp 86 reuse stay & i=0; until ss -Htln | grep -q :86 || [ $i = 100 ]; do i=$((i+1)); sleep 0.2; done; ss -Htln; kill $!", "sh", HOLDER])
        .ok();
    assert!(elsewhere.contains("0.0.0.0:86"), "{elsewhere}");
    off(sandbox, &wire, [plain, shared, datagrams, served]);
}

fn without_a_daemon(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let pins = sandbox.places().run().join("bpf");
    wire.pando(sandbox, ["host-mode", "on"]).ok();
    wire.pando(sandbox, ["host-mode", "on"]).ok();
    let host = wire.host(["python3", "-c", SERVER, "host", "80"]).limit(300).start();
    let _a = server(sandbox, "a", &["--address", "10.9.0.5"], "80");
    answers(&wire, "10.9.0.5", 80, "a");
    process::kill(sandbox.daemon().expect("it runs"));
    answers(&wire, "10.9.0.1", 80, "host");
    wire.pando(sandbox, ["rm", "--force", "a"]).ok();
    wire.host(["ip", "address", "replace", "10.9.0.5/32", "dev", "h0"]).ok();
    // The last guest is gone, and the daemon: the host's server is found all the same.
    sandbox.end_daemon();
    assert_eq!(wire.pando(sandbox, ["host-mode"]).ok(), "on\n");
    answers(&wire, "10.9.0.5", 80, "host");
    wire.pando(sandbox, ["host-mode", "off"]).ok();
    assert_eq!(wire.pando(sandbox, ["host-mode"]).ok(), "off\n");
    answers(&wire, "10.9.0.1", 80, "host");
    off(sandbox, &wire, [host]);
    answers(&wire, "10.9.0.1", 80, REFUSED);
    assert!(!pins.exists(), "nothing is needed any more, and nothing is left");
}

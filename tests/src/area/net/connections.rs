//! TCP connections of guests that are frozen to end there, and restored.

use super::NEEDS;
use super::addresses::wire;
use super::wire::Wire;
use crate::case::{Case, Tag};
use crate::debian_image::tarball;
use crate::line::Started;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("network::connections_last_through_a_restore", connections_last).needs(NEEDS),
    Case::new("network::connections_are_given_up_with_what_had_them", connections_are_given_up).needs(NEEDS),
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

/// Numbers the lines of each client.
const NUMBERS: &str = "while read line; do n=$((n+1)); echo $n $line; done";

/// How a client asks, how it has to be answered in a turn, and how lines end.
struct Language([&'static str; 3]);

/// Of the server that numbers lines.
const NUMBERED: Language = Language(["from {number}", "{turn} from {number}", "\n"]);

/// Of redis: each client counts in a key of its own.
const REDIS: Language = Language(["INCR key{number}", ":{turn}", "\r\n"]);

/// Clients that talk in turn, each over a connection of its own, and have to be answered with one number more each time. They write how often all have been,
/// and when a connection ends, that.
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

fn listens(wire: &Wire, ip: &str, port: u16) -> bool {
    let script = "import socket, sys; socket.create_connection((sys.argv[1], sys.argv[2]), timeout=10)";
    wire.outside(["python3", "-c", script, ip, &port.to_string()]).run().code() == 0
}

/// Starts them outside.
fn clients(wire: &Wire, Language(language): &Language, ip: &str, port: u16, said: &Path) -> Started {
    let (port, said) = (port.to_string(), said.to_string_lossy().into_owned());
    wire.outside(["python3", "-c", CLIENTS, ip, &port, "3", &said]).args(language).limit(600).start()
}

fn turns(said: &Path) -> u32 {
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

fn withheld(sandbox: &Sandbox) -> bool {
    sandbox.places().run().join("withheld").exists()
}

fn connections_are_given_up(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let said = sandbox.scratch().join("said");
    let ways: [&[&[&str]]; 3] = [
        &[&["start", "web"]],
        &[&["image", "rm", "warm"], &["start", "web"]],
        &[&["rm", "web"], &["image", "rm", "warm"]],
    ];
    for way in ways {
        if sandbox.state("web") == "absent" {
            let server = ["--address", "10.9.0.5", "--", "nc", "-ll", "-p", "80", "-e", "sh", "-c", NUMBERS];
            sandbox.guest("web", &server);
        }
        let _ = std::fs::remove_file(&said);
        eventually("it listens", || listens(&wire, "10.9.0.5", 80));
        let clients = clients(&wire, &NUMBERED, "10.9.0.5", 80, &said);
        eventually("clients are answered", || turns(&said) > 3);
        sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
        assert!(withheld(sandbox));
        for words in way {
            sandbox.pando(*words).ok();
        }
        assert!(!withheld(sandbox), "after {way:?}");
        if sandbox.state("web") == "running" {
            let told = || std::fs::read_to_string(&said).is_ok_and(|text| text.starts_with("ended"));
            eventually("the clients are told that their connections are gone", told);
            sandbox.pando(["rm", "--force", "web"]).ok();
            let _ = sandbox.pando(["image", "rm", "warm"]).run();
        }
        drop(clients);
    }
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

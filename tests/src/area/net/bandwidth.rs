//! Bandwidth: whose packets are in whose class, and what changes and goes with the guests. How much passes is measured
//! by `bench net`.

use super::addresses::{python, wire};
use super::wire::Wire;
use crate::case::Case;
use crate::line::Started;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("bandwidth::packets_are_in_their_guests_class", classes).needs(NEEDS),
    Case::new("bandwidth::a_running_guest_is_granted_more", changes).needs(NEEDS),
    Case::new("bandwidth::what_comes_in_too_fast_is_dropped", policed).needs(NEEDS),
    Case::new("bandwidth::no_more_is_promised_than_there_is", overbooked).needs(NEEDS),
    Case::new("bandwidth::it_does_not_depend_on_the_daemon", the_daemon_dies).needs(NEEDS),
    Case::new("bandwidth::a_discipline_of_others_is_left_alone", foreign).needs(NEEDS),
];

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("tc", "iproute2"),
    Need::Program("nft", "nftables"),
    Need::Program("python3", "python3"),
    Need::Program("nsenter", "util-linux"),
    Need::Linux(6, 6),
];

const SETTINGS: &str = "[network.link_rate]\nh0 = \"100mbit\"\n";

/// Sends a quarter of a megabyte, half of it in datagrams, says so and stays.
const SENDER: &str = r#"
import socket, time
stream = socket.create_connection(("10.9.0.100", 7))
stream.sendall(b"x" * 125000)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(125):
    datagrams.sendto(b"x" * 1000, ("10.9.0.100", 9))
    time.sleep(0.001)
print("sent", flush=True)
time.sleep(300)
"#;

const PART: u64 = 250_000;

/// A wire of a known rate, by which everything leaves.
pub(super) fn shaped_wire(sandbox: &Sandbox) -> Wire {
    sandbox.settings(SETTINGS);
    let wire = wire(sandbox);
    wire.host(["ip", "route", "add", "default", "via", "10.9.0.100"]).ok();
    wire
}

/// The classes of the near machine's device: number, words, bytes sent.
fn classes_of(wire: &Wire) -> Vec<(String, String, u64)> {
    let text = wire.host(["tc", "-s", "class", "show", "dev", "h0"]).ok();
    let mut all: Vec<(String, String, u64)> = Vec::new();
    for line in text.lines() {
        if let Some(class) = line.strip_prefix("class htb ") {
            all.push((class.split(' ').next().unwrap_or_default().to_owned(), class.to_owned(), 0));
        } else if let (Some(sent), Some(last)) = (line.trim().strip_prefix("Sent "), all.last_mut()) {
            last.2 = sent.split(' ').next().and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        }
    }
    all
}

/// What passed by the class with these words in it.
fn sent(wire: &Wire, words: &str) -> u64 {
    classes_of(wire).iter().filter(|(_, class, _)| class.contains(words)).map(|(_, _, bytes)| bytes).sum()
}

fn sender(sandbox: &Sandbox, name: &str, options: &[&str]) -> Started {
    python(sandbox, name, options, SENDER, &[])
}

/// On one address that two share, on a private network, and of a guest that has none of its own.
fn classes(sandbox: &Sandbox) {
    let wire = shaped_wire(sandbox);
    let kinds = [
        ("a", vec!["--address", "10.9.0.5", "--net-limit", "91mbit"], "ceil 91Mbit"),
        ("b", vec!["--address", "10.9.0.5", "--net-limit", "92mbit"], "ceil 92Mbit"),
        ("c", vec!["--net", "private", "--net-limit", "93mbit"], "ceil 93Mbit"),
        ("d", vec!["--net", "host", "--net-limit", "94mbit"], "ceil 94Mbit"),
    ];
    let mut started = Vec::new();
    for (name, options, words) in &kinds {
        started.push(sender(sandbox, name, options));
        eventually("its packets are in its class", || sent(&wire, words) > PART);
    }
    for (_, _, words) in &kinds {
        let bytes = sent(&wire, words);
        assert!(bytes > PART && bytes < 2 * PART, "{words}: {bytes} in {:?}", classes_of(&wire));
    }
    let others = sent(&wire, "50a:1 ");
    assert!(others < PART, "the host's own: {others}");
    for (name, ..) in &kinds {
        sandbox.pando(["rm", "--force", name]).ok();
    }
    eventually("the classes go with the guests", || {
        !wire.host(["tc", "qdisc", "show", "dev", "h0"]).ok().contains("htb")
    });
}

fn changes(sandbox: &Sandbox) {
    let wire = shaped_wire(sandbox);
    sandbox.create("a", &["--address", "10.9.0.5", "--net-reserve", "10mbit"]);
    sandbox.pando(["start", "a"]).ok();
    let class = || {
        classes_of(&wire).iter().find(|(id, ..)| id != "50a:1" && id != "50a:ffff").map(|(_, words, _)| words.clone())
    };
    // A reservation without a share is an upper bound.
    assert!(class().is_some_and(|words| words.contains("rate 10Mbit ceil 10Mbit")), "{:?}", class());
    sandbox.pando(["set", "a", "net.share=100", "net.limit=50mbit"]).ok();
    assert!(class().is_some_and(|words| words.contains("rate 10Mbit ceil 50Mbit")), "{:?}", class());
    let held = sandbox.inspect("a")["limits"].to_string();
    assert!(held.contains("net.reserve") && held.contains("h0: rate 10Mbit ceil 50Mbit"), "{held}");
    sandbox.pando(["set", "a", "net.reserve=200mbit"]).run().ended_with(125).complains_of(&["net.reserve"]);
    assert!(class().is_some_and(|words| words.contains("rate 10Mbit ceil 50Mbit")), "{:?}", class());
    sandbox.pando(["set", "a", "net.reserve=", "net.share=", "net.limit="]).ok();
    assert_eq!(class(), None);
}

const TAKER: &str = r#"
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("10.9.0.5", 9)); print("ready", flush=True)
while True: s.recv(2000)
"#;

fn policed(sandbox: &Sandbox) {
    let wire = shaped_wire(sandbox);
    let flood = "import socket; s = socket.socket(2, 2); [s.sendto(b'x' * 1000, ('10.9.0.5', 9)) for _ in range(2000)]";
    let received = |name: &str| {
        let text = sandbox.pando(["stats", "--json", name]).ok();
        let stats: serde_json::Value = serde_json::from_str(&text).unwrap();
        stats["guests"][0]["now"]["received"].as_u64().unwrap_or(0)
    };
    // The control: nothing is dropped where nothing is limited, but for what the socket has no room for.
    for (name, rate, most) in [("a", "1gbit", u64::MAX), ("b", "64kbit", 1_000_000)] {
        let _taker = python(sandbox, name, &["--address", "10.9.0.5", "--net-limit-in", rate], TAKER, &[]);
        eventually("it listens", || wire.host(["ss", "-Hlun"]).ok().contains("10.9.0.5:9 "));
        wire.outside(["python3", "-c", flood]).ok();
        let came = received(name);
        assert!(came < most && (most < u64::MAX || came > 1_000_000), "{name}: {came} bytes");
        sandbox.pando(["rm", "--force", name]).ok();
    }
}

fn overbooked(sandbox: &Sandbox) {
    let wire = shaped_wire(sandbox);
    let reserve = |name: &'static str, rate: &'static str| {
        sandbox.pando(["run", "--name", name, "--address", "10.9.0.5", "--net-reserve", rate, "--", "sleep", "300"])
    };
    let _a = reserve("a", "60mbit").start();
    eventually("it is granted", || sent_classes(&wire) == 1);
    reserve("b", "50mbit").run().ended_with(125).complains_of(&["110mbit", "100mbit", "h0"]);
    assert_eq!(sent_classes(&wire), 1);
    let _c = reserve("c", "40mbit").start();
    eventually("it is granted", || sent_classes(&wire) == 2);
}

fn sent_classes(wire: &Wire) -> usize {
    classes_of(wire).iter().filter(|(id, ..)| id != "50a:1" && id != "50a:ffff").count()
}

fn the_daemon_dies(sandbox: &Sandbox) {
    let wire = shaped_wire(sandbox);
    let _a = sender(sandbox, "a", &["--address", "10.9.0.5", "--net-limit", "91mbit"]);
    let _b = sender(sandbox, "b", &["--net", "private", "--net-limit", "92mbit"]);
    eventually("both are granted", || sent(&wire, "ceil 91Mbit") > PART && sent(&wire, "ceil 92Mbit") > PART);
    // A guest sends before the daemon has noted that it is there to stay; a daemon that dies in between takes it along.
    ["a", "b"].iter().for_each(|name| sandbox.becomes(name, "running"));
    process::kill(sandbox.daemon().expect("it runs"));
    assert_eq!(sent_classes(&wire), 2);
    // The command that started it names it too, and may not have ended yet.
    let is_sender = |one: &process::Process| {
        one.words.first().is_some_and(|word| word.ends_with("python3")) && one.words.iter().any(|word| word == SENDER)
    };
    let first = sandbox.processes().into_iter().find(is_sender).expect("it runs");
    process::kill(first.pid);
    wire.pando(sandbox, ["ls"]).ok();
    eventually("the dead guest's class goes", || sent_classes(&wire) == 1);
    sandbox.pando(["rm", "--force", "a", "b"]).run();
    eventually("the last class goes", || !wire.host(["tc", "qdisc", "show", "dev", "h0"]).ok().contains("htb"));
    sandbox.end_daemon();
    assert!(!sandbox.places().run().join("bpf-bandwidth").exists(), "nor are programs left");
}

fn foreign(sandbox: &Sandbox) {
    let wire = shaped_wire(sandbox);
    wire.host(["tc", "qdisc", "add", "dev", "h0", "root", "handle", "7:", "htb", "default", "1"]).ok();
    let line = sandbox.pando(["run", "--address", "10.9.0.5", "--net-limit", "1mbit", "--", "true"]);
    line.run().ended_with(125).complains_of(&["queueing discipline of its own (htb)"]);
    assert!(wire.host(["tc", "qdisc", "show", "dev", "h0"]).ok().contains("htb 7:"));
}

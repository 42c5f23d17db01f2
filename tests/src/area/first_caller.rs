//! A daemon that some command started: it, and so its guests, have nothing of whoever called first.

use crate::case::{Case, skip};
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("first_caller::leaves_nothing_to_guests", leaves_nothing_to_guests).needs(&[
        Need::Root,
        Need::Program("taskset", "util-linux"),
        Need::Program("nice", "coreutils"),
    ]),
    Case::new("first_caller::leaves_no_keys_to_guests", leaves_no_keys_to_guests).needs(&[Need::Root]),
    Case::new("users::listen_on_low_ports_of_their_own", listen_on_low_ports_of_their_own),
];

/// What a process in a guest has of a machine's: its limits, niceness, processors, standing when memory is short, and
/// mask.
const LOOK: &str = "cat /proc/self/limits; cut -d' ' -f19 /proc/self/stat; grep Cpus_allowed: /proc/self/status; \
                    cat /proc/self/oom_score_adj; umask";

fn leaves_nothing_to_guests(sandbox: &Sandbox) {
    let run = format!(
        "{} --root {} run --from {} -- sh -c \"{LOOK}\"",
        sandbox.program().display(),
        sandbox.root().display(),
        sandbox.busybox()
    );
    let usual = Line::new("sh").args(["-c", &run]).ok();
    sandbox.end_daemon();
    let odd = "ulimit -S -n 200; ulimit -S -s 1024; ulimit -S -c 0; umask 077; echo 500 >/proc/self/oom_score_adj;";
    let line = format!("{odd} exec taskset 1 nice -n 7 {run}");
    assert_eq!(Line::new("sh").args(["-c", &line]).ok(), usual);
}

const KEYS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/keys"));

/// The daemon is started by the first command, whose session has a key.
fn leaves_no_keys_to_guests(sandbox: &Sandbox) {
    let tree = super::attacks::tree(sandbox);
    let keys = tree.join("bin/keys");
    std::fs::write(&keys, KEYS).unwrap();
    std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let held = Line::new(&keys).args(["hold"]).args([&keys]).args(["look"]).run();
    if held.code() == 2 {
        skip(format!("this machine has no keyrings, or no room in them: {}", held.err().trim()));
    }
    held.succeeded().says("found\n");
    sandbox.end_daemon();
    let pando = |words: &[&str]| {
        let line = Line::new(&keys).args(["hold"]).args([sandbox.program()]).args(["--root"]).args([sandbox.root()]);
        line.args(words).run().succeeded()
    };
    let from = tree.to_string_lossy();
    for userns in ["auto", "host"] {
        let options = ["run", "--from", &from, "--seccomp", "off", "--userns", userns, "--", "keys", "look"];
        pando(&options).says("none\n");
    }
    let wait = "while [ ! -e /go ]; do sleep 0.05; done; keys look >/said; sleep 1000";
    let create = ["create", "g", "--from", &from, "--seccomp", "off", "--start", "--", "sh", "-c", wait];
    pando(&create);
    pando(&["freeze", "g", "image"]);
    pando(&["clone", "image", "clone"]);
    for guest in ["g", "clone"] {
        pando(&["exec", guest, "--", "touch", "/go"]);
        eventually("it has looked", || sandbox.exec_sh(guest, "cat /said").run().out() == "none\n");
        pando(&["exec", guest, "--", "keys", "look"]).says("none\n");
    }
}

/// Where no other shares the network a port belongs to nobody but the guest.
fn listen_on_low_ports_of_their_own(sandbox: &Sandbox) {
    let look = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv4/ping_group_range | tr '\\t' ' '; \
                nc -l -p 79 </dev/null & sleep 0.1; until nc 127.0.0.1 79 </dev/null; do kill -0 $! || exit 3; done; echo heard";
    for net in ["none", "private"] {
        sandbox.run_sh(&["--net", net, "-u", "ada"], look).run().succeeded().says("0\n0 65535\nheard\n");
    }
    let start = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let hosts = std::fs::read_to_string(start).expect("the kernel has it");
    sandbox.run_sh(&["--net", "host"], &format!("cat {start}")).run().succeeded().says(&hosts);
}

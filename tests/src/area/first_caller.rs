//! A daemon that some command started: it, and so its guests, have nothing of whoever called first.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("first_caller::leaves_nothing_to_guests", leaves_nothing_to_guests).needs(&[
        Need::Root,
        Need::Program("taskset", "util-linux"),
        Need::Program("nice", "coreutils"),
    ]),
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

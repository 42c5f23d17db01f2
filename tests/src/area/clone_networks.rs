//! What a guest has changed of a network of its own: a clone has what was set in /proc/sys/net; what it would lack is
//! named before anybody is stopped.

use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::process::Command;

const ROOT: &[Need] = &[Need::Root];
const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("nft", "nftables"),
    Need::Program("nsenter", "util-linux"),
];

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_networks::what_was_set_is_set_in_clones", settings).needs(ROOT),
    Case::new("clone_networks::what_a_clone_would_lack_is_named", |sandbox| named(sandbox, "none", OWN)).needs(NEEDS),
    Case::new("clone_networks::and_on_a_private_network", |sandbox| named(sandbox, "private", CONNECTED)).needs(NEEDS),
];

/// What a guest does, in its network; what is said of that; what undoes it.
type Way = (&'static str, &'static str, &'static str);

const OWN: &[Way] = &[
    ("ip link add strange type veth peer name stranger", "a network device (strange", "ip link del strange"),
    ("ip addr add 10.9.8.7/24 dev lo", "an address (10.9.8.7/24)", "ip addr del 10.9.8.7/24 dev lo"),
    ("ip link set lo down", "a loopback device that was taken down", "ip link set lo up"),
    ("ip link set lo mtu 1500", "a loopback device that was changed", "ip link set lo mtu 65536"),
    ("ip route add 10.9.0.0/16 dev lo", "a route (to 10.9.0.0/16)", "ip route del 10.9.0.0/16 dev lo"),
    ("ip rule add from 10.9.0.1 lookup 7 prio 70", "a rule for routes (with priority 70)", "ip rule del prio 70"),
    ("nft add table inet strange", "packet filters (nftables, iptables)", "nft delete table inet strange"),
];

const CONNECTED: &[Way] = &[
    ("ip addr add 10.9.8.7/24 dev eth0", "an address (10.9.8.7/24)", "ip addr del 10.9.8.7/24 dev eth0"),
    ("ip route add 10.9.0.0/16 dev eth0", "a route (to 10.9.0.0/16)", "ip route del 10.9.0.0/16 dev eth0"),
    ("nft add table ip strange", "packet filters (nftables, iptables)", "nft delete table ip strange"),
    ("ip link add strange type veth peer name stranger", "a network device (strange", "ip link del strange"),
];

#[track_caller]
fn inside(sandbox: &Sandbox, name: &str, script: &str) -> String {
    sandbox.exec_sh(name, script).ok().trim().to_owned()
}

fn settings(sandbox: &Sandbox) {
    const SET: &str =
        "cd /proc/sys/net/ipv4; echo 99 >ip_default_ttl; echo 1 >ip_forward; echo 7 >conf/default/rp_filter
        echo '1024 2048' >ip_local_port_range; echo 0 >conf/all/rp_filter; echo 1 >conf/lo/disable_policy";
    const LOOK: &str =
        "cd /proc/sys/net; for one in $(find . -type f ! -path '*/conf/eth0/*' ! -path '*/neigh/eth0/*'); do
        echo $one $(cat $one 2>/dev/null); done | grep -v -e key -e secret | sort";
    sandbox.guest("source", &["--profile", "system", "--net", "none", "--", "sleep", "100000"]);
    inside(sandbox, "source", SET);
    let was = inside(sandbox, "source", LOOK);
    assert!(was.contains("./ipv4/ip_default_ttl 99") && was.contains("./ipv4/ip_forward 1"), "{was}");
    sandbox.pando(["freeze", "source", "warm", "--wait"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    sandbox.end_daemon();
    sandbox.pando(["clone", "warm", "two"]).ok();
    sandbox.pando(["freeze", "source", "ended", "--stop"]).ok();
    sandbox.pando(["restore", "ended"]).ok();
    for name in ["one", "two", "source"] {
        assert_eq!(inside(sandbox, name, LOOK), was, "{name}");
    }
}

/// A guest that has changed nothing is frozen; each change is named, and nothing happens; without it the guest is
/// frozen again.
fn named(sandbox: &Sandbox, network: &str, ways: &[Way]) {
    sandbox.guest("source", &["--profile", "system", "--net", network, "--", "sleep", "100000"]);
    let first = sandbox.first_process("source").to_string();
    let inside = |script: &str| {
        let done =
            Command::new("nsenter").args(["-t", &first, "-n", "sh", "-c", script]).output().expect("nsenter runs");
        assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let can_be_frozen = || {
        let frozen = sandbox.pando(["freeze", "source", "warm"]).run().code() == 0;
        if frozen {
            sandbox.pando(["image", "rm", "warm"]).ok();
        }
        frozen
    };
    assert!(can_be_frozen(), "as it was given");
    for (does, says, undoes) in ways {
        inside(does);
        let refused = sandbox.pando(["freeze", "source", "warm"]).run().ended_with(125);
        refused.complains_of(&["cannot be frozen: process 2 (sleep): ", says, "in the guest's own network; remove it"]);
        assert_eq!(sandbox.state("source"), "running");
        inside(undoes);
        eventually("without it the guest is frozen", can_be_frozen);
    }
}

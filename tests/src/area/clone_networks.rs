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
    Need::Program("tc", "iproute2"),
    Need::Program("nft", "nftables"),
    Need::Program("nsenter", "util-linux"),
];

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_networks::what_was_set_is_set_in_clones", settings).needs(ROOT),
    Case::new("clone_networks::what_a_clone_would_lack_is_named", |sandbox| named(sandbox, "none", OWN)).needs(NEEDS),
    Case::new("clone_networks::and_on_a_private_network", |sandbox| named(sandbox, "private", CONNECTED)).needs(NEEDS),
    Case::new("clone_networks::what_was_given_and_is_another_is_named", |sandbox| named(sandbox, "private", GIVEN))
        .needs(NEEDS),
    Case::new("clone_networks::what_was_set_of_its_device_is_set_in_clones", settings_of_its_device).needs(NEEDS),
    Case::new("clone_networks::what_is_set_of_a_network_inside_is_set_in_clones", settings_inside).needs(NEEDS),
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
    (
        "tc qdisc add dev lo root tbf rate 1mbit burst 32k latency 9ms",
        "a queueing discipline (tbf)",
        "tc qdisc del dev lo root",
    ),
    ("nft add table inet strange", "packet filters (nftables, iptables)", "nft delete table inet strange"),
];

const CONNECTED: &[Way] = &[
    ("ip addr add 10.9.8.7/24 dev eth0", "an address (10.9.8.7/24)", "ip addr del 10.9.8.7/24 dev eth0"),
    ("ip route add 10.9.0.0/16 dev eth0", "a route (to 10.9.0.0/16)", "ip route del 10.9.0.0/16 dev eth0"),
    (
        "ip neigh add 10.9.8.8 lladdr 02:00:00:00:00:01 dev eth0 nud permanent",
        "a neighbour named for good (10.9.8.8)",
        "ip neigh del 10.9.8.8 dev eth0",
    ),
    (
        "tc qdisc add dev eth0 root tbf rate 1mbit burst 32k latency 9ms",
        "a queueing discipline (tbf)",
        "tc qdisc del dev eth0 root",
    ),
    ("nft add table ip strange", "packet filters (nftables, iptables)", "nft delete table ip strange"),
    ("ip link add strange type veth peer name stranger", "a network device (strange", "ip link del strange"),
];

/// What a guest has changed of what its device was given. What undoes it finds the router's address in `$router`, the
/// hardware address in `$hardware`, the addresses in `$four` and `$length`.
const GIVEN: &[Way] = &[
    ("ip route del default", "a default route that was removed (by ", "ip route add default via $router"),
    (
        "ip route replace default via ${router%.*}.77",
        "a default route in the guest's own network",
        "ip route replace default via $router",
    ),
    (
        "ip route del default; ip route add default via $router metric 7",
        "a default route in the guest's own network",
        "ip route del default; ip route add default via $router",
    ),
    (
        "ip route add default via $router metric 9",
        "a default route in the guest's own network",
        "ip route del default via $router metric 9",
    ),
    (
        "ip addr del $four/$length dev eth0; ip addr add $four/26 dev eth0; ip route add default via $router dev eth0 onlink",
        "an address that was removed (",
        "ip addr del $four/26 dev eth0; ip addr add $four/$length brd + dev eth0; ip route add default via $router",
    ),
    (
        "ip link set eth0 address 02:00:00:00:00:07",
        "a network device with another hardware address than it was given (eth0)",
        "ip link set eth0 address $hardware; ip route replace default via $router",
    ),
    ("ip link set eth0 promisc on", "a network device that takes what is not for it", "ip link set eth0 promisc off"),
    (
        "ip rule del prio 32767",
        "a rule for routes that was removed (with priority 32767)",
        "ip rule add lookup default prio 32767",
    ),
    ("ip route add 10.9.0.0/16 dev eth0 proto kernel", "a route (to 10.9.0.0/16)", "ip route del 10.9.0.0/16 dev eth0"),
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
    for name in in_each_way(sandbox) {
        assert_eq!(inside(sandbox, name, LOOK), was, "{name}");
    }
}

/// Has a frozen guest, `source`, go on in each way that there is: as a clone, as one by another daemon, restored.
fn in_each_way(sandbox: &Sandbox) -> [&'static str; 3] {
    sandbox.pando(["freeze", "source", "warm", "--wait"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    sandbox.end_daemon();
    sandbox.pando(["clone", "warm", "two"]).ok();
    sandbox.pando(["freeze", "source", "ended", "--stop"]).ok();
    sandbox.pando(["restore", "ended"]).ok();
    ["one", "two", "source"]
}

/// Runs a program of the host's in a guest's network.
#[track_caller]
fn in_its_network(sandbox: &Sandbox, name: &str, script: &str) -> String {
    let first = sandbox.first_process(name).to_string();
    let done = Command::new("nsenter").args(["-t", &first, "-n", "sh", "-c", script]).output().expect("nsenter runs");
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Says in a script what a guest's device was given; nothing of a guest without one.
fn given(sandbox: &Sandbox, name: &str) -> String {
    const LOOK: &str = "ip -4 route show default | sed -n 's/.*via \\([^ ]*\\).*/router=\\1/p'
        ip -4 -o addr show dev eth0 2>/dev/null | sed -n 's|.* inet \\([^/]*\\)/\\([0-9]*\\).*|four=\\1 length=\\2|p'
        ip -o link show dev eth0 2>/dev/null | sed -n 's|.* link/ether \\([^ ]*\\).*|hardware=\\1|p'";
    in_its_network(sandbox, name, LOOK)
}

/// What is set of a device that connects a guest is set of that of its clones, and in it when it is restored.
fn settings_of_its_device(sandbox: &Sandbox) {
    const SET: &str = "cd /proc/sys/net/ipv4; echo 0 >conf/eth0/rp_filter; echo 1 >conf/eth0/accept_local
        echo 11 >neigh/eth0/gc_stale_time; echo 1 >conf/default/accept_local; echo 1 >conf/eth0/disable_policy";
    const LOOK: &str = "cd /proc/sys/net; for one in $(find . -type f -path '*/eth0/*'); do
        echo $one $(cat $one 2>/dev/null); done | grep -v -e key -e secret | sort; cat /sys/class/net/eth0/mtu";
    sandbox.guest("source", &["--profile", "system", "--net", "private", "--", "sleep", "100000"]);
    inside(sandbox, "source", SET);
    in_its_network(sandbox, "source", "ip link set eth0 mtu 1300");
    let look = |name: &str| inside(sandbox, name, LOOK);
    let was = look("source");
    assert!(was.contains("neigh/eth0/gc_stale_time 11") && was.ends_with("\n1300"), "{was}");
    for name in in_each_way(sandbox) {
        let now = look(name);
        let other: Vec<_> = was.lines().zip(now.lines()).filter(|(was, now)| was != now).collect();
        assert_eq!((now.lines().count(), other), (was.lines().count(), Vec::new()), "{name}");
    }
}

/// The same of a network of a process's own.
fn settings_inside(sandbox: &Sandbox) {
    const LOOK: &str =
        "cd /proc/sys/net/ipv4; cat ip_default_ttl ip_forward conf/lo/rp_filter tcp_ecn conf/all/forwarding";
    sandbox.guest("source", &["--profile", "system", "--net", "none", "--", "unshare", "-n", "sleep", "100000"]);
    let of = |name: &str, script: &str| {
        let script = format!("nsenter -t $(pidof sleep) -n sh -c '{script}'");
        sandbox.exec_sh(name, &script).ok().trim().to_owned()
    };
    eventually("it is in its own", || {
        let apart = "test $(readlink /proc/$(pidof sleep)/ns/net) != $(readlink /proc/self/ns/net)";
        sandbox.exec_sh("source", apart).run().code() == 0
    });
    let set = "cd /proc/sys/net/ipv4; echo 77 >ip_default_ttl; echo 1 >ip_forward; echo 2 >conf/lo/rp_filter; echo 1 >tcp_ecn";
    of("source", set);
    let was = of("source", LOOK);
    assert_eq!(was.split_whitespace().collect::<Vec<_>>(), ["77", "1", "2", "1", "1"]);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    sandbox.pando(["freeze", "source", "ended", "--stop"]).ok();
    sandbox.end_daemon();
    sandbox.pando(["restore", "ended"]).ok();
    for name in ["one", "source"] {
        assert_eq!(of(name, LOOK), was, "{name}");
    }
}

/// A guest that has changed nothing is frozen; each change is named, and nothing happens; without it the guest is
/// frozen again.
fn named(sandbox: &Sandbox, network: &str, ways: &[Way]) {
    sandbox.guest("source", &["--profile", "system", "--net", network, "--", "sleep", "100000"]);
    let known = given(sandbox, "source");
    let inside = |script: &str| in_its_network(sandbox, "source", &format!("{known}{script}"));
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
        refused.complains_of(&["cannot be frozen: process 2 (sleep): ", says, "in the guest's own network; undo that"]);
        assert_eq!(sandbox.state("source"), "running");
        inside(undoes);
        eventually("without it the guest is frozen", can_be_frozen);
    }
}

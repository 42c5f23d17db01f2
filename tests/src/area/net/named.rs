//! Networks that are known by their names: who finds whom, what leads out, and what is left.

use super::addresses::{answers, server, wire};
use super::private::NEEDS;
use super::private::traces;
use super::wire::OUTSIDE;
use crate::case::Case;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("networks::guests_of_one_find_each_other_and_no_others", finding).needs(NEEDS),
    Case::new("networks::out_of_an_internal_one_nothing_leads", internal).needs(NEEDS),
    Case::new("networks::one_that_is_used_stays", removal).needs(NEEDS),
    Case::new("networks::are_listed_and_inspected_as_elsewhere", listing).needs(NEEDS),
    Case::new("networks::the_host_forwards_until_the_last_goes", forwarding).needs(NEEDS),
    Case::new("networks::the_next_daemon_knows_them", the_daemon_dies).needs(NEEDS),
    Case::new("networks::many_are_made_at_once", many_at_once).needs(NEEDS),
    Case::new("networks::one_that_could_not_be_removed_is_not_forgotten", not_forgotten).needs(NEEDS),
    Case::new("networks::what_cannot_be_is_refused_by_name", refusals).needs(NEEDS),
    Case::new("networks::a_guest_frozen_on_one_comes_back_to_it", frozen).needs(NEEDS),
];

/// Asks a server, and prints what it says or why it says nothing.
const GREET: &str = r#"
import socket, sys
try: print(socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).recv(9).decode())
except OSError as error: print(error)
"#;

/// What a guest is told by a name and port.
fn greet(sandbox: &Sandbox, from: &str, name: &str, port: &str) -> String {
    let line = sandbox.pando(["exec", from, "--", "/usr/bin/python3", "-c", GREET, name, port]);
    line.ok().trim().to_owned()
}

fn address(sandbox: &Sandbox, name: &str) -> String {
    sandbox.inspect(name)["addresses"][0].as_str().expect("it has an address").to_owned()
}

fn finding(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    sandbox.pando(["network", "create", "front"]).run().succeeded().says("front\n");
    sandbox.pando(["network", "create", "back", "--subnet", "10.50.0.0/24"]).ok();
    let _a = server(sandbox, "a", &["--network", "front", "--hostname", "alpha"], "80");
    let _b = server(sandbox, "b", &["--net", "front"], "80");
    let _c = server(sandbox, "c", &["--net=back", "--address", "10.50.0.9"], "80");
    let _d = server(sandbox, "d", &["--net", "private"], "80");
    for (from, to) in [("a", "b"), ("b", "a"), ("b", "alpha"), ("c", "c"), ("d", "d")] {
        let who = to.replace("alpha", "a");
        eventually("the server listens", || greet(sandbox, from, to, "80") == who);
    }
    assert_eq!(address(sandbox, "c"), "10.50.0.9");
    let stranger = address(sandbox, "a");
    for from in ["c", "d"] {
        assert_ne!(greet(sandbox, from, "a", "80"), "a", "{from} knows a guest of another network");
        let told = greet(sandbox, from, &stranger, "80");
        assert_eq!(told, "timed out", "{from} reaches a guest of another network");
    }
    assert_eq!(greet(sandbox, "a", "10.50.0.9", "80"), "timed out");
    let hosts = |of: &str| sandbox.pando(["exec", of, "--", "cat", "/etc/hosts"]).ok();
    assert!(hosts("b").contains(" a alpha\n") && !hosts("c").contains("alpha") && !hosts("d").contains("alpha"));
}

fn internal(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    sandbox.pando(["network", "create", "--internal", "quiet"]).ok();
    sandbox.pando(["network", "create", "loud"]).ok();
    let outside = |from: &str| {
        let ask = "import socket, sys\ntry: socket.create_connection((sys.argv[1], 7), timeout=2); print('reached')\n\
                   except OSError as error: print(error)";
        sandbox.pando(["exec", from, "--", "/usr/bin/python3", "-c", ask, OUTSIDE[0]]).ok().trim().to_owned()
    };
    let _a = server(sandbox, "a", &["--net", "quiet"], "80");
    let _b = server(sandbox, "b", &["--net", "quiet"], "80");
    assert_ne!(outside("a"), "reached");
    // Another network has the host pass packets on: that changes nothing here.
    let _c = server(sandbox, "c", &["--net", "loud", "--publish", "8080:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "c");
    assert_eq!(outside("c"), "reached");
    assert_ne!(outside("a"), "reached", "out of an internal network something leads");
    eventually("the server listens", || greet(sandbox, "a", "b", "80") == "b");
    let stranger = address(sandbox, "c");
    assert_ne!(greet(sandbox, "a", &stranger, "80"), "c");
    let resolver = sandbox.pando(["exec", "a", "--", "cat", "/etc/resolv.conf"]).ok();
    assert!(!resolver.contains("\nnameserver") && !resolver.starts_with("nameserver"), "{resolver}");
    let published = ["run", "--from", sandbox.busybox(), "--net", "quiet", "-p", "8081:80", "--", "true"];
    sandbox.pando(published).run().ended_with(125).complains_of(&["network 'quiet' is internal"]);
}

fn removal(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let before = traces(&wire);
    sandbox.pando(["network", "create", "front"]).ok();
    sandbox.pando(["network", "create", "spare"]).ok();
    assert_eq!(traces(&wire), before, "a network without guests is nothing of the host's");
    sandbox.create("web", &["--net", "front"]);
    let refused = || sandbox.pando(["network", "rm", "front"]).run();
    refused().ended_with(125).complains_of(&["network 'front' is used by web"]);
    sandbox.pando(["start", "web"]).ok();
    refused().ended_with(125).complains_of(&["network 'front' is used by web"]);
    // Pruning leaves what is used.
    sandbox.pando(["network", "prune", "--force"]).ok();
    assert_eq!(sandbox.pando(["network", "ls", "-q"]).ok(), "front\n");
    sandbox.pando(["rm", "--force", "web"]).ok();
    // Its devices go at once with it, and not two seconds after the guest.
    eventually("the guest has left", || sandbox.pando(["network", "rm", "front"]).run().code() == 0);
    assert_eq!(traces(&wire), before);
    assert_eq!(sandbox.pando(["network", "ls", "-q"]).ok(), "");
    let unknown = ["run", "--from", sandbox.busybox(), "--net", "front", "--", "true"];
    sandbox.pando(unknown).run().ended_with(125).complains_of(&["there is no network 'front'", "pando network create"]);
}

fn listing(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    sandbox.pando(["network", "create", "front", "--subnet", "10.51.0.0/24", "--internal"]).ok();
    let _a = server(sandbox, "a", &["--net", "front"], "80");
    let table = sandbox.pando(["network", "ls"]).ok();
    let mut lines = table.lines();
    assert!(lines.next().is_some_and(|head| head.starts_with("NAME") && head.contains("SUBNET")), "{table}");
    let line: Vec<&str> = lines.next().expect("a line").split_whitespace().collect();
    assert_eq!((line[0], line[1], line[2], line.last()), ("front", "10.51.0.0/24", "yes", Some(&"a")), "{table}");
    let told: serde_json::Value = serde_json::from_str(&sandbox.pando(["network", "inspect", "front"]).ok()).unwrap();
    assert_eq!(told[0]["gateway"], "10.51.0.1");
    assert_eq!(told[0]["addresses"]["a"][0], address(sandbox, "a").as_str());
    let format = ["network", "inspect", "-f", "{{.subnet}} {{.internal}}", "front"];
    sandbox.pando(format).run().succeeded().says("10.51.0.0/24 true\n");
    sandbox.pando(["network", "inspect", "back"]).run().ended_with(125).complains_of(&["there is no network 'back'"]);
}

fn forwarding(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    wire.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]).ok();
    let before = traces(&wire);
    let forwards = || wire.host(["cat", "/proc/sys/net/ipv4/ip_forward"]).ok();
    for name in ["one", "two"] {
        sandbox.pando(["network", "create", name]).ok();
    }
    let _a = server(sandbox, "a", &["--net", "one", "--publish", "8080:80"], "80");
    let _b = server(sandbox, "b", &["--net", "two", "--publish", "8081:80"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    answers(&wire, "10.9.0.1", 8081, "b");
    // A port leads to one guest, whatever network it is on.
    let taken = ["run", "--from", sandbox.busybox(), "--net", "two", "-p", "8080:80", "--", "true"];
    sandbox.pando(taken).run().ended_with(125).complains_of(&["port 8080 leads to guest 'a' already"]);
    sandbox.pando(["rm", "--force", "a"]).ok();
    eventually("the first network goes", || sandbox.pando(["network", "rm", "one"]).run().code() == 0);
    assert_eq!(forwards(), "1\n", "the second needs it still");
    answers(&wire, "10.9.0.1", 8081, "b");
    sandbox.pando(["rm", "--force", "b"]).ok();
    eventually("nothing is left", || traces(&wire) == before);
    assert_eq!(forwards(), "0\n");
}

fn the_daemon_dies(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let before = traces(&wire);
    sandbox.pando(["network", "create", "front"]).ok();
    let _a = server(sandbox, "a", &["--net", "front", "--publish", "8080:80"], "80");
    let _b = server(sandbox, "b", &["--net", "front"], "80");
    answers(&wire, "10.9.0.1", 8080, "a");
    let known = address(sandbox, "b");
    process::kill(sandbox.daemon().expect("it runs"));
    answers(&wire, "10.9.0.1", 8080, "a");
    wire.pando(sandbox, ["ls"]).ok();
    assert_eq!(address(sandbox, "b"), known);
    let _c = server(sandbox, "c", &["--net", "front"], "80");
    eventually("the newcomer is found, and finds", || {
        greet(sandbox, "c", "a", "80") == "a" && greet(sandbox, "a", "c", "80") == "c"
    });
    let subnet = || sandbox.pando(["network", "inspect", "-f", "{{.subnet}}", "front"]).ok();
    let its = subnet();
    sandbox.pando(["rm", "--force", "a", "b", "c"]).ok();
    sandbox.end_daemon();
    assert_eq!(traces(&wire), before, "a daemon that ends leaves nothing of a network without guests");
    wire.pando(sandbox, ["ls"]).ok();
    assert_eq!(subnet(), its, "the network itself stays");
}

/// As long as nft(8) does not work, which only the daemon sees.
fn not_forgotten(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let before = traces(&wire);
    sandbox.end_daemon();
    let words = ["unshare", "--mount"].map(std::ffi::OsStr::new).into_iter();
    let words = words.chain([sandbox.program().as_os_str(), "--root".as_ref(), sandbox.root().as_os_str()]);
    let daemon = wire.host(words.chain(["daemon".as_ref()])).limit(300).start();
    eventually("the daemon listens", || std::os::unix::net::UnixStream::connect(sandbox.places().socket()).is_ok());
    sandbox.pando(["network", "create", "front"]).ok();
    let a = server(sandbox, "a", &["--net", "front"], "80");
    let nft = |what: &str| {
        let script = format!("nft=$(PATH=/usr/sbin:/sbin:/usr/bin:/bin command -v nft); {what} $nft");
        crate::line::Line::new("nsenter")
            .args(["--mount", "--target", &daemon.pid().to_string(), "sh", "-c", &script])
            .ok();
    };
    nft("mount --bind /bin/false");
    sandbox.pando(["rm", "--force", "a"]).ok();
    drop(a);
    eventually("the guest has gone", || {
        sandbox.pando(["network", "inspect", "-f", "{{.guests}}", "front"]).ok() == "[]\n"
    });
    let refused = sandbox.pando(["network", "rm", "front"]).run();
    refused.ended_with(125).complains_of(&["removing the devices of network 'front' failed", "firewall"]);
    nft("umount");
    sandbox.pando(["network", "rm", "front"]).ok();
    assert_eq!(traces(&wire), before);
    sandbox.end_daemon();
    drop(daemon);
}

/// Each gets addresses of its own, and a name is one network's.
fn many_at_once(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    let make = |name: String| sandbox.pando(["network", "create", &name]).start();
    let names = (0..12).map(|number| format!("n{number}"));
    let started: Vec<_> = names.chain((0..12).map(|_| "same".to_owned())).map(make).collect();
    let codes: Vec<i32> = started.into_iter().map(|one| one.wait().code()).collect();
    assert!(codes[..12].iter().all(|code| *code == 0), "{codes:?}");
    assert_eq!(codes[12..].iter().filter(|code| **code == 0).count(), 1, "of one name: {codes:?}");
    let told: serde_json::Value = serde_json::from_str(&sandbox.pando(["network", "ls", "--json"]).ok()).unwrap();
    let all = told.as_array().expect("a list");
    let subnets: std::collections::BTreeSet<&str> = all.iter().filter_map(|one| one["subnet"].as_str()).collect();
    assert_eq!((all.len(), subnets.len()), (13, 13), "{told}");
}

fn frozen(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    sandbox.pando(["network", "create", "front"]).ok();
    let _b = server(sandbox, "b", &["--net", "front"], "80");
    sandbox.guest("web", &["--net", "front", "--", "sleep", "100000"]);
    let known = address(sandbox, "web");
    sandbox.pando(["freeze", "web", "--stop"]).ok();
    sandbox.pando(["network", "rm", "front"]).run().ended_with(125).complains_of(&["image web"]);
    sandbox.pando(["restore", "web"]).ok();
    sandbox.pando(["clone", "web", "copy"]).ok();
    assert_eq!(address(sandbox, "web"), known);
    assert_ne!(address(sandbox, "copy"), known);
    let hosts = sandbox.pando(["exec", "b", "--", "cat", "/etc/hosts"]).ok();
    assert!(hosts.contains(&format!("{known} web\n")) && hosts.contains(" copy\n"), "{hosts}");
}

fn refusals(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    let refused = |words: &[&str], complaint: &[&str]| {
        sandbox.pando(["network", "create"]).args(words).run().ended_with(125).complains_of(complaint);
    };
    refused(&["host"], &["no word for a kind of network"]);
    refused(&["../x"], &["cannot be the name of a network"]);
    refused(&["x", "--subnet", "10.9.0.0/16"], &["10.9.0.0/16 overlaps", "h0"]);
    refused(&["x", "--subnet", "10.50.0.1/24"], &["ADDRESS/LENGTH"]);
    sandbox.pando(["network", "create", "x", "--subnet", "10.50.0.0/24"]).ok();
    refused(&["x"], &["there is a network 'x' already"]);
    refused(&["y", "--subnet", "10.50.0.128/25"], &["overlaps network 'x'"]);
    let run = |options: &[&str], complaint: &[&str]| {
        let line = sandbox.pando(["run", "--from", sandbox.busybox()]).args(options).args(["--", "true"]);
        line.run().ended_with(125).complains_of(complaint);
    };
    run(
        &["--net", "x", "--address", "10.51.0.9"],
        &["10.51.0.9 is not an address of the private network 10.50.0.0/24"],
    );
    run(&["--net", "x", "--link", "macvlan", "--address", "10.9.0.7"], &["no link=macvlan"]);
    sandbox
        .pando(["run", "--net", "container:web", "--", "true"])
        .run()
        .ended_with(125)
        .complains_of(&["--net private"]);
    sandbox.create("web", &[]);
    sandbox.pando(["set", "web", "network_name=x"]).run().ended_with(125).complains_of(&["network=private"]);
    sandbox.pando(["set", "web", "network=private", "network_name=x"]).ok();
    sandbox.pando(["network", "rm", "x"]).run().ended_with(125).complains_of(&["used by web"]);
}

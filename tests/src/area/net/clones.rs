//! Clones and the host's network.

use super::NEEDS;
use super::addresses::wire;
use super::connections::NEEDS_PRIVATE;
use crate::area::inner_connections::{all_are_right, guest, is_lost};
use crate::case::Case;
use crate::patience::comes_true;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("network::a_clone_has_addresses_of_its_own", a_clone_has_addresses_of_its_own).needs(NEEDS),
    Case::new("network::a_clone_has_connections_with_itself", shared).needs(NEEDS),
    Case::new("private::a_clone_has_connections_with_itself", private).needs(NEEDS_PRIVATE),
];

/// Each has a part of the host's loopback addresses for its own.
fn shared(sandbox: &Sandbox) {
    let _wire = wire(sandbox);
    for (address, server) in [("127.0.0.1", "0.0.0.0"), ("::1", "::1")] {
        guest(sandbox, &["--address", "10.9.0.5"], &[address, server]);
        sandbox.pando(["freeze", "source", "warm"]).ok();
        sandbox.pando(["clone", "warm", "one", "--address", "10.9.0.6"]).ok();
        sandbox.pando(["clone", "warm", "two"]).ok();
        sandbox.pando(["freeze", "source", "last", "--stop"]).ok();
        sandbox.pando(["restore", "last"]).ok();
        ["one", "two", "source"].iter().for_each(|name| all_are_right(sandbox, name, true));
        sandbox.pando(["rm", "--force", "one", "two", "source"]).ok();
        sandbox.pando(["image", "rm", "warm", "last"]).ok();
    }
}

fn private(sandbox: &Sandbox) {
    guest(sandbox, &["--net", "private"], &["127.0.0.1", "0.0.0.0"]);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    all_are_right(sandbox, "one", is_lost());
    all_are_right(sandbox, "source", false);
}

fn a_clone_has_addresses_of_its_own(sandbox: &Sandbox) {
    let wire = wire(sandbox);
    let server = ["--address", "10.9.0.5", "--", "nc", "-ll", "-p", "80", "-e", "hostname"];
    sandbox.guest("web", &server);
    let says = |ip: &str, name: &str| {
        let mut said = String::new();
        let right = comes_true(|| {
            said = wire.knock(ip, 80);
            said.trim() == name
        });
        assert!(right, "{ip} answered '{said}' instead of '{name}'");
    };
    says("10.9.0.5", "web");
    sandbox.pando(["freeze", "web", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one", "--address", "10.9.0.6", "--address", "fd00:9::6"]).ok();
    says("10.9.0.6", "one");
    says("10.9.0.5", "web");
    assert_eq!(sandbox.inspect("one")["spec"]["addresses"], serde_json::json!(["10.9.0.6", "fd00:9::6"]));
    // One that nobody gave an address has none of the frozen guest's.
    sandbox.pando(["clone", "warm", "two"]).ok();
    assert!(sandbox.inspect("two")["spec"]["addresses"].as_array().is_none_or(Vec::is_empty));
    says("10.9.0.5", "web");
    sandbox.guest("alone", &["--", "sleep", "100000"]);
    sandbox.pando(["freeze", "alone"]).ok();
    let refused = sandbox.pando(["clone", "alone", "three", "--address", "10.9.0.7"]).run().ended_with(125);
    refused.complains_of(&["10.9.0.7", "--net shared"]);
    assert_eq!(sandbox.state("three"), "absent");
}

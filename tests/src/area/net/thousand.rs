//! A thousand guests, of every kind of network in turn, leave nothing.

use super::bandwidth::shaped_wire;
use super::private::traces;
use crate::case::{Case, Tag};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] =
    &[Case::new("network::a_thousand_guests_leave_nothing", a_thousand).needs(NEEDS).tags(&[Tag::Slow])];

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("nft", "nftables"),
    Need::Program("tc", "iproute2"),
    Need::Program("nsenter", "util-linux"),
    Need::Linux(6, 6),
];

const GUESTS: usize = 1000;

fn a_thousand(sandbox: &Sandbox) {
    let wire = shaped_wire(sandbox);
    let before = traces(&wire);
    let kinds: [&[&str]; 4] = [
        &["--address", "10.9.0.5", "--address", "fd00:9::5"],
        &["--publish", "8080:80"],
        &["--address", "10.9.0.6", "--net-limit", "10mbit"],
        &["--net", "none"],
    ];
    for number in 0..GUESTS {
        sandbox.run_sh(kinds[number % kinds.len()], "true").ok();
    }
    let run = sandbox.places().run();
    eventually("nothing is left in the kernel", || traces(&wire) == before && !run.join("bpf").exists());
    assert!(!run.join("net").exists());
    sandbox.end_daemon();
    assert!(!run.join("bpf-bandwidth").exists());
    assert_eq!(traces(&wire), before);
}

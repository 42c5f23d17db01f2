//! What a program sees of the network in a guest, held against what it sees on a machine with just these addresses.

use super::wire::{HOST, OUTSIDE, Wire};
use crate::case::Case;
use crate::sandbox::Sandbox;
use std::collections::BTreeMap;

pub(crate) const CASES: &[Case] = &[
    Case::new("network::two_guests_see_what_machines_of_their_own_would", two_guests).needs(super::NEEDS),
    Case::new("network::fifty_guests_see_what_machines_of_their_own_would", fifty_guests)
        .needs(super::NEEDS)
        .tags(&[crate::case::Tag::Slow]),
];

/// The checks.
const SCRIPT: &str = include_str!("conformance.py");

/// The page that lists every difference.
const PAGE: &str = include_str!("../../../../docs/network.md");

/// Where a guest differs from a machine: the name of the check, with `*` for anything; what the guest gets; the words
/// that the page has for it.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    ("* and then *", "None", "ANY and one address do not conflict"),
    (
        "udp4 to outside by packet information of another machine",
        "EADDRNOTAVAIL",
        "EADDRNOTAVAIL instead of ENETUNREACH",
    ),
    (
        "udp6 to outside by packet information of another machine",
        "EADDRNOTAVAIL",
        "EADDRNOTAVAIL instead of ENETUNREACH",
    ),
    ("tcp6 to outside from ANY", "EAFNOSUPPORT", "bound to the ANY of both families cannot connect to an IPv6 address"),
    ("udp6 to outside from ANY", "EAFNOSUPPORT", "bound to the ANY of both families cannot connect to an IPv6 address"),
    ("udp that sent and then connects", "EINVAL", "has sent without a peer cannot connect"),
    ("udp that let its peer go calls itself", "A1", "keeps its address when it lets its peer go"),
    ("udp without a peer is told that nobody is there", "timed out", "without a peer is not told"),
    ("packet information of a datagram to 127.0.0.1", "*", "by packet information"),
];

/// The addresses of guest `number`: two of each family.
fn addresses(number: usize) -> [String; 4] {
    // Beyond the machine outside, however many there are.
    let (one, two) = (110 + 2 * number, 111 + 2 * number);
    [format!("10.9.0.{one}"), format!("10.9.0.{two}"), format!("fd00:9::{one}"), format!("fd00:9::{two}")]
}

type Results = BTreeMap<String, String>;

fn results(text: &str) -> Results {
    text.lines().filter_map(|line| line.split_once(": ")).map(|(name, it)| (name.to_owned(), it.to_owned())).collect()
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            rest.is_empty() || (0..=text.len()).any(|at| text.is_char_boundary(at) && matches(rest, &text[at..]))
        }),
    }
}

/// Differences that no line above explains.
fn unlisted(native: &Results, guest: &Results) -> Vec<String> {
    let mut found = Vec::new();
    for name in native.keys().chain(guest.keys()) {
        let (expected, got) = (native.get(name), guest.get(name));
        let listed = |got: &String| {
            DIFFERENCES.iter().any(|(pattern, result, _)| matches(pattern, name) && matches(result, got))
        };
        if expected != got && !got.is_some_and(listed) {
            found.push(format!("{name}: {got:?} instead of {expected:?}"));
        }
    }
    found.dedup();
    found
}

fn natively(parts: &[&str]) -> Results {
    let own = addresses(0);
    // As Pando places them: the first brings the network, the others stand alone. Of IPv6 addresses that fit equally a
    // machine takes the one that it got last, and a guest its first.
    let [a1, a2, b1, b2] = &own;
    let placed = [format!("{a1}/24"), format!("{a2}/32"), format!("{b2}/64"), format!("{b1}/64")];
    let wire = Wire::new(&placed.each_ref().map(String::as_str));
    let arguments = own.iter().map(String::as_str).chain(OUTSIDE).chain(parts.iter().copied());
    results(&wire.host(["python3", "-c", SCRIPT]).args(arguments).limit(300).ok())
}

/// Runs the checks in many guests at once, on the same ports.
fn conform(sandbox: &Sandbox, guests: usize, parts: &[&str]) {
    let native = natively(parts);
    assert!(native.len() > 80, "the checks ran: {native:?}");
    let wire = Wire::new(&HOST);
    let before = wire.links();
    wire.pando(sandbox, ["ls"]).ok();
    let runs: Vec<_> = (0..guests)
        .map(|number| {
            let own = addresses(number);
            let options = own.iter().flat_map(|address| ["--address", address.as_str()]);
            let arguments = own.iter().map(String::as_str).chain(OUTSIDE).chain(parts.iter().copied());
            let line =
                sandbox.pando(["run"]).args(options).args(["--", "/usr/bin/python3", "-c", SCRIPT]).args(arguments);
            line.limit(600).start()
        })
        .collect();
    for run in runs {
        let guest = results(&run.wait().succeeded().out());
        let found = unlisted(&native, &guest);
        assert!(found.is_empty(), "{found:#?}");
    }
    sandbox.end_daemon();
    assert_eq!(wire.links(), before, "every address is gone again");
}

fn two_guests(sandbox: &Sandbox) {
    for (pattern, _, words) in DIFFERENCES {
        assert!(PAGE.contains(words), "docs/network.md says nothing of '{words}' ({pattern})");
    }
    conform(sandbox, 2, &[]);
}

fn fifty_guests(sandbox: &Sandbox) {
    conform(sandbox, 50, &["reaching", "from_outside", "to_outside"]);
}

//! What this kernel and this machine offer for networks, found out in a network namespace that goes at once.

use crate::private;
use crate::{bandwidth, netlink::Netlink};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use pando_kernel::probe::{self, Finding, Verdict};
use std::io;
use std::os::fd::AsFd;

const AREA: &str = "network";

/// Tries each feature of the kernel that networks need.
pub fn find() -> Vec<Finding> {
    let all: [(&str, Attempt, &str, &str); 6] = [
        ("veth", || make("probe0", InfoKind::Veth, None), "2.6.24", "no private networks but by macvlan"),
        ("bridge", || make("probe1", InfoKind::Bridge, None), "2.6", "no private networks but by macvlan"),
        ("nftables", private::try_firewall, "5.2", "no private networks but by macvlan, and no published ports"),
        ("macvlan", macvlan, "2.6.23", "no --link macvlan"),
        ("netkit", || make("probe3", InfoKind::Netkit, None), "6.7", "no --link netkit"),
        ("htb", bandwidth::try_classes, "2.6", "no --net-reserve, --net-share and --net-limit"),
    ];
    let tried = probe::network_namespace().and_then(|namespace| {
        let attempt = || all.map(|(_, attempt, ..)| Verdict::from(attempt()));
        private::within(namespace.as_fd(), attempt).map_err(|error| error.source)
    });
    let verdicts = tried.unwrap_or_else(|error| {
        let refused = Verdict::from(Err::<(), _>(error));
        std::array::from_fn(|_| refused.clone())
    });
    all.into_iter()
        .zip(verdicts)
        .map(|((name, _, since, without), verdict)| Finding {
            area: AREA,
            name,
            verdict,
            without,
            since,
            needed: false,
        })
        .collect()
}

type Attempt = fn() -> io::Result<()>;

fn make(name: &str, kind: InfoKind, parent: Option<u32>) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.attributes =
        vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])];
    message.attributes.extend(parent.map(LinkAttribute::Link));
    Netlink::open()?.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
}

fn macvlan() -> io::Result<()> {
    // On one of the pair that was made before.
    let parent = crate::device::named("probe0").map_err(|error| error.source)?;
    make("probe2", InfoKind::MacVlan, Some(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_can_be_tried() {
        let findings = find();
        assert_eq!(findings.len(), 6);
        assert!(findings.iter().all(|finding| !finding.without.is_empty()));
    }
}

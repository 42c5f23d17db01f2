//! Networks: what guests see and own of the host's. Everything happens in network namespaces of the tests' own.

pub(crate) mod addresses;
pub(crate) mod bandwidth;
pub(crate) mod clones;
pub(crate) mod conformance;
pub(crate) mod connection_kills;
pub(crate) mod connections;
pub(crate) mod guard;
pub(crate) mod host_mode;
pub(crate) mod named;
pub(crate) mod private;
pub(crate) mod same_ports;
pub(crate) mod thousand;
mod wire;

use crate::need::Need;

/// Packets are steered where devices take programs (tcx, Linux 6.6).
const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("python3", "python3"),
    Need::Program("nsenter", "util-linux"),
    Need::Linux(6, 6),
];

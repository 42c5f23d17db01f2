//! What guests own of networks: addresses, connections, ports, bandwidth.

pub(crate) mod address;
pub(crate) mod bandwidth;
pub(crate) mod claims;
pub(crate) mod connections;
pub(crate) mod free_port;
pub(crate) mod host_ports;
pub(crate) mod macvlan;
pub(crate) mod named_networks;
pub(crate) mod networks;
pub(crate) mod private_network;
pub(crate) mod private_networks;
pub(crate) mod settings;
pub(crate) mod subnets;
mod vigil;

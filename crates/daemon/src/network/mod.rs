//! What guests own of networks: addresses, connections, ports, bandwidth.

pub(crate) mod address;
pub(crate) mod bandwidth;
pub(crate) mod connections;
pub(crate) mod networks;
pub(crate) mod private_network;
pub(crate) mod settings;

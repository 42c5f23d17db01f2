//! Ports of the host's that are to lead to a guest.

use crate::network::networks::NetworkError;
use pando_kernel::Context;
use pando_net::private::Lease;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};

/// A server of the host's that holds a port would lose its clients to the guest.
pub(crate) fn free_on_the_host(lease: &Lease) -> Result<(), NetworkError> {
    for one in &lease.published {
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        for ip in one.ip.map_or(any.to_vec(), |ip| vec![ip]) {
            let bound = if one.udp {
                UdpSocket::bind((ip, one.host)).map(drop)
            } else {
                TcpListener::bind((ip, one.host)).map(drop)
            };
            match bound {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                    return Err(NetworkError::HeldByHost(one.host));
                }
                Err(error) if one.ip.is_some() => {
                    Err(error).context(|| format!("publishing port {} of {ip}", one.host))?
                }
                _ => {}
            }
        }
    }
    Ok(())
}

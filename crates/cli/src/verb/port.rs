//! `pando port`: which ports of the host's lead to a guest.

use super::Verb;
use crate::complaint::Usage;
use crate::replies::Inspected;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::{Method, Protocol, Publication};
use std::net::{IpAddr, Ipv4Addr};

#[derive(Debug, clap::Args)]
pub(crate) struct Port {
    /// The guest
    name: String,
    /// Only where this port of the guest is to be found
    #[arg(value_name = "PORT[/udp]")]
    port: Option<Publication>,
}

impl Verb for Port {
    const NAME: &'static str = "port";
    const ABOUT: &'static str = "Show which ports of the host's lead to a guest";
    const EXAMPLES: &'static str = "\
Examples:
  pando port web           80/tcp -> 0.0.0.0:32768
  pando port web 80        0.0.0.0:32768";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let doing = || format!("cannot show the ports of guest '{}'", self.name);
        let guest = client.call::<Inspected>(Method::Inspect { name: self.name.clone() }).with_context(doing)?.guest;
        let text = match self.port {
            None => guest.spec.publish.iter().map(|port| format!("{} -> {}\n", inside(port), outside(port))).collect(),
            Some(wanted) => {
                let same = |port: &&Publication| (port.guest, port.protocol) == (wanted.guest, wanted.protocol);
                let found: String =
                    guest.spec.publish.iter().filter(same).map(|port| format!("{}\n", outside(port))).collect();
                if found.is_empty() {
                    let message = format!("port {} of guest '{}' is not published", inside(&wanted), self.name);
                    return Err(Usage::sentence(message).into());
                }
                found
            }
        };
        crate::table::print(&text)?;
        Ok(0)
    }
}

fn inside(port: &Publication) -> String {
    format!("{}/{}", port.guest, if port.protocol == Protocol::Udp { "udp" } else { "tcp" })
}

fn outside(port: &Publication) -> String {
    std::net::SocketAddr::new(port.ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port.host).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_reads_as_elsewhere() {
        let port = |text: &str| text.parse::<Publication>().unwrap();
        assert_eq!((inside(&port("8080:80")), outside(&port("8080:80"))), ("80/tcp".into(), "0.0.0.0:8080".into()));
        assert_eq!(outside(&port("[fd00::1]:53:53/udp")), "[fd00::1]:53");
    }
}

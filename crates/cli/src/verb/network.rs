//! `pando network`: private networks that are known by their names. Guests on one find each other, and none on another.

use super::Verb;
use super::each::each;
use super::named::{Named, guests_shown, inspect, list, to_prune};
use crate::client::Client;
use crate::replies::{Done, Networks};
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print};
use crate::template::Template;
use crate::time_span::span;
use anyhow::Context;
use pando_api::{Method, NamedNetwork};

#[derive(Debug, clap::Args)]
pub(crate) struct Network {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make one; the host has devices for it only while a guest is on it
    Create {
        /// Its addresses, such as 10.50.0.0/24 [default: some that no network of this host or of Pando's has]
        #[arg(long, value_name = "ADDRESS/LENGTH")]
        subnet: Option<String>,
        /// Have nothing lead out of it: its guests reach each other and this host, and no other machine
        #[arg(long)]
        internal: bool,
        /// The network
        name: String,
    },
    /// List them
    #[command(visible_alias = "list")]
    Ls {
        /// Names only
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show all that is known of some, as JSON
    Inspect {
        /// A line each in these words, such as '{{.subnet}}'
        #[arg(short, long, value_name = "TEMPLATE")]
        format: Option<Template>,
        /// The networks
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove some; one that a guest or an image names is refused
    Rm {
        /// The networks
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove all that no guest and no image names
    Prune {
        /// Ask nothing
        #[arg(short, long)]
        force: bool,
    },
}

impl Verb for Network {
    const NAME: &'static str = "network";
    const ABOUT: &'static str = "Make, list and remove private networks, on which guests find each other by name";
    const EXAMPLES: &'static str = "\
Examples:
  pando network create front
  pando run -d --name db --net front -- redis-server --protected-mode no
  pando run --net front -- getent hosts db                     guests on one network know each other
  pando network create back --subnet 10.50.0.0/24 --internal   nothing leads out of it
  pando network ls
  pando network inspect -f '{{json .addresses}}' front         who is on it, with which addresses
  pando network rm front

Guests on one network do not reach those on another. `--net private` is the one that is always there.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        match self.what {
            What::Create { subnet, internal, name } => {
                let method = Method::CreateNetwork { name: name.clone(), subnet, internal };
                client.call::<Done>(method).with_context(|| format!("cannot make the network '{name}'"))?;
                print(&format!("{name}\n"))?;
                Ok(0)
            }
            What::Ls { quiet, json } => list(&all(&mut client)?, quiet, json),
            What::Inspect { format, names } => inspect(&all(&mut client)?, &names, format.as_ref()),
            What::Rm { names } => remove(&mut client, &names),
            What::Prune { force } => {
                let names = to_prune(&all(&mut client)?, force, "")?;
                remove(&mut client, &names)
            }
        }
    }
}

fn all(client: &mut Client) -> anyhow::Result<Vec<NamedNetwork>> {
    Ok(client.call::<Networks>(Method::Networks {}).context("cannot list the networks")?.networks)
}

impl Named for NamedNetwork {
    const WORDS: [&'static str; 2] = ["network", "networks"];

    fn name(&self) -> &str {
        &self.name
    }

    fn guests(&self) -> &[String] {
        &self.guests
    }

    fn table(all: &[Self], now: i64) -> Table {
        let mut table = Table::new(&[
            ("NAME", Lean::Left),
            ("SUBNET", Lean::Left),
            ("INTERNAL", Lean::Left),
            ("AGE", Lean::Right),
            ("GUESTS", Lean::Left),
        ]);
        for network in all {
            let guests = guests_shown(network);
            let internal = if network.internal { "yes" } else { "no" }.to_owned();
            table.row([network.name.clone(), network.subnet.clone(), internal, span(now - network.created), guests]);
        }
        table
    }
}

fn remove(client: &mut Client, names: &[String]) -> anyhow::Result<u8> {
    each(client, "remove the network", names, |name| Method::RemoveNetwork { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_a_line() {
        let network = NamedNetwork {
            name: "front".into(),
            subnet: "10.216.0.0/16".into(),
            gateway: "10.216.0.1".parse().unwrap(),
            internal: true,
            created: 1000,
            bridge: String::new(),
            guests: vec!["db".into(), "web".into()],
            addresses: std::collections::BTreeMap::new(),
        };
        let expected =
            "NAME   SUBNET         INTERNAL    AGE  GUESTS\nfront  10.216.0.0/16  yes       1m 1s  db, web\n";
        assert_eq!(NamedNetwork::table(&[network], 1061).text(None), expected);
    }
}

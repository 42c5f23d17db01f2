//! `pando volume`: directories that are known by their names, and outlive the guests that show them.

use super::Verb;
use super::each::each;
use super::named::{Named, guests_shown, inspect, list, to_prune};
use crate::client::Client;
use crate::replies::{Done, Volumes};
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print};
use crate::template::Template;
use crate::time_span::span;
use anyhow::Context;
use pando_api::{Method, NamedVolume};

#[derive(Debug, clap::Args)]
pub(crate) struct Volume {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make one; one that is there already stays as it is
    Create {
        /// The volume
        name: String,
    },
    /// List them
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
        /// A line each in these words, such as '{{.directory}}'
        #[arg(short, long, value_name = "TEMPLATE")]
        format: Option<Template>,
        /// The volumes
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove some with all that is in them; one that a guest shows is refused
    Rm {
        /// The volumes
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove all that no guest and no image shows
    Prune {
        /// Ask nothing
        #[arg(short, long)]
        force: bool,
    },
}

impl Verb for Volume {
    const NAME: &'static str = "volume";
    const ABOUT: &'static str = "Make, list and remove volumes, which outlive guests";
    const EXAMPLES: &'static str = "\
Examples:
  pando volume create data
  pando create db --from oci:./db -v data:/var/lib/db --start      makes it too, if it is missing
  pando volume ls
  pando volume inspect -f '{{.directory}}' data                    where it lies on this machine
  pando volume rm data
  pando volume prune

A new one is empty and belongs to root: what an image has at that place is not copied into it.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        match self.what {
            What::Create { name } => {
                let method = Method::CreateVolume { name: name.clone() };
                client.call::<Done>(method).with_context(|| format!("cannot make the volume '{name}'"))?;
                print(&format!("{name}\n"))?;
                Ok(0)
            }
            What::Ls { quiet, json } => list(&all(&mut client)?, quiet, json),
            What::Inspect { format, names } => inspect(&all(&mut client)?, &names, format.as_ref()),
            What::Rm { names } => remove(&mut client, &names),
            What::Prune { force } => {
                let names = to_prune(&all(&mut client)?, force, " with all that is in them")?;
                remove(&mut client, &names)
            }
        }
    }
}

fn all(client: &mut Client) -> anyhow::Result<Vec<NamedVolume>> {
    Ok(client.call::<Volumes>(Method::Volumes {}).context("cannot list the volumes")?.volumes)
}

impl Named for NamedVolume {
    const WORDS: [&'static str; 2] = ["volume", "volumes"];

    fn name(&self) -> &str {
        &self.name
    }

    fn guests(&self) -> &[String] {
        &self.guests
    }

    fn table(all: &[Self], now: i64) -> Table {
        let mut table = Table::new(&[("NAME", Lean::Left), ("AGE", Lean::Right), ("GUESTS", Lean::Left)]);
        for volume in all {
            let guests = guests_shown(volume);
            table.row([volume.name.clone(), span(now - volume.created), guests]);
        }
        table
    }
}

fn remove(client: &mut Client, names: &[String]) -> anyhow::Result<u8> {
    each(client, "remove the volume", names, |name| Method::RemoveVolume { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_a_line() {
        let volume = |name: &str, guests: &[&str]| NamedVolume {
            name: name.into(),
            directory: String::new(),
            created: 1000,
            guests: guests.iter().map(|guest| (*guest).to_owned()).collect(),
        };
        let expected = "NAME     AGE  GUESTS\ndata   1m 1s  db, image db\ncache  1m 1s  -\n";
        assert_eq!(
            NamedVolume::table(&[volume("data", &["db", "image db"]), volume("cache", &[])], 1061).text(None),
            expected
        );
    }
}

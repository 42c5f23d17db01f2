//! `pando reclaim`: memory of guests that others can use meanwhile.

use super::Verb;
use crate::printable::printable;
use crate::replies::Taken;
use crate::state_root::StateRoot;
use crate::table::{print, print_json};
use crate::verb::stats::bytes;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Reclaim {
    /// The guests
    #[arg(value_name = "NAME", required_unless_present = "idle", conflicts_with = "idle")]
    names: Vec<String>,
    /// All that used less than 0.1 % of the machine's processor time in the last five minutes
    #[arg(long)]
    idle: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Verb for Reclaim {
    const NAME: &'static str = "reclaim";
    const ABOUT: &'static str =
        "Take back memory of running guests that others can use: page cache, and what goes to swap";
    const EXAMPLES: &'static str = "\
Examples:
  pando reclaim web          what it needs again it reads again
  pando reclaim --idle

With reclaim_idle in the table [memory] of pando.toml it is done for guests that are idle for so long.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let names = if self.idle { vec![None] } else { self.names.into_iter().map(Some).collect() };
        let mut taken = Vec::new();
        for name in names {
            let of = name.clone().map_or("idle guests".to_owned(), |name| format!("guest '{name}'"));
            let reply = client.call::<Taken>(Method::Reclaim { name });
            taken.extend(reply.with_context(|| format!("cannot take memory back from {of}"))?.reclaimed);
        }
        if self.json {
            print_json(&taken)?;
        } else {
            let line =
                |one: &pando_api::Reclaimed| format!("{}: {} taken back\n", printable(&one.guest), bytes(one.bytes));
            print(&taken.iter().map(line).collect::<String>())?;
        }
        Ok(0)
    }
}

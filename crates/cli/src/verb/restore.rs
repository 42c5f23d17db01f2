//! `pando restore`: the frozen guest itself, out of its image.

use super::Verb;
use crate::replies;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Restore {
    /// Give up what the guest has done since it was frozen
    #[arg(long)]
    replace: bool,
    /// The image
    image: String,
}

impl Verb for Restore {
    const NAME: &'static str = "restore";
    const ABOUT: &'static str = "Let a frozen guest run on, under its own name and addresses";
    const EXAMPLES: &'static str = "\
Examples:
  pando freeze web --stop && pando restore web
  pando restore web-warm --replace   back to what it was, whatever it has done since

The guest has to be stopped. What 'pando freeze --stop' ended goes on as if nothing had happened: with its name, machine id and addresses.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Restore { image: self.image.clone(), replace: self.replace };
        let restored = client.call::<replies::Restored>(method);
        let name = restored.with_context(|| format!("cannot restore image '{}'", self.image))?.name;
        crate::table::print(&format!("{name}\n"))?;
        Ok(0)
    }
}

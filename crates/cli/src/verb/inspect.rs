//! `pando inspect`: all that is known of a guest.

use super::Verb;
use crate::replies::Inspected;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// The guest
    name: String,
    /// Accepted for uniformity: the answer is always JSON
    #[arg(long, hide = true)]
    json: bool,
}

impl Verb for Inspect {
    const NAME: &'static str = "inspect";
    const ABOUT: &'static str = "Show all that is known of a guest, as JSON";
    const EXAMPLES: &'static str = "\
Examples:
  pando inspect web
  pando inspect web | jq -r .status.pid";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Inspect { name: self.name.clone() };
        let guest =
            client.call::<Inspected>(method).with_context(|| format!("cannot inspect guest '{}'", self.name))?;
        crate::table::print_json(&guest.guest)?;
        Ok(0)
    }
}

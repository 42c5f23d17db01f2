//! `pando prune`: removes all guests that do not run.

use super::Verb;
use super::each::each;
use crate::confirmation::is_confirmed;
use crate::guest_filter::{Filter, fits};
use crate::replies::Guests;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::{GuestState, Method};

#[derive(Debug, clap::Args)]
pub(crate) struct Prune {
    /// Ask nothing
    #[arg(short, long)]
    force: bool,
    /// Only those that are so: name=PART, source=SOURCE, exited=CODE, label=NAME[=VALUE]
    #[arg(long, value_name = "KEY=VALUE")]
    filter: Vec<Filter>,
}

impl Verb for Prune {
    const NAME: &'static str = "prune";
    const ABOUT: &'static str = "Remove all guests that are stopped";
    const EXAMPLES: &'static str = "\
Examples:
  pando prune                              names them, and asks
  pando prune --force --filter label=ci    without asking

Guests that their restart policy is about to start again stay, and so do frozen images.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let guests = client.call::<Guests>(Method::List {}).context("cannot list the guests")?.guests;
        let at_rest =
            guests.into_iter().filter(|guest| guest.state == GuestState::Stopped && guest.next_start.is_none());
        let names: Vec<String> = at_rest.filter(|guest| fits(&self.filter, guest)).map(|guest| guest.name).collect();
        if names.is_empty() || !(self.force || is_wanted(&names)?) {
            return Ok(0);
        }
        each(&mut client, "remove guest", &names, |name| Method::Remove { name, force: false })
    }
}

/// Names what is to go, and asks.
fn is_wanted(names: &[String]) -> anyhow::Result<bool> {
    let unasked = format!("{} stopped guests would be removed; `pando prune --force` does it unasked", names.len());
    is_confirmed(&format!("Remove {} with all their files?", names.join(", ")), unasked)
}

//! `pando prune`: removes all guests that do not run.

use super::Verb;
use crate::complaint::{Told, Usage, complain};
use crate::guest_filter::{Filter, fits};
use crate::replies::{Done, Guests};
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::{Fault, GuestState, Method};
use rustix::stdio::stdin;
use rustix::termios::isatty;

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
        let mut failed = false;
        for name in names {
            let method = Method::Remove { name: name.clone(), force: false };
            match client.call::<Done>(method).with_context(|| format!("cannot remove guest '{name}'")) {
                Ok(_) => crate::table::print(&format!("{name}\n"))?,
                Err(error) if !error.chain().any(|cause| cause.is::<Fault>()) => return Err(error),
                Err(error) => {
                    complain(&error);
                    failed = true;
                }
            }
        }
        if failed { Err(Told.into()) } else { Ok(0) }
    }
}

/// Names what is to go, and asks.
fn is_wanted(names: &[String]) -> anyhow::Result<bool> {
    if !isatty(stdin()) {
        let message = format!("{} stopped guests would be removed; `pando prune --force` does it unasked", names.len());
        return Err(Usage::sentence(message).into());
    }
    eprint!("Remove {} with all their files? [y/N] ", crate::printable::printable(&names.join(", ")));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

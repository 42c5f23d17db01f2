//! `start`, `stop`, `restart`, `kill`, `rm`, `repair`: one call for each guest named.

use super::Verb;
use super::each::each;
use crate::client::Client;
use crate::replies::{Done, Repaired};
use crate::signal_name;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// The guests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    /// Seconds until a guest that has not stopped is killed [default: the guest's own]
    #[arg(short, long, visible_alias = "timeout", value_name = "SECONDS")]
    time: Option<u32>,
    /// The signal that asks it to stop [default: the guest's own]
    #[arg(short, long, value_name = "SIGNAL", value_parser = signal_name::checked)]
    signal: Option<String>,
    /// The guests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Restart {
    /// Seconds until a guest that has not stopped is killed [default: the guest's own]
    #[arg(short, long, visible_alias = "timeout", value_name = "SECONDS")]
    time: Option<u32>,
    /// The guests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Kill {
    /// Send this signal to the first process [default: KILL]
    #[arg(short, long, value_name = "SIGNAL", value_parser = signal_name::checked)]
    signal: Option<String>,
    /// The guests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// Remove a running guest too, killing it first
    #[arg(short, long)]
    force: bool,
    /// The guests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    /// The guests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Unpause {
    /// The guests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rename {
    /// The guest
    name: String,
    /// What it is called from now on
    to: String,
}

impl Verb for Pause {
    const NAME: &'static str = "pause";
    const ABOUT: &'static str = "Have guests stand still where they are";
    const EXAMPLES: &'static str = "\
Examples:
  pando pause web        its memory stays, and it takes no processor time
  pando unpause web";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        for_each(root, "pause", &self.names, |name| Method::Pause { name })
    }
}

impl Verb for Unpause {
    const NAME: &'static str = "unpause";
    const ABOUT: &'static str = "Have guests go on that were paused";
    const EXAMPLES: &'static str = "\
Examples:
  pando unpause web";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        for_each(root, "unpause", &self.names, |name| Method::Unpause { name })
    }
}

impl Verb for Rename {
    const NAME: &'static str = "rename";
    const ABOUT: &'static str = "Give a stopped guest another name";
    const EXAMPLES: &'static str = "\
Examples:
  pando rename web web-old";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let (name, to) = (self.name, self.to);
        let failed = format!("cannot rename guest '{name}'");
        one(&mut client, Method::Rename { name, to }).context(failed)?;
        Ok(0)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Repair {
    /// The guests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Verb for Repair {
    const NAME: &'static str = "repair";
    const ABOUT: &'static str =
        "Mend guests whose files cannot be read, and look again for those that cannot be reached";
    const EXAMPLES: &'static str = "\
Examples:
  pando repair web     the last spec.toml and guest.toml that could be read are put back; what stood there is kept beside";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        for name in self.names {
            let method = Method::Repair { name: name.clone() };
            let done = client.call::<Repaired>(method).with_context(|| format!("cannot repair guest '{name}'"))?.done;
            let lines: String = done.iter().map(|line| format!("{name}: {line}\n")).collect();
            crate::table::print(if lines.is_empty() { "nothing had to be repaired\n" } else { &lines })?;
        }
        Ok(0)
    }
}

impl Verb for Start {
    const NAME: &'static str = "start";
    const ABOUT: &'static str = "Start guests";
    const EXAMPLES: &'static str = "\
Examples:
  pando start web
  pando start web db";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        for_each(root, "start", &self.names, |name| Method::Start { name })
    }
}

impl Verb for Stop {
    const NAME: &'static str = "stop";
    const ABOUT: &'static str = "Ask guests to stop, and kill those that do not";
    const EXAMPLES: &'static str = "\
Examples:
  pando stop web
  pando stop -t 60 -s INT db";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let (signal, grace) = (self.signal, self.time);
        for_each(root, "stop", &self.names, |name| Method::Stop { name, signal: signal.clone(), grace })
    }
}

impl Verb for Restart {
    const NAME: &'static str = "restart";
    const ABOUT: &'static str = "Stop guests and start them again";
    const EXAMPLES: &'static str = "\
Examples:
  pando restart web
  pando restart -t 60 db";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let grace = self.time;
        for_each(root, "restart", &self.names, |name| Method::Restart { name, grace })
    }
}

impl Verb for Kill {
    const NAME: &'static str = "kill";
    const ABOUT: &'static str = "Kill guests, or send a signal to their first process";
    const EXAMPLES: &'static str = "\
Examples:
  pando kill web
  pando kill -s HUP web db";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let signal = self.signal;
        for_each(root, "kill", &self.names, |name| Method::Kill { name, signal: signal.clone() })
    }
}

impl Verb for Rm {
    const NAME: &'static str = "rm";
    const ABOUT: &'static str = "Remove guests and all their files";
    const EXAMPLES: &'static str = "\
Examples:
  pando rm web
  pando rm -f $(pando ls -q)     every guest, running or not";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let force = self.force;
        for_each(root, "remove", &self.names, |name| Method::Remove { name, force })
    }
}

/// Calls a method for each guest, as [`each`] does.
fn for_each(root: &StateRoot, verb: &str, names: &[String], method: impl Fn(String) -> Method) -> anyhow::Result<u8> {
    let mut client = crate::daemon_start::connected(root)?;
    each(&mut client, &format!("{verb} guest"), names, method)
}

fn one(client: &mut Client, method: Method) -> anyhow::Result<()> {
    client.call::<Done>(method).map(drop)
}

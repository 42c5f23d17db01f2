//! `pando clone`: guests out of an image.

use super::Verb;
use crate::client::Client;
use crate::complaint::Usage;
use crate::replies::Done;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Clone {
    /// Make so many, called NAME-1, NAME-2, …
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    number: Option<u32>,
    /// An address that the clone owns; of a guest on the host's network or a private one. May be given several times
    #[arg(long, value_name = "IP[/LENGTH][@DEVICE]", conflicts_with = "number")]
    address: Vec<pando_api::Address>,
    /// Send a signal to those of its processes that handle it, before they run
    #[arg(long, value_parser = crate::signal_name::checked)]
    signal: Option<String>,
    /// By what is decided whether there is room for all of them: always, learned or reserved [default: as pando.toml
    /// says]
    #[arg(long, value_name = "HOW")]
    admit: Option<String>,
    /// How often the same memory may be given away: 3x [default: as pando.toml says]
    #[arg(long, value_name = "TIMES")]
    overbook: Option<String>,
    /// The image
    image: String,
    /// The clone's name; with -n what all names begin with, before a number [default with -n: the image's]
    name: Option<String>,
}

impl Clone {
    /// What the line `pando clone IMAGE NAME` means.
    pub(crate) fn plain(image: String, name: String) -> Self {
        let (number, address, signal, admit, overbook) = (None, Vec::new(), None, None, None);
        Self { number, address, signal, admit, overbook, image, name: Some(name) }
    }

    /// The clones' names, and the call.
    pub(crate) fn into_order(self) -> anyhow::Result<(Vec<String>, Method)> {
        let names = match (self.name, self.number) {
            (Some(name), None) => vec![name],
            (None, None) => return Err(Usage::sentence("give the clone a name, or a number of clones with -n").into()),
            (name, Some(number)) => {
                let name = name.unwrap_or_else(|| self.image.clone());
                (1..=number).map(|number| format!("{name}-{number}")).collect()
            }
        };
        let Self { address: addresses, signal, admit, overbook, image, .. } = self;
        Ok((names.clone(), Method::Clone { image, names, addresses, signal, admit, overbook }))
    }
}

impl Verb for Clone {
    const NAME: &'static str = "clone";
    const ABOUT: &'static str = "Make guests out of an image, running from the frozen instant on";
    const EXAMPLES: &'static str = "\
Examples:
  pando clone web-warm web2
  pando clone web-warm -n 100        web-warm-1 to web-warm-100
  pando clone web-warm web2 --address 10.9.0.6
  pando clone web-warm web2 --signal USR1
  pando clone web-warm -n 1000 --admit learned --overbook 3x

The programs in /etc/pando/clone.d of the guest run in each clone, as its root and in the order of their names, before anything else of it runs and
before anybody can enter it. They find its name in PANDO_CLONE_NAME. If one fails, there is no clone.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let image = self.image.clone();
        let (names, method) = self.into_order()?;
        let made = match pando_front::handed_over() {
            // The front has made the call.
            Some(call) => Client::after(call.socket.into(), call.heard)?.receive::<Done>().map(|answer| answer.reply),
            None => crate::daemon_start::connected(root)?.call::<Done>(method),
        };
        made.with_context(|| format!("cannot clone image '{image}'"))?;
        crate::table::print(&names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
        Ok(0)
    }
}

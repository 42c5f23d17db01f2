//! `pando clone`: guests out of an image.

use super::Verb;
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
    /// The image
    image: String,
    /// The clone's name [default: the image's, with a number]
    name: Option<String>,
}

impl Verb for Clone {
    const NAME: &'static str = "clone";
    const ABOUT: &'static str = "Make guests out of an image, running from the frozen instant on";
    const EXAMPLES: &'static str = "\
Examples:
  pando clone web-warm web2
  pando clone web-warm -n 100        web-warm-1 to web-warm-100";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let names = match (self.name, self.number) {
            (Some(name), None) => vec![name],
            (None, None) => return Err(Usage::sentence("give the clone a name, or a number of clones with -n").into()),
            (name, Some(number)) => {
                let name = name.unwrap_or_else(|| self.image.clone());
                (1..=number).map(|number| format!("{name}-{number}")).collect()
            }
        };
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Clone { image: self.image.clone(), names: names.clone() };
        client.call::<Done>(method).with_context(|| format!("cannot clone image '{}'", self.image))?;
        crate::table::print(&names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
        Ok(0)
    }
}

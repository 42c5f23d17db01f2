//! `pando images` and `pando image rm`: the frozen images.

use super::Verb;
use crate::replies::{Done, Images as Listed};
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print, print_json};
use anyhow::Context;
use pando_api::{ImageStatus, Method};

#[derive(Debug, clap::Args)]
pub(crate) struct Images {
    /// Names only
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Image {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Remove images; clones of them live on
    Rm {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<String>,
    },
}

impl Verb for Images {
    const NAME: &'static str = "images";
    const ABOUT: &'static str = "List the frozen images";
    const EXAMPLES: &'static str = "\
Examples:
  pando images
  pando images --json";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let images = client.call::<Listed>(Method::Images {}).context("cannot list the images")?.images;
        if self.json {
            print_json(&images)?;
        } else if self.quiet {
            print(&images.iter().map(|image| format!("{}\n", image.name)).collect::<String>())?;
        } else {
            table(&images).print()?;
        }
        Ok(0)
    }
}

fn table(images: &[ImageStatus]) -> Table {
    let mut table = Table::new(&[
        ("NAME", Lean::Left),
        ("GUEST", Lean::Left),
        ("PROCESSES", Lean::Right),
        ("THREADS", Lean::Right),
        ("MEMORY", Lean::Right),
    ]);
    for image in images {
        table.row([
            image.name.clone(),
            image.guest.clone(),
            image.processes.to_string(),
            image.threads.to_string(),
            format!("{} MiB", image.memory_kib.div_euclid(1024)),
        ]);
    }
    table
}

impl Verb for Image {
    const NAME: &'static str = "image";
    const ABOUT: &'static str = "Remove frozen images";
    const EXAMPLES: &'static str = "\
Examples:
  pando image rm web-warm";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let What::Rm { names } = self.what;
        for name in names {
            let method = Method::RemoveImage { image: name.clone() };
            client.call::<Done>(method).with_context(|| format!("cannot remove image '{name}'"))?;
            print(&format!("{name}\n"))?;
        }
        Ok(0)
    }
}

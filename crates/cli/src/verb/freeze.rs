//! `pando freeze`: a running guest into an image.

use super::Verb;
use crate::replies::Image;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Freeze {
    /// Stop the guest afterwards
    #[arg(long)]
    stop: bool,
    /// The guest
    name: String,
    /// The image's name [default: the guest's]
    image: Option<String>,
}

impl Verb for Freeze {
    const NAME: &'static str = "freeze";
    const ABOUT: &'static str = "Freeze a running guest into an image, to be cloned";
    const EXAMPLES: &'static str = "\
Examples:
  pando freeze web                   the image is called web, the guest runs on
  pando freeze web web-warm --stop";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Freeze { name: self.name.clone(), image: self.image, stop: self.stop };
        let image = client.call::<Image>(method).with_context(|| format!("cannot freeze guest '{}'", self.name))?.image;
        let (tenths, rest) = (image.pause_us / 100, image.memory_kib.div_euclid(1024));
        crate::table::print(&format!(
            "{}: {} processes, {} threads, {rest} MiB; the guest stood still for {}.{} ms\n",
            image.name,
            image.processes,
            image.threads,
            tenths / 10,
            tenths % 10
        ))?;
        Ok(0)
    }
}

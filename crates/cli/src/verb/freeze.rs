//! `pando freeze`: a running guest into an image.

use super::Verb;
use crate::counted::counted;
use crate::replies::Image;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Freeze {
    /// End the guest where it was frozen, once the image is on the disk; 'pando restore' lets it run on
    #[arg(long)]
    stop: bool,
    /// Hold the image in memory alone, for as long as the daemon runs
    #[arg(long, conflicts_with_all = ["wait", "stop"])]
    memory: bool,
    /// Wait until the image is on the disk, which it otherwise gets to behind the command
    #[arg(long)]
    wait: bool,
    /// Compare no clone with what was frozen: neither a trial clone before the guest is ended (--stop), nor the image's
    /// first one
    #[arg(long)]
    no_check: bool,
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
  pando freeze web web-warm --stop
  pando freeze web --memory          gone with the daemon; nothing is written to the disk

The programs in /etc/pando/freeze.d of the guest run in it, as its root and in the order of their names: with the argument 'before' before anything is
stopped, and with 'after' when it runs on. One that fails before it keeps the guest from being frozen.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        // Of a guest that is stopped the image is all that is left: a loss of power must not take it.
        let wait = self.wait || self.stop;
        let (name, stop, memory, unchecked) = (self.name.clone(), self.stop, self.memory, self.no_check);
        let method = Method::Freeze { name, image: self.image, stop, memory, wait, unchecked };
        let image = client.call::<Image>(method).with_context(|| format!("cannot freeze guest '{}'", self.name))?.image;
        let (tenths, rest) = (image.pause_us / 100, image.memory_kib.div_euclid(1024));
        crate::table::print(&format!(
            "{}: {}, {}, {rest} MiB; the guest stood still for {}.{} ms\n",
            image.name,
            counted(image.processes, "process", "processes"),
            counted(image.threads, "thread", "threads"),
            tenths / 10,
            tenths % 10
        ))?;
        for warning in image.warnings.iter().flatten() {
            eprintln!("pando: warning: {}: {}", image.name, crate::printable::printable(warning));
        }
        Ok(0)
    }
}

//! `pando commit` and `pando push`: images for registries.

use super::Verb;
use crate::complaint::Usage;
use crate::counted::counted;
use crate::size::size;
use crate::source::full_name;
use crate::state_root::StateRoot;
use crate::table::print;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Commit {
    /// The guest, which does not run
    guest: String,
    /// The image's name, in full or as one writes it
    image: String,
}

impl Verb for Commit {
    const NAME: &'static str = "commit";
    const ABOUT: &'static str = "Make an image of a guest's files, as registries have them";
    const EXAMPLES: &'static str = "\
Examples:
  pando stop web && pando commit web registry.example.org/team/web:2
  pando push registry.example.org/team/web:2
  pando run --from registry.example.org/team/web:2

The image has the guest's files, its command, environment, working directory, user, stop signal, labels and ports. A guest that came from an image of a registry which
is here has that one's layers, and one of its own with what is new: `pando push` sends that alone. `pando freeze` makes one with its memory.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let name = full_name(&self.image).map_err(Usage::sentence)?;
        let image = crate::pulling::commit(root, &self.guest, &name)?;
        print(&format!("{}\n", image.reference))?;
        let layers = counted(image.layers, "layer", "layers");
        eprintln!("{}: {}, {layers}, {}", image.reference, image.digest, size(image.size));
        Ok(0)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Push {
    /// Read the credentials of registries from this file (containers-auth.json(5)) [default: where skopeo, podman and
    /// docker have them]
    #[arg(long, value_name = "FILE")]
    authfile: Option<PathBuf>,
    /// The image, one that `pando images --sources` lists
    image: String,
    /// What it is to be called in the registry [default: as it is called here]
    to: Option<String>,
}

impl Verb for Push {
    const NAME: &'static str = "push";
    const ABOUT: &'static str = "Send an image to a registry";
    const EXAMPLES: &'static str = "\
Examples:
  pando push registry.example.org/team/web:2
  pando push nginx:1.27 registry.example.org/mirror/nginx:1.27

Needs skopeo; credentials and settings are those of `pando pull`.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let name = full_name(&self.image).map_err(Usage::sentence)?;
        let to = self.to.as_deref().map_or_else(|| Ok(name.clone()), full_name).map_err(Usage::sentence)?;
        crate::pulling::push(root, &name, &to, self.authfile.as_deref())?;
        print(&format!("{to}\n"))?;
        Ok(0)
    }
}

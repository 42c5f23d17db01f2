//! `pando pull`: images of registries.

use super::Verb;
use crate::complaint::Usage;
use crate::size::size;
use crate::source::full_name;
use crate::state_root::StateRoot;
use crate::table::print;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Pull {
    /// Read the credentials of registries from this file (containers-auth.json(5)) [default: where skopeo, podman and
    /// docker have them]
    #[arg(long, value_name = "FILE")]
    authfile: Option<PathBuf>,
    /// The images, in full or as one writes them: nginx is docker.io/library/nginx:latest
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

impl Verb for Pull {
    const NAME: &'static str = "pull";
    const ABOUT: &'static str = "Fetch images from registries";
    const EXAMPLES: &'static str = "\
Examples:
  pando pull nginx:1.27                      docker.io/library/nginx:1.27
  pando pull registry.example.org/team/app   its tag latest
  pando run --from nginx:1.27                pulls it if it is not here
  pando images --sources                     what was pulled

Needs skopeo. Mirrors and insecure registries are those of containers-registries.conf(5), whose images are accepted says containers-policy.json(5),
`skopeo login`, `podman login` and `docker login` leave credentials where they are found.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let named = |word: &String| full_name(word).map_err(Usage::sentence);
        let names = self.images.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        for name in names {
            let (image, changed) = crate::pulling::pull(root, &name, false, self.authfile.as_deref())?;
            print(&format!("{}\n", image.reference))?;
            let said = match changed {
                true => format!("{}, {} layers, {}", image.digest, image.layers, size(image.size)),
                false => "up to date".to_owned(),
            };
            eprintln!("{}", crate::printable::printable(&format!("{}: {said}", image.reference)));
        }
        Ok(0)
    }
}

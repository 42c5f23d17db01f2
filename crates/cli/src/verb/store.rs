//! `pando store`: what is shared, whether it is whole, and removing what nobody uses.

use super::Verb;
use crate::counted::counted;
use crate::replies::{Collected, StoreUsed, Verified};
use crate::size::size;
use crate::state_root::StateRoot;
use crate::table::{print, print_json};
use anyhow::Context;
use pando_api::{Method, StoreDamage, StoreUsage, Verification};
use std::path::PathBuf;

/// Exit code of a check that found damage which is still there.
const DAMAGED: u8 = 1;

#[derive(Debug, clap::Args)]
pub(crate) struct Store {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// What the store costs, and what it saves
    Usage {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Read everything again, and tell what is damaged by guest and path
    Verify {
        /// Put right what an identical copy is found of: in guests' own files, or below the directories of --from
        #[arg(long)]
        repair: bool,
        /// A directory to look for copies in
        #[arg(long, value_name = "DIR", requires = "repair")]
        from: Vec<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove what no guest stands on; it is done in the background too
    Gc {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

impl Verb for Store {
    const NAME: &'static str = "store";
    const ABOUT: &'static str = "See and check the files that guests share";
    const EXAMPLES: &'static str = "\
Examples:
  pando store usage
  pando store verify                            exit code 1 if something is damaged
  pando store verify --repair --from /          look for copies in the host's own files
  pando store gc";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        match self.what {
            What::Usage { json } => {
                let usage = client.call::<StoreUsed>(Method::Usage {}).context("cannot add up the store")?.usage;
                if json {
                    print_json(&usage)?
                } else {
                    print(&usage_text(&usage))?
                }
                Ok(0)
            }
            What::Verify { repair, from, json } => {
                let absolute = |path: PathBuf| {
                    let found = path.canonicalize().with_context(|| format!("cannot look into {}", path.display()));
                    found.map(|path| path.to_string_lossy().into_owned())
                };
                let places = from.into_iter().map(absolute).collect::<Result<_, _>>()?;
                let method = Method::Verify { repair, places };
                let found = client.call::<Verified>(method).context("cannot verify the store")?.verification;
                if json {
                    print_json(&found)?
                } else {
                    print(&verification_text(&found))?
                }
                let whole = found.damages.iter().all(|damage| damage.repaired_from.is_some());
                Ok(if whole { 0 } else { DAMAGED })
            }
            What::Gc { json } => {
                let gone = client.call::<Collected>(Method::Collect {}).context("cannot collect")?.collection;
                let line = format!(
                    "{}, {}, {} removed\n",
                    counted(gone.layers, "layer", "layers"),
                    counted(gone.objects, "object", "objects"),
                    size(gone.bytes)
                );
                if json {
                    print_json(&gone)?
                } else {
                    print(&line)?
                }
                Ok(0)
            }
        }
    }
}

fn usage_text(usage: &StoreUsage) -> String {
    let own: i64 = usage.guests.iter().map(|guest| guest.own).sum();
    format!(
        "layers    {} for {}, mounted as {}\nobjects   {}, {} on disk\napart     {} if each guest had its own\nguests    {} of their own\n",
        usage.layers,
        counted(usage.guests.len(), "guest", "guests"),
        if usage.backend == "image" { "images" } else { "hard-link farms" },
        usage.objects,
        size(usage.bytes),
        size(usage.apart),
        size(own),
    )
}

fn verification_text(found: &Verification) -> String {
    let mut text: String = found.damages.iter().map(damage_text).collect();
    let objects = counted(found.objects, "object", "objects");
    let layers = counted(found.layers, "layer", "layers");
    text += &format!("{objects} in {layers} read, {} damaged\n", found.damages.len());
    text
}

fn damage_text(damage: &StoreDamage) -> String {
    let mut text = format!("{}: {}\n", if damage.object.is_empty() { "store" } else { &damage.object }, damage.what);
    for file in &damage.files {
        let guest = if file.guest.is_empty() { "no guest".to_owned() } else { format!("guest '{}'", file.guest) };
        let path = if file.path.is_empty() { "all files" } else { &file.path };
        text += &format!("  {guest}: {path}\n");
    }
    if let Some(from) = &damage.repaired_from {
        text += &format!("  repaired from {from}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_api::DamagedFile;

    #[test]
    fn damage_is_told_by_guest_and_path() {
        let damage = StoreDamage {
            object: "ab".into(),
            what: "it is missing".into(),
            files: vec![
                DamagedFile { guest: "web".into(), path: "/bin/sh".into() },
                DamagedFile { guest: String::new(), path: String::new() },
            ],
            repaired_from: Some("/bin/dash".into()),
        };
        let found = Verification { objects: 7, layers: 2, damages: vec![damage] };
        let expected = "\
ab: it is missing
  guest 'web': /bin/sh
  no guest: all files
  repaired from /bin/dash
7 objects in 2 layers read, 1 damaged
";
        assert_eq!(verification_text(&found), expected);
    }
}

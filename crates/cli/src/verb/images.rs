//! `pando images` and `pando image`: the frozen images.

mod signer;

use super::Verb;
use crate::complaint::Usage;
use crate::host_path::{self, NewFile};
use crate::replies::{Done, Exported, Image as One, ImageInspected, Images as Listed, Pruned, Pulled, PulledImages};
use crate::size::size;
use crate::source::full_name;
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print, print_json};
use crate::time_span;
use anyhow::{Context, ensure};
use pando_api::{ImageStatus, Method, PulledImage};
use pando_reader::signature_frame;
use rustix::termios::isatty;
use signer::Signer;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(crate) struct Images {
    /// Names only
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Those that were pulled from registries, instead of the frozen ones
    #[arg(long)]
    sources: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Image {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List them, as `pando images` does
    #[command(visible_alias = "list")]
    Ls(Images),
    /// Show all that is known of one, as JSON
    Inspect {
        /// The image
        name: String,
    },
    /// Write one with its files to a file, compressed (zstd)
    Export {
        /// The image
        name: String,
        /// The file; - for standard output
        #[arg(value_name = "FILE")]
        to: PathBuf,
        /// Sign it with a key of SSH: a private key, or a public one whose other half an agent or a token has
        #[arg(long, value_name = "KEYFILE")]
        sign: Option<PathBuf>,
    },
    /// Make an image of an exported one
    Import {
        /// The file; - for standard input
        #[arg(value_name = "FILE")]
        from: PathBuf,
        /// The image's name [default: the one that it had]
        name: Option<String>,
        /// Grant what the image wants of this machine beyond what every guest has
        ///
        /// Whoever made the image wrote what its clones ask for. Without this, one that asks for more than a guest has
        /// by default is refused, and what it asks for is said.
        #[arg(long, value_name = "WHAT", value_delimiter = ',')]
        allow: Vec<Grant>,
        /// Import it only if one of the signers in this file has signed it (ssh-keygen(1), ALLOWED SIGNERS) [default:
        /// what pando.toml says]
        #[arg(long, value_name = "ALLOWED_SIGNERS")]
        verify: Option<PathBuf>,
        /// Say as JSON what was imported, and who signed it
        #[arg(long)]
        json: bool,
    },
    /// Remove pulled images that no guest stands on and that were not used for long
    Prune {
        /// For how long nothing was made of one that goes: 12h, 30d
        #[arg(long, value_name = "TIME", default_value = "30d", value_parser = time_span::seconds)]
        unused_for: i64,
    },
    /// Give back the memory of images that are on the disk; the next clone reads one from there
    Release {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<String>,
    },
    /// Remove images, frozen or pulled; clones and guests of them live on
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<String>,
    },
    /// Give an image of a registry another name besides; what had that name is not called so any more
    Tag {
        /// The image, one that `pando images --sources` lists
        image: String,
        /// Its further name
        to: String,
    },
}

/// What an image may be granted.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Grant {
    /// Directories and files of this machine
    Volumes,
    /// A network, addresses, published ports
    Network,
    /// Devices of this machine
    Devices,
    /// To be without a user namespace: its root is root of this machine
    Userns,
    /// Capabilities
    Caps,
    /// To be without the filter of system calls
    Seccomp,
    /// The profile of guests with an init of their own
    Profile,
    /// To freeze itself
    Freeze,
    /// Resource limits of its own
    Limits,
    /// Guaranteed shares
    Resources,
    /// All of it
    All,
}

impl Verb for Images {
    const NAME: &'static str = "images";
    const ABOUT: &'static str = "List the frozen images, or those of registries";
    const EXAMPLES: &'static str = "\
Examples:
  pando images
  pando images --json
  pando images --sources       what was pulled from registries";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        if self.sources {
            return self.list_pulled(root);
        }
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

impl Images {
    fn list_pulled(&self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let listed = client.call::<PulledImages>(Method::PulledImages {});
        let images = listed.context("cannot list the images of registries")?.pulled_images;
        if self.json {
            print_json(&images)?;
        } else if self.quiet {
            print(&images.iter().map(|image| format!("{}\n", image.reference)).collect::<String>())?;
        } else {
            table_of_pulled(&images).print()?;
        }
        Ok(0)
    }
}

fn table_of_pulled(images: &[PulledImage]) -> Table {
    let mut table = Table::new(&[
        ("IMAGE", Lean::Left),
        ("DIGEST", Lean::Left),
        ("LAYERS", Lean::Right),
        ("SIZE", Lean::Right),
        ("PULLED", Lean::Left),
        ("USED", Lean::Left),
        ("GUESTS", Lean::Left),
    ]);
    let now = jiff::Timestamp::now().as_second();
    let ago = |moment: i64| format!("{} ago", time_span::span(now.saturating_sub(moment)));
    for image in images {
        let digest: String = image.digest.trim_start_matches("sha256:").chars().take(12).collect();
        table.row([
            image.reference.clone(),
            digest,
            image.layers.to_string(),
            size(image.size),
            ago(image.pulled),
            ago(image.used),
            image.guests.join(", "),
        ]);
    }
    table
}

fn table(images: &[ImageStatus]) -> Table {
    let mut table = Table::new(&[
        ("NAME", Lean::Left),
        ("GUEST", Lean::Left),
        ("PROCESSES", Lean::Right),
        ("THREADS", Lean::Right),
        ("MEMORY", Lean::Right),
        ("KEPT", Lean::Left),
    ]);
    for image in images {
        table.row([
            image.name.clone(),
            image.guest.clone(),
            image.processes.to_string(),
            image.threads.to_string(),
            format!("{} MiB", image.memory_kib.div_euclid(1024)),
            place(image).to_owned(),
        ]);
    }
    table
}

/// Where an image is.
fn place(image: &ImageStatus) -> &'static str {
    match (image.kept, image.held) {
        (true, true) => "disk, memory",
        (true, false) => "disk",
        (false, true) => "memory",
        (false, false) => "lost",
    }
}

impl Verb for Image {
    const NAME: &'static str = "image";
    const ABOUT: &'static str = "List, look at, remove, export and import images";
    const EXAMPLES: &'static str = "\
Examples:
  pando image ls
  pando image inspect web-warm
  pando image export web-warm web.pando
  pando image export web-warm - | ssh other pando image import -
  pando image import web.pando web2
  pando image import --allow network,volumes web.pando
  pando image export --sign ~/.ssh/id_ed25519 web-warm web.pando
  pando image import --verify allowed_signers web.pando
  pando image rm web-warm nginx:1.27
  pando image tag nginx:1.27 registry.example.org/mirror/nginx:1.27
  pando image prune --unused-for 7d

An image holds programs with their secrets: keep an export as you would keep a key. What it wants of this machine beyond what every guest has is said, and granted only
when it is named with --allow.

A signature is one of ssh-keygen's, for the namespace pando-image, and of all that is in the export. Who is believed stands in a file with lines such as
  ada@example.org namespaces=\"pando-image\" ssh-ed25519 AAAA...
which --verify names, or pando.toml ([images] signers, revoked, require_signature), or which is /etc/pando/allowed_signers. An import says who signed.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        match self.what {
            What::Ls(images) => images.run(root),
            What::Inspect { name } => inspect(root, &name),
            What::Export { name, to, sign } => export(root, &name, &to, sign.as_deref()),
            What::Import { from, name, allow, verify, json } => {
                import(root, &from, name, &allow, verify.as_deref(), json)
            }
            What::Prune { unused_for } => prune(root, unused_for),
            What::Release { names } => release(root, names),
            What::Rm { names } => remove(root, names),
            What::Tag { image, to } => tag(root, &image, &to),
        }
    }
}

fn inspect(root: &StateRoot, name: &str) -> anyhow::Result<u8> {
    let mut client = crate::daemon_start::connected(root)?;
    let method = Method::InspectImage { image: name.to_owned() };
    let inspected =
        client.call::<ImageInspected>(method).with_context(|| format!("cannot look at image '{name}'"))?.image;
    print_json(&inspected)?;
    Ok(0)
}

fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn export(root: &StateRoot, name: &str, to: &Path, sign: Option<&Path>) -> anyhow::Result<u8> {
    let what = || format!("cannot export image '{name}'");
    let signer = sign.map(Signer::new).transpose()?;
    if is_stream(to) {
        let out = std::io::stdout().as_fd().try_clone_to_owned().context("cannot pass standard output on")?;
        if isatty(&out) {
            return Err(Usage::sentence("an image is not for a terminal; redirect standard output").into());
        }
        return write(root, name, File::from(out), signer.as_ref()).with_context(what).map(|()| 0);
    }
    let unwritten = || format!("cannot write '{}'", to.display());
    ensure!(!to.exists(), "there is '{}' already; remove it, or choose another name", to.display());
    // Beside its place, so that a file of that name is always whole. What is in it are the secrets of programs.
    let new = NewFile::begin(root, to).with_context(unwritten)?;
    write(root, name, new.file.try_clone()?, signer.as_ref()).with_context(what)?;
    new.finish().with_context(unwritten).map(|()| 0)
}

/// Has the daemon write an export, and signs what it has written.
fn write(root: &StateRoot, name: &str, mut out: File, signer: Option<&Signer>) -> anyhow::Result<()> {
    let mut client = crate::daemon_start::connected(root)?;
    let method = Method::ExportImage { image: name.to_owned(), sign: signer.is_some() };
    client.send(method, false, vec![out.try_clone()?.into()])?;
    let exported = client.receive::<Exported>()?.reply;
    let Some(signer) = signer else { return Ok(()) };
    let statement = exported.statement.context("the daemon did not say what is to be signed; is it an older one?")?;
    let signature = signer.sign(statement.as_bytes())?;
    // The daemon has written into the same open file.
    Ok(out.write_all(&signature_frame(&signature)?)?)
}

fn import(
    root: &StateRoot,
    from: &Path,
    name: Option<String>,
    allow: &[Grant],
    verify: Option<&Path>,
    json: bool,
) -> anyhow::Result<u8> {
    let words = allow.iter().filter_map(clap::ValueEnum::to_possible_value);
    let allow = words.map(|word| word.get_name().to_owned()).collect();
    let read = |path: &Path| host_path::read(root, path).with_context(|| format!("cannot read '{}'", path.display()));
    let input: OwnedFd = if is_stream(from) {
        let input = std::io::stdin().as_fd().try_clone_to_owned().context("cannot pass standard input on")?;
        if isatty(&input) {
            return Err(Usage::sentence("standard input is a terminal, not an exported image").into());
        }
        input
    } else {
        read(from)?.into()
    };
    let mut descriptors = vec![input];
    descriptors.extend(verify.map(read).transpose()?.map(OwnedFd::from));
    let mut client = crate::daemon_start::connected(root)?;
    client.send(Method::ImportImage { image: name, allow, verify: verify.is_some() }, false, descriptors)?;
    let image = client.receive::<One>().with_context(|| format!("cannot import '{}'", from.display()))?.reply.image;
    if json {
        print_json(&image)?;
        return Ok(0);
    }
    print(&format!("{}\n", image.name))?;
    eprintln!("{}", crate::printable::printable(&provenance(&image)));
    Ok(0)
}

/// Who vouches for an image that was imported.
fn provenance(image: &ImageStatus) -> String {
    let ImageStatus { name, signed_by, signing_key, .. } = image;
    match (signed_by, signing_key) {
        (Some(signer), Some(key)) => format!("{name}: signed by {signer} ({key})"),
        (None, Some(key)) => format!(
            "{name}: signed with the key {key}; whose that is nobody here says (--verify, or [images] signers in pando.toml)"
        ),
        (_, None) => format!("{name}: not signed"),
    }
}

fn prune(root: &StateRoot, unused_for: i64) -> anyhow::Result<u8> {
    let mut client = crate::daemon_start::connected(root)?;
    let method = Method::PrunePulledImages { unused_for: Some(unused_for) };
    let pruned = client.call::<Pruned>(method).context("cannot remove what was not used")?;
    print(&pruned.removed.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    Ok(0)
}

fn release(root: &StateRoot, names: Vec<String>) -> anyhow::Result<u8> {
    let mut client = crate::daemon_start::connected(root)?;
    for name in names {
        let method = Method::ReleaseImage { image: name.clone() };
        client.call::<Done>(method).with_context(|| format!("cannot release image '{name}'"))?;
        print(&format!("{name}\n"))?;
    }
    Ok(0)
}

fn tag(root: &StateRoot, image: &str, to: &str) -> anyhow::Result<u8> {
    let image = full_name(image).map_err(Usage::sentence)?;
    let to = full_name(to).map_err(Usage::sentence)?;
    let mut client = crate::daemon_start::connected(root)?;
    let method = Method::TagImage { image: image.clone(), to };
    let tagged = client.call::<Pulled>(method).with_context(|| format!("cannot name image '{image}'"))?;
    let tagged = tagged.pulled.context("the daemon did not say what came of it")?;
    print(&format!("{}\n", tagged.reference))?;
    Ok(0)
}

fn remove(root: &StateRoot, names: Vec<String>) -> anyhow::Result<u8> {
    let mut client = crate::daemon_start::connected(root)?;
    for name in names {
        let method = Method::RemoveImage { image: name.clone() };
        client.call::<Done>(method).with_context(|| format!("cannot remove image '{name}'"))?;
        print(&format!("{name}\n"))?;
    }
    Ok(0)
}

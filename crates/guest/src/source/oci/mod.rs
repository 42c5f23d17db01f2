//! An OCI image: its layers, one over the other.
//!
//! ```text
//!  layout directory ─┐                     ┌─ index.json ─ choice ─┐
//!  tar of a layout ──┼─ store (blobs) ─────┤                       ├─ configuration, layers ─ layer ─ unpack
//!  docker save ──────┘                     └─ manifest.json ───────┘
//! ```
//!
//! What understands documents and layers is a process without powers. Nothing is believed: each blob's size and digest
//! is checked against the document that named it, from the index down, and each layer's plain content against the
//! configuration.

mod choice;
mod docker_save;
mod layer;
mod store;

use super::archive::ArchiveError;
use super::meter::{Cancelled, Meter};
use super::{Progress, Suggested, Summary};
use layer::{Layers, Wanted};
use pando_reader::Configuration;
use std::io;
use std::path::{Path, PathBuf};
use store::Store;

/// No image has as many layers: overlay-based engines stop at 128.
const MAX_LAYERS: usize = 500;

/// Why an image was not unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OciError {
    /// A file of the image cannot be read.
    #[error("cannot read '{member}' of the image '{image}': {source}; check that the image is complete and readable")]
    Read {
        /// The image's file or directory.
        image: PathBuf,
        /// The file of the image that was read.
        member: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file or directory holds no image.
    #[error(
        "'{0}' holds no image: neither an index.json, as an OCI layout has, nor a manifest.json, as `docker save` writes; \
         `skopeo copy SOURCE oci:DIR` makes a layout"
    )]
    NotAnImage(PathBuf),
    /// A blob is not what was named.
    #[error(
        "the image '{image}' is damaged: the {what} '{digest}' {reason}; copy the image again, and be careful with where it came from"
    )]
    Corrupt {
        /// The image's file or directory.
        image: PathBuf,
        /// What the blob should be.
        what: String,
        /// By which digest it was named.
        digest: String,
        /// How its content differs from the digest.
        reason: String,
    },
    /// A document of the image cannot be understood.
    #[error("the image '{image}' has a {what} that cannot be used: {reason}; make it again with a current tool")]
    Document {
        /// The image's file or directory.
        image: PathBuf,
        /// The document that cannot be read.
        what: String,
        /// What is wrong with the document.
        reason: String,
    },
    /// There is no such tag.
    #[error("the image '{image}' has no tag '{tag}'; it has {has}")]
    NoTag {
        /// The image's file or directory.
        image: PathBuf,
        /// The tag that was asked for.
        tag: String,
        /// The tags that the image has.
        has: String,
    },
    /// It holds several, and none was named.
    #[error("'{image}' holds several images ({has}); name one: oci:{image}:TAG")]
    Several {
        /// The image's file or directory.
        image: PathBuf,
        /// The tags of the images in it.
        has: String,
    },
    /// The image is for other machines.
    #[error("the image '{image}' is not made for this machine ({wanted}) but for {has}; get its variant for {wanted}")]
    NoPlatform {
        /// The image's file or directory.
        image: PathBuf,
        /// The platform that this machine has.
        wanted: String,
        /// The platforms that the image has.
        has: String,
    },
    /// A layer of the image could not be unpacked.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The user stopped the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// What an image turned out to be made of.
struct Resolved {
    configuration: Configuration,
    layers: Vec<Wanted>,
}

pub(crate) fn unpack_image(
    path: &Path,
    tag: Option<&str>,
    into: &Path,
    progress: &dyn Progress,
) -> Result<Summary, OciError> {
    progress.stage(&format!("reading the image {}", path.display()));
    let mut meter = Meter::new(progress, None);
    // Beside the destination: only root can look there, and there is room.
    let store = Store::open(path, into.parent().unwrap_or(into), &mut meter)?;
    let image = if store.has("index.json") {
        choice::resolve(&store, tag)?
    } else if store.has("manifest.json") {
        docker_save::resolve(&store, tag)?
    } else {
        return Err(OciError::NotAnImage(path.to_owned()));
    };
    if image.layers.len() > MAX_LAYERS {
        let reason = format!("it has {} layers, and at most {MAX_LAYERS} are unpacked", image.layers.len());
        return Err(store.document("manifest", reason));
    }
    check_platform(&store, &image.configuration)?;
    let mut layers = Layers::new(&store, into)?;
    let count = image.layers.len();
    for (number, layer) in (1..).zip(&image.layers) {
        progress.stage(&format!("unpacking layer {number} of {count}"));
        layers.apply(layer, progress)?;
    }
    let mut summary = layers.finish()?;
    summary.suggested = suggested(image.configuration);
    Ok(summary)
}

/// What this machine is, in the words of OCI.
fn this_platform() -> (String, String) {
    (oci_spec::image::Os::Linux.to_string(), oci_spec::image::Arch::default().to_string())
}

fn check_platform(store: &Store, configuration: &Configuration) -> Result<(), OciError> {
    let (os, architecture) = this_platform();
    if (&configuration.os, &configuration.architecture) == (&os, &architecture) {
        return Ok(());
    }
    let has = format!("{}/{}", configuration.os, configuration.architecture);
    Err(OciError::NoPlatform { image: store.image().to_owned(), wanted: format!("{os}/{architecture}"), has })
}

fn suggested(configuration: Configuration) -> Suggested {
    let Configuration { entrypoint, command, environment, workdir, user, stop_signal, .. } = configuration;
    Suggested { entrypoint, command, environment, workdir, user, stop_signal }
}

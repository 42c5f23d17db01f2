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
use oci_spec::image::Digest;
use pando_api::HealthCheck;
use pando_reader::{Configuration, Descriptor, ImageHealth};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use store::{Store, blob_path};

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

/// What a manifest says to this machine.
pub(crate) enum Understood {
    /// That the image is another one's: an index names it.
    Elsewhere(Descriptor),
    /// What the image is made of.
    Image { config: Descriptor, layers: Vec<Descriptor> },
}

/// The blobs of an image, as its documents name them.
pub(crate) struct Blobs {
    pub(crate) manifest: Descriptor,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

impl Blobs {
    /// The file of each in a layout, and its size. What has no digest has no file.
    pub(crate) fn members(&self) -> impl Iterator<Item = (String, u64)> + use<'_> {
        let all = [&self.manifest, &self.config].into_iter().chain(&self.layers);
        all.filter_map(|blob| Some((blob_path(&Digest::from_str(&blob.digest).ok()?), blob.size)))
    }

    /// Whether it has no more layers than any, each by a digest that can be checked here.
    fn check(&self, image: &str) -> Result<(), OciError> {
        parts(image, &self.config, &self.layers).map(drop)
    }
}

/// A part of an image: its configuration or a layer, by a digest that can be checked here.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    what: &'static str,
    digest: Digest,
    /// Bytes, as the manifest says.
    pub(crate) size: u64,
}

impl Part {
    /// The file that it has in a layout.
    pub(crate) fn member(&self) -> String {
        blob_path(&self.digest)
    }

    /// Reads what is said to be this part of `image` to its end, and checks it against size and digest.
    pub(crate) fn check(&self, image: &str, content: impl Read, progress: &dyn Progress) -> Result<(), OciError> {
        let store = Store::of_nothing(image);
        let unread = |source| OciError::Read { image: image.into(), member: self.member(), source };
        let mut digester = store.digester(self.what, &self.digest)?;
        // One byte more tells that it is too long.
        let mut content = content.take(self.size.saturating_add(1));
        let mut buffer = vec![0; 256 << 10];
        let mut length = 0;
        loop {
            let count = content.read(&mut buffer).map_err(unread)?;
            if count == 0 {
                break;
            }
            if progress.cancelled() {
                return Err(Cancelled.into());
            }
            digester.update(&buffer[..count]);
            length += count as u64;
        }
        if length == self.size && digester.agrees() {
            return Ok(());
        }
        Err(store.corrupt(self.what, &self.digest, "has other content than its digest says"))
    }

    /// What is said of one that did not come.
    pub(crate) fn missing(&self, image: &str) -> OciError {
        Store::of_nothing(image).corrupt(self.what, &self.digest, "is not there")
    }
}

/// The parts that a manifest of `image` names: its configuration first, then its layers.
pub(crate) fn parts(image: &str, config: &Descriptor, layers: &[Descriptor]) -> Result<Vec<Part>, OciError> {
    let store = Store::of_nothing(image);
    check_count(&store, layers.len())?;
    let named = std::iter::once(("configuration", config)).chain(layers.iter().map(|layer| ("layer", layer)));
    let part = |(what, blob): (&'static str, &Descriptor)| {
        let digest = store.digest("manifest", &blob.digest)?;
        store.sum("manifest", &digest)?;
        Ok(Part { what, digest, size: blob.size })
    };
    named.map(part).collect()
}

/// Understands an index or a manifest of the image of that name.
pub(crate) fn understand(image: &str, content: &[u8]) -> Result<Understood, OciError> {
    choice::understand(&Store::of_nothing(image), content)
}

/// The blobs of the one image in a layout that was pulled.
pub(crate) fn blobs_of_layout(layout: &Path, image: &str) -> Result<Blobs, OciError> {
    let blobs = choice::locate(&Store::of_layout(layout, image)?, None)?;
    blobs.check(image)?;
    Ok(blobs)
}

/// The layers of the one image in a layout that was pulled, lowest first: each with the digest of its plain content.
pub(crate) fn layers_of_layout(layout: &Path, image: &str) -> Result<Vec<(Descriptor, Digest)>, OciError> {
    let store = Store::of_layout(layout, image)?;
    let blobs = choice::locate(&store, None)?;
    blobs.check(image)?;
    let plain = store.configuration(&store.described("configuration", &blobs.config)?)?.diff_ids;
    if plain.len() != blobs.layers.len() {
        let reason = format!("its manifest has {} layers, its configuration {}", blobs.layers.len(), plain.len());
        return Err(store.document("manifest", reason));
    }
    let digest = |plain: &String| store.digest("configuration", plain);
    blobs.layers.into_iter().zip(&plain).map(|(layer, plain)| Ok((layer, digest(plain)?))).collect()
}

fn check_count(store: &Store, layers: usize) -> Result<(), OciError> {
    if layers > MAX_LAYERS {
        let reason = format!("it has {layers} layers, and at most {MAX_LAYERS} are unpacked");
        return Err(store.document("manifest", reason));
    }
    Ok(())
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
    unpack(&store, image, into, progress)
}

/// Unpacks the one image of a layout that was pulled under the name `image`.
pub(crate) fn unpack_layout(
    layout: &Path,
    image: &str,
    into: &Path,
    progress: &dyn Progress,
) -> Result<Summary, OciError> {
    let store = Store::of_layout(layout, image)?;
    let image = choice::resolve(&store, None)?;
    unpack(&store, image, into, progress)
}

fn unpack(store: &Store, image: Resolved, into: &Path, progress: &dyn Progress) -> Result<Summary, OciError> {
    check_count(store, image.layers.len())?;
    check_platform(store, &image.configuration)?;
    let mut layers = Layers::new(store, into)?;
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
    let Configuration { entrypoint, command, environment, workdir, user, stop_signal, exposed, health, .. } =
        configuration;
    let health = health.and_then(|said| health_check(*said));
    Suggested { entrypoint, command, environment, workdir, user, stop_signal, exposed, health }
}

/// An image's HEALTHCHECK.
fn health_check(said: ImageHealth) -> Option<HealthCheck> {
    let command = match said.test.split_first()? {
        (kind, _) if kind == HealthCheck::NONE => return None,
        (kind, words) if kind == "CMD" => words.to_vec(),
        (kind, [line, ..]) if kind == "CMD-SHELL" => vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()],
        _ => return None,
    };
    let seconds = |nanoseconds: u64| {
        let seconds = u32::try_from(nanoseconds.div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
        Some(seconds).filter(|seconds| *seconds > 0)
    };
    Some(HealthCheck {
        command,
        interval: seconds(said.interval),
        timeout: seconds(said.timeout),
        retries: Some(said.retries).filter(|retries| *retries > 0),
        start_period: seconds(said.start_period),
        ..HealthCheck::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Silent;

    impl Progress for Silent {
        fn stage(&self, _: &str) {}
        fn advance(&self, _: u64, _: Option<u64>) {}
    }

    #[test]
    fn a_part_is_what_its_digest_and_its_size_say() {
        let described = |content: &[u8], size| Descriptor {
            digest: pando_reader::sha256(content),
            size,
            media_type: String::new(),
            names: Vec::new(),
            platform: None,
        };
        let found = parts("x", &described(b"{}", 2), &[described(b"layer", 5), described(b"layer", 4)]).unwrap();
        assert!(found[0].check("x", &b"{}"[..], &Silent).is_ok());
        assert!(found[1].check("x", &b"layer"[..], &Silent).is_ok());
        for (part, content) in [(1, &b"LAYER"[..]), (1, b"laye"), (1, b"layer "), (2, b"layer"), (2, b"laye")] {
            let error = found[part].check("x", content, &Silent).unwrap_err();
            assert!(matches!(error, OciError::Corrupt { .. }), "{error}");
        }
    }
}

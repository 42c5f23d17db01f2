//! The documents of an OCI image: of each what an unpacker needs.

use crate::failure::Failure;
use crate::job::Shape;
use oci_spec::image::{self, ImageConfiguration, ImageIndex, ImageManifest};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// What containerd writes: the full name of the image.
const IMAGE_NAME: &str = "io.containerd.image.name";

/// A document of an OCI image, or of `docker save`, as it was parsed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Document {
    /// An index: what it names.
    Index(Vec<Descriptor>),
    /// The manifest of an image.
    Manifest {
        /// The descriptor of its configuration.
        config: Descriptor,
        /// The descriptors of its layers, lowest first.
        layers: Vec<Descriptor>,
    },
    /// The configuration of an image.
    Configuration(Configuration),
    /// The images that were saved.
    Saved(Vec<SavedImage>),
    /// A document of no kind that is known.
    Neither,
}

/// A reference to a blob of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The digest of the blob, as the document writes it.
    pub digest: String,
    /// The size of the blob, in bytes.
    pub size: u64,
    /// The media type of the blob, as the document writes it.
    pub media_type: String,
    /// What the blob is called.
    pub names: Vec<String>,
    /// Operating system and architecture that it is for, if it says so.
    pub platform: Option<(String, String)>,
}

/// How an image is made, and would like to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The operating system that the image is for.
    pub os: String,
    /// The architecture that the image is for.
    pub architecture: String,
    /// The digests of the layers' plain content, lowest first.
    pub diff_ids: Vec<String>,
    /// The command that always runs, before the arguments.
    pub entrypoint: Vec<String>,
    /// The arguments, unless the user gives others.
    pub command: Vec<String>,
    /// Variables of the environment, each as `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The directory where the command starts.
    pub workdir: Option<String>,
    /// The user that runs it, as `USER[:GROUP]`.
    pub user: Option<String>,
    /// What asks it to stop.
    pub stop_signal: Option<String>,
    /// The ports that it listens on, as `PORT` or `PORT/PROTOCOL`.
    pub exposed: Vec<String>,
    /// How is found out whether it is well, if it says so (HEALTHCHECK, which is docker's and not OCI's).
    pub health: Option<Box<ImageHealth>>,
}

/// An image's word on how it is found out whether it is well. Times are nanoseconds, 0 where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageHealth {
    /// `NONE`, `CMD` and a command with its arguments, or `CMD-SHELL` and a line for a shell.
    pub test: Vec<String>,
    /// The time between two checks.
    pub interval: u64,
    /// The most that one may take.
    pub timeout: u64,
    /// In which failures do not count.
    pub start_period: u64,
    /// How many failures make it unhealthy.
    pub retries: u32,
}

/// The part of a configuration that OCI does not have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DockersConfiguration {
    config: Option<DockersConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DockersConfig {
    #[serde(rename = "Healthcheck")]
    healthcheck: Option<ImageHealth>,
}

/// What is no health check of docker's says nothing.
fn health(content: &[u8]) -> Option<ImageHealth> {
    serde_json::from_slice::<DockersConfiguration>(content).ok()?.config?.healthcheck
}

/// An image of `docker save`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedImage {
    /// The file of its configuration.
    pub config: String,
    /// The names that the image was saved under.
    pub tags: Vec<String>,
    /// The files of its layers, lowest first.
    pub layers: Vec<String>,
}

/// What a document is, told by what it has.
#[derive(Deserialize)]
struct Has {
    manifests: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Understands one.
pub(crate) fn parse(shape: Shape, content: &[u8]) -> Result<Document, Failure> {
    match shape {
        Shape::Index => index(content),
        Shape::IndexOrManifest => {
            let has: Has = json(content)?;
            match (has.manifests, has.layers) {
                (Some(_), None) => index(content),
                (None, Some(_)) => {
                    let manifest: ImageManifest = json(content)?;
                    let layers = manifest.layers().iter().map(descriptor).collect();
                    Ok(Document::Manifest { config: descriptor(manifest.config()), layers })
                }
                _ => Ok(Document::Neither),
            }
        }
        Shape::Configuration => Ok(Document::Configuration(configuration(&json(content)?, content))),
        Shape::Saved => {
            let images: Vec<Saved> = json(content)?;
            let plain = |image: Saved| SavedImage {
                config: image.config,
                tags: image.repo_tags.unwrap_or_default(),
                layers: image.layers,
            };
            Ok(Document::Saved(images.into_iter().map(plain).collect()))
        }
    }
}

fn json<T: DeserializeOwned>(content: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(content).map_err(|error| Failure::Document(error.to_string()))
}

fn index(content: &[u8]) -> Result<Document, Failure> {
    let index: ImageIndex = json(content)?;
    Ok(Document::Index(index.manifests().iter().map(descriptor).collect()))
}

fn descriptor(found: &image::Descriptor) -> Descriptor {
    let notes = found.annotations().iter().flatten();
    Descriptor {
        digest: found.digest().to_string(),
        size: found.size(),
        media_type: found.media_type().to_string(),
        names: notes.filter(|(key, _)| *key == REF_NAME || *key == IMAGE_NAME).map(|(_, name)| name.clone()).collect(),
        platform: found.platform().as_ref().map(|is| (is.os().to_string(), is.architecture().to_string())),
    }
}

fn configuration(found: &ImageConfiguration, content: &[u8]) -> Configuration {
    let config = found.config().as_ref();
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let list = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    Configuration {
        os: found.os().to_string(),
        architecture: found.architecture().to_string(),
        diff_ids: found.rootfs().diff_ids().clone(),
        entrypoint: config.map(|config| list(config.entrypoint())).unwrap_or_default(),
        command: config.map(|config| list(config.cmd())).unwrap_or_default(),
        environment: config.map(|config| list(config.env())).unwrap_or_default(),
        workdir: config.and_then(|config| some(config.working_dir())),
        user: config.and_then(|config| some(config.user())),
        stop_signal: config.and_then(|config| some(config.stop_signal())),
        exposed: config.map(|config| list(config.exposed_ports())).unwrap_or_default(),
        health: health(content).map(Box::new),
    }
}
